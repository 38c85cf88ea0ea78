"""What composites share: widening to operation precision, narrowing once, and their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..base.dtype import DType, u8
from ..base.sym import Dim, product
from ..ir.graph import Node, Value
from ..ir.types import TensorType
from .rules import check_compiled, normal_dim, normal_dims
from .schema import Attrs, Builder, Composite, Form, Kind, Op, Sample, TypeRule

Outputs = tuple[Value | None, ...]
CHANNEL_SUM = {"accumulate": "f64"}
"""How eager's batch norms on a CPU add over a channel; a GPU's add in f32."""
ABSENT = TensorType.dense(u8, (0,))
"""The type that stands for an output which the call does not return."""


def wide(build: Builder, x: Value) -> Value:
    """x in its operation precision."""
    return convert(build, x, x.type.dtype.compute)


def convert(build: Builder, x: Value, dtype: DType) -> Value:
    """x in `dtype`; itself when it has it."""
    return x if x.type.dtype is dtype else build("to", x, dtype=dtype)


def tensor(node: Node, number: int) -> Value:
    """Operand `number`, which must be a tensor."""
    x = node.inputs[number]
    assert isinstance(x, Value), f"operand {number} of {node.op} is a number"
    return x


def optional(node: Node, names: Sequence[str], first: int) -> dict[str, Value | None]:
    """Optional tensor operands by name, present ones in order from operand `first`."""
    found: dict[str, Value | None] = {}
    for name in names:
        present = node.attr.get(f"has_{name}", True) and first < len(node.inputs)
        found[name] = tensor(node, first) if present else None
        first += bool(present)
    return found


def reduced_dims(node: Node) -> tuple[int, ...]:
    """The dimensions of operand 0 that the attribute `dim` names."""
    return normal_dims(node.attr.get("dim"), tensor(node, 0).type.rank)


def count_of(x: Value, dims: Sequence[int]) -> Dim:
    """How many elements the dimensions hold together."""
    return product([x.type.shape[k] for k in dims])


def per_channel(build: Builder, v: Value, rank: int, dim: int = 1) -> Value:
    """A vector laid along dimension `dim` of a tensor of that rank."""
    size: list[Dim] = [1] * rank
    size[dim] = v.type.shape[0]
    return v if rank == 1 else build("view", v, size=tuple(size))


def last_dims(rank: int, count: int) -> tuple[int, ...]:
    """The numbers of the last `count` dimensions."""
    return tuple(range(rank - count, rank))


def composite(
    name: str,
    forms: Sequence[Form],
    types: TypeRule,
    expand: Callable[[Builder, Node], Outputs],
    reference: Callable[..., Any],
    samples: Sequence[Sample],
    *,
    kind: Kind = Kind.COMPOSITE,
    onnx: tuple[str, ...] = (),
    doc: str = "",
) -> Op:
    """An operator given by other operators."""
    return Op(
        name, kind, tuple(forms), types, Composite(expand), reference, tuple(samples),
        onnx=onnx, doc=doc,
    )  # fmt: skip


def finish(build: Builder, node: Node, results: Sequence[Value | None]) -> Outputs:
    """Results rounded to the outputs' dtypes; what `output_mask` does not ask for is absent."""
    mask = node.attr.get("output_mask", (True,) * len(results))
    return tuple(
        convert(build, v, o.type.dtype) if v is not None and asked else None
        for v, o, asked in zip(results, node.outputs, mask, strict=True)
    )


def one_dim(x: TensorType, at: Attrs) -> int:
    """The attribute `dim` as a dimension number from the front."""
    return normal_dim(at["dim"], x.rank)


def dense(dtype: DType, shape: Sequence[Dim]) -> TensorType:
    """A row-major tensor of a dtype that kernels compute on."""
    return TensorType.dense(check_compiled(dtype), tuple(shape))
