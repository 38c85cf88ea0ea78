"""How far each operator may stand from eager, per backend: as declared, else derived here.

An operator of exact steps (IEEE arithmetic, comparisons, positions, casts) is matched: both sides
round the same true values. Special functions are as measured for their leaf. Where the order of
summation is free, or eager itself is far from the true value, the rule is BOUNDED.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import count

from ..base.dtype import bf16, f16
from ..ir.expr import Apply, Expr, Load, walk
from ..ir.graph import Node, Origin, Value
from .build import Recorder, sample_node
from .element import element
from .scalar import SCALAR_OPS, Unit
from .schema import (
    BOUNDED,
    MATCHED,
    Composite,
    Elementwise,
    Exactness,
    Movement,
    Op,
    Opaque,
    Random,
    Reduce,
    Scanning,
    ulp,
)
from .table import OPS

BACKENDS = ("cpp", "triton")
SUMMING = frozenset({"sum", "prod", "welford", "online_softmax", "affine", "logaddexp"})
"""Monoids whose result depends on the order of combination."""

# Eager's f32 and f64 kernels of these call other library functions than its compound kernels do;
# all others share theirs with the C++ prelude.
_CPP_ALONE = frozenset({
    "exp", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "tanh", "erf",
    "erfc", "sqrt",
})  # fmt: skip
HALVES = (bf16, f16)
"""Eager's CPU kernels of these share their functions with its compound ones."""
_CPP_FAR = frozenset({"erf", "erfc"})
# Computed on a CPU by formulas of our own where eager's function is far from the true value.
_CPP_OWN = frozenset({"gelu", "gelu_backward"})
_TRITON_MATCHED = frozenset({"exp", "tanh", "log1p", "sin", "sigmoid"})


def of(op: Op) -> Mapping[str, Exactness]:
    """The exactness on every backend."""
    return {backend: _of(op.name, backend) for backend in BACKENDS}


@cache
def _of(name: str, backend: str) -> Exactness:
    op = OPS[name]
    if backend in op.exactness:
        return op.exactness[backend]
    if isinstance(op.body, Elementwise):
        return _worst([_elementwise(node, op.body, backend) for node in _samples(op)])
    if isinstance(op.body, Reduce | Scanning):
        return BOUNDED if op.body.monoid in SUMMING else MATCHED
    if isinstance(op.body, Composite):
        return _worst([_composite(node, op.body, backend) for node in _samples(op)])
    return MATCHED


def of_node(node: Node, backend: str) -> Exactness:
    """The exactness of one call, in the dtypes that it has.

    A library call is eager's own; so are random numbers of a given seed.
    """
    op = OPS.get(node.op)
    if op is None or isinstance(op.body, Opaque | Random | Movement):
        return MATCHED
    if backend in op.exactness:
        return op.exactness[backend]
    if isinstance(op.body, Elementwise):
        return _elementwise(node, op.body, backend)
    if isinstance(op.body, Composite):
        return _composite(node, op.body, backend)
    return _of(node.op, backend)


def is_exact(op: Op) -> bool:
    """Whether an elementwise body has IEEE steps only, so that every correct backend agrees."""
    if not isinstance(op.body, Elementwise):
        return False
    return all(SCALAR_OPS[n].unit is Unit.ALU for n in leaves(op))


def leaves(op: Op) -> frozenset[str]:
    """The scalar operators of one element, over all samples; none of another body."""
    if not isinstance(op.body, Elementwise):
        return frozenset()
    applied = (_applied(node, op.body, "cpp") for node in _samples(op))
    return frozenset(name for names in applied for name in names)


def _samples(op: Op) -> list[Node]:
    return [sample_node(op, number) for number in range(len(op.samples))]


def _worst(found: list[Exactness]) -> Exactness:
    return max(found, key=lambda e: e.ulp)


def _elementwise(node: Node, body: Elementwise, backend: str) -> Exactness:
    """From the leaves of the element's expression."""
    if backend == "cpp" and node.op in _CPP_OWN and node.attr.get("approximate") != "tanh":
        return BOUNDED
    applied = _applied(node, body, backend)
    special = [n for n in applied if SCALAR_OPS[n].unit is Unit.SPECIAL or n in _CPP_ALONE]
    rules = {"cpp": _on_cpp, "triton": _on_triton}
    half = node.outputs[0].type.dtype in HALVES
    return rules[backend](special, len(applied) == 1, half)


def _applied(node: Node, body: Elementwise, backend: str) -> list[str]:
    """The scalar operators of one element."""
    loads = [
        Load(x.name, (0,) * x.type.rank, x.type.dtype) if isinstance(x, Value) else _nothing(node)
        for x in node.inputs
    ]
    value = element(body, node, loads, gpu=backend == "triton")
    return [e.op for e in walk((value,)) if isinstance(e, Apply)]


def _nothing(node: Node) -> Expr:
    """A stand-in for a number, at which `element` does not look."""
    return Load("", (), node.outputs[0].type.dtype)


def _on_cpp(special: list[str], alone: bool, half: bool) -> Exactness:
    """The tanh of f32 is our own, that of f64 MKL's; eager's compound kernels have another."""
    if _CPP_FAR & set(special) or (not alone and not half and "tanh" in special):
        return BOUNDED
    return ulp(1) if alone and not half and set(special) & _CPP_ALONE else MATCHED


def _on_triton(special: list[str], alone: bool, half: bool) -> Exactness:
    specials = {n for n in special if SCALAR_OPS[n].unit is Unit.SPECIAL}
    if not specials:
        return MATCHED
    return MATCHED if alone and specials <= _TRITON_MATCHED else BOUNDED


def _composite(node: Node, body: Composite, backend: str) -> Exactness:
    numbers = count()
    recorder = Recorder(lambda: f"v{next(numbers)}", Origin(), 0)
    body.expand(recorder, node)
    return _worst([MATCHED, *(of_node(n, backend) for n in recorder.nodes)])
