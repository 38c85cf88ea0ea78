"""Library calls that do more than their product: bias, residual and activation in the epilogue.

    convolution_epilogue(x, w, bias?, other?)  =  activation(convolution(x, w) + bias + other)
    linear_epilogue(x, w, bias?)               =  activation(x @ w.T + bias)

No model calls them: alternatives put them in place of the operators that they stand for, as
`activation_of` names those. Their result is rounded once. Must not know which library has which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..base.sym import Dim, mul, product
from ..ir.graph import Node
from . import activation, arithmetic, library_reference
from .opaque import CONVOLVED, PLAIN, convolution_flops, convolution_type, linear_type
from .rows import sample
from .schema import Attrs, Form, Kind, Op, Opaque

Numbers = tuple[float, ...]
Named = tuple[str, Numbers]
"""An activation by name, with its numbers in order."""

_ENTRIES: Mapping[str, Op] = {op.name: op for op in (*activation.OPS, *arithmetic.OPS)}

_NAMES: Mapping[str, Callable[[Attrs], Named]] = {
    "relu": lambda at: ("relu", ()),
    "relu6": lambda at: ("hardtanh", (0.0, 6.0)),
    "hardtanh": lambda at: (
        "hardtanh", (float(at.get("min_val", -1)), float(at.get("max_val", 1)))),
    "leaky_relu": lambda at: ("leaky_relu", (float(at.get("negative_slope", 0.01)),)),
    "hardswish": lambda at: ("hardswish", ()),
    "sigmoid": lambda at: ("sigmoid", ()),
    "tanh": lambda at: ("tanh", ()),
    "silu": lambda at: ("silu", ()),
    "gelu": lambda at: ("gelu_tanh" if at.get("approximate") == "tanh" else "gelu", ()),
}  # fmt: skip
"""Operators that an epilogue can be, as it names them."""

SPECIAL: Mapping[str, int] = {"sigmoid": 2, "tanh": 1, "silu": 2, "gelu": 2, "gelu_tanh": 1}
"""Special functions for each element, after the product and not beside it. Measured: a CPU's oneDNN
takes 0.45 ns for the silu of a bf16 element and 0.6 to 0.85 of an f32 one, on one core; an H200's
cuBLASLt 0.2 to 0.45 ps for the gelu of a bf16 one. Each is 1 or 2 at the chip's special rate."""


def activation_of(node: Node) -> Named | None:
    """The name and numbers of the activation that a node is, if an epilogue can be it."""
    named = _NAMES.get(node.op)
    return None if named is None or len(node.inputs) != 1 else named(node.attr)


# ------------------------------------------------------------------ references

_AS_OPERATOR: Mapping[str, tuple[str, tuple[str, ...], Attrs]] = {
    "hardtanh": ("hardtanh", ("min_val", "max_val"), {}),
    "leaky_relu": ("leaky_relu", ("negative_slope",), {}),
    "gelu_tanh": ("gelu", (), {"approximate": "tanh"}),
}


def _activated(y: Any, at: Attrs) -> Any:
    name = at["activation"]
    if name == "none":
        return y
    op, named, fixed = _AS_OPERATOR.get(name, (name, (), {}))
    return _ENTRIES[op].reference(y, {**fixed, **dict(zip(named, at["numbers"], strict=True))})


def _np_convolution(x: Any, w: Any, *rest: Any) -> Any:
    *added, at = rest
    bias = added[:1] if at["has_bias"] else []
    y = library_reference.convolution(x, w, *bias, at)
    return _activated(y + added[-1] if at["has_other"] else y, at)


def _np_linear(x: Any, w: Any, *rest: Any) -> Any:
    *bias, at = rest
    y = x @ w.T
    return _activated(y + bias[0] if bias else y, at)


# ------------------------------------------------------------------ costs


def _special(node: Node) -> Dim:
    return mul(product(list(node.output.type.shape)), SPECIAL.get(node.attr["activation"], 0))


def _linear_flops(node: Node) -> Dim:
    x, w = node.values[:2]
    return mul(mul(product(list(x.type.shape)), w.type.shape[0]), 2)


WINDOW = tuple(k for k in CONVOLVED if k not in ("transposed", "output_padding"))
EPILOGUE = ("activation", "numbers")
UNTURNED = (("transposed", False), ("output_padding", 0))
SHAPED = {**PLAIN, **dict(UNTURNED), "numbers": ()}
X4 = ("f32", (2, 4, 7, 8))
WEIGHT = ("f32", (6, 2, 3, 2))
RESULT = ("f32", (2, 6, 4, 6))
OPS: tuple[Op, ...] = (
    Op("convolution_epilogue", Kind.CONTRACTION,
       (Form("onetrip.convolution_epilogue.default", ("input", "weight", "bias?", "other?"),
             (*WINDOW, *EPILOGUE), UNTURNED),),
       convolution_type, Opaque(convolution_flops, _special), _np_convolution,
       (sample(X4, WEIGHT, ("f32", (6,)), RESULT, has_bias=True, has_other=True,
               **{**SHAPED, "activation": "relu"}),
        sample(X4, WEIGHT, ("f32", (6,)), has_bias=True, has_other=False,
               **{**SHAPED, "activation": "hardtanh", "numbers": (0.0, 0.5)}),
        sample(X4, WEIGHT, has_bias=False, has_other=False,
               **{**SHAPED, "activation": "silu"}))),
    Op("linear_epilogue", Kind.CONTRACTION,
       (Form("onetrip.linear_epilogue.default", ("input", "weight", "bias?"), EPILOGUE),),
       linear_type, Opaque(_linear_flops, _special), _np_linear,
       (sample(("f32", (3, 4)), ("f32", (5, 4)), ("f32", (5,)), has_bias=True,
               activation="gelu_tanh", numbers=()),
        sample(("f32", (3, 4)), ("f32", (5, 4)), has_bias=False,
               activation="leaky_relu", numbers=(0.2,)),
        *(sample(("f32", (3, 4)), ("f32", (5, 4)), ("f32", (5,)), has_bias=True,
                 activation=name, numbers=())
          for name in ("none", "gelu", "hardswish", "sigmoid", "tanh")))),
)  # fmt: skip
