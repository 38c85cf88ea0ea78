"""Made-up operands: tensors on which a kernel or a graph runs to be timed.

Floats lie around one, so that logarithms and quotients stay finite; integers lie within what they
index. Must not know what is computed from them.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..base.sym import Dim, Opaque, atoms
from ..cost.sizes import NO_HINTS, Hints, number
from ..ir.nest import Nest
from ..ir.types import TensorType
from ..runtime.resolve import torch_dtype

FEW = 2
"""Integers are drawn below this, or below what they index."""


def index_bound(nests: Iterable[Nest]) -> int:
    """The least extent that an index read from memory runs over; `FEW` where none is."""
    extents = [a.extent for nest in nests for d in _indices(nest) for a in atoms(d)
               if isinstance(a, Opaque)]  # fmt: skip
    return min((n for n in extents if isinstance(n, int)), default=FEW)


def _indices(nest: Nest) -> list[Dim]:
    return [d for e in nest.loads for d in e.index] + [d for s in nest.stores for d in s.index]


def storage_bytes(kind: TensorType, hints: Hints = NO_HINTS) -> int:
    """Bytes from the first element of a tensor to its last."""
    return number(kind.storage_elements, hints) * kind.dtype.itemsize


def made_up(kind: TensorType, below: int, device: torch.device, hints: Hints = NO_HINTS) -> Tensor:
    """The elements of a tensor's storage in one row; floats in [0.5, 1.5), integers below a bound.

    Args:
        below: no integer reaches it.
        hints: of symbolic sizes.
    """
    dtype = torch_dtype(kind.dtype)
    count = storage_bytes(kind, hints) // kind.dtype.itemsize
    if kind.dtype.is_float:
        return (torch.rand(count, device=device) + 0.5).to(dtype)
    most = 3 if dtype is torch.bool else 1 << (8 * kind.dtype.itemsize - 1)
    return torch.randint(min(max(1, below), most - 1), (count,), device=device).to(dtype)


def operand(kind: TensorType, below: int, device: torch.device, hints: Hints) -> Tensor:
    """A tensor of this type with made-up elements."""
    shape, strides = ([number(d, hints) for d in dims] for dims in (kind.shape, kind.strides))
    return made_up(kind, below, device, hints).as_strided(shape, strides)
