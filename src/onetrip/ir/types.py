"""Types of tensor values."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.dtype import DType
from ..base.lazy import cached_property
from ..base.sym import Dim, Sym, evaluate, mul, product, render


def contiguous_strides(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Row-major strides, in elements; a dimension of size 0 counts as 1, as PyTorch does."""
    strides: list[Dim] = []
    step: Dim = 1
    for size in reversed(shape):
        strides.append(step)
        step = mul(step, 1 if size == 0 else size)
    return tuple(reversed(strides))


@dataclass(frozen=True)
class TensorType:
    """Element type, shape (elements) and strides (elements) of a tensor; dims may be symbolic."""

    dtype: DType
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]

    @staticmethod
    def dense(dtype: DType, shape: tuple[Dim, ...]) -> TensorType:
        """A row-major tensor."""
        return TensorType(dtype, shape, contiguous_strides(shape))

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @cached_property
    def numel(self) -> Dim:
        """Number of elements."""
        return product(self.shape)

    @cached_property
    def is_contiguous(self) -> bool:
        """Row-major and without gaps; dimensions of size 1 may have any stride."""
        wanted = contiguous_strides(self.shape)
        return all(
            s == 1 or a == b for s, a, b in zip(self.shape, self.strides, wanted, strict=True)
        )

    @cached_property
    def storage_elements(self) -> Dim:
        """Elements from the first to the last one in memory: what a buffer must hold."""
        if any(s == 0 for s in self.shape):
            return 0
        last: Dim = 1
        for size, stride in zip(self.shape, self.strides, strict=True):
            last = last + (size - 1) * stride
        return last

    def offset(self, index: tuple[Dim, ...]) -> Dim:
        """The element offset of a logical index."""
        total: Dim = 0
        for i, stride in zip(index, self.strides, strict=True):
            total = total + i * stride
        return total

    def __repr__(self) -> str:
        shape = ",".join(render(d) for d in self.shape)
        text = f"{self.dtype.name}[{shape}]"
        if not self.is_contiguous:
            text += "{" + ",".join(render(s) for s in self.strides) + "}"
        return text


def same_shape(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    """Whether shapes are equal but for the spelling of symbolic sizes (`s0*s1`, `s2*s3`).

    Where both are symbolic, the capture has seen them equal and guards that they are.
    """
    symbolic = [isinstance(x, Sym) and isinstance(y, Sym) for x, y in zip(a, b, strict=False)]
    rows = zip(a, b, symbolic, strict=False)
    return len(a) == len(b) and all(both or x == y for x, y, both in rows)


def concrete(dim: Dim, sizes: dict[Sym, int]) -> int:
    """The value of `dim` for the given sizes."""
    return int(evaluate(dim, lambda atom: sizes[atom]))
