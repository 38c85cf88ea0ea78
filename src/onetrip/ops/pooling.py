"""Pooling and its gradients: folds over windows of a tensor.

    max_pool(x)[.., o]             max over k of windows(x)[.., o, k]
    avg_pool(x)[.., o]             sum over k of windows(x)[.., o, k] / number of elements
    max_pool_backward(g)[.., i]    sum over j of covering(g)[.., i, j] where that window chose i
    avg_pool_backward(g)[.., i]    sum over j of covering(g / number)[.., i, j]

The values of small windows alone are spelled out tap by tap: such a pooling fuses like a pointwise
operator. A gradient gathers from the windows that cover an element, so no two writes meet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import product as every
from math import prod
from typing import Any

from ..base.dtype import i64
from ..base.errors import Unsupported
from ..base.sym import Dim, add, floordiv, mul, product
from ..ir.expr import Apply, Expr
from ..ir.graph import Node, Value
from ..ir.monoid import lowest
from ..ir.types import TensorType
from . import arith as m
from . import pooling_reference as reference
from .composite import Outputs, composite, dense, finish, last_dims, tensor, wide
from .movement import load
from .rows import default_form, sample
from .rules import Arg, check_compiled
from .schema import Attrs, Builder, Kind, Movement, Op, Sample, TypeRule
from .shapes import Shape
from .windows import Step, adaptive_steps, attrs_of, steps_of, window_steps

Types = tuple[TensorType, ...]
VALUES_ONLY: Mapping[str, str] = {f"max_pool{n}d": f"max_pool{n}d_values" for n in (2, 3)}
"""Operators by the one that computes their first output alone."""
MOST_TAPS = 25
"""Elements of the largest window that is spelled out tap by tap."""


def _pooled(x: TensorType, steps: Sequence[Step]) -> Shape:
    return (*x.shape[: x.rank - len(steps)], *(s.count for s in steps))


# ---------------------------------------------------------------- extremes


def _steps(x: TensorType, at: Attrs, n: int, counts: Shape | None = None) -> tuple[Step, ...]:
    """The steps of a pooling, adaptive where attributes or the gradient say how many windows."""
    counts = tuple(at["output_size"]) if "output_size" in at else counts
    if counts is not None and "kernel_size" not in at:
        return adaptive_steps(x.shape, counts)
    return window_steps(x.shape, at, n)


def _max_pool_type(n: int, count: int) -> TypeRule:
    def rule(operands: tuple[Arg, ...], at: Attrs) -> Types:
        x = operands[0]
        shape = _pooled(x, _steps(x, at, n))
        return (dense(x.dtype, shape), dense(i64, shape))[:count]

    return rule


def _least_windows(build: Builder, x: Value, steps: Sequence[Step]) -> Value:
    return build("windows", x, value=lowest(x.type.dtype).value, **attrs_of(steps))


def _max_pool(n: int) -> Callable[[Builder, Node], Outputs]:
    def expand(build: Builder, node: Node) -> Outputs:
        x = tensor(node, 0)
        steps = _steps(x.type, node.attr, n)
        taps = _least_windows(build, x, steps)
        dims = last_dims(taps.type.rank, n)
        best = build("argmax", taps, dim=dims)
        return build("max_value", taps, dim=dims), build("tap_place", best, **attrs_of(steps))

    return expand


def _max_pool_values(n: int) -> Callable[[Builder, Node], Outputs]:
    def expand(build: Builder, node: Node) -> Outputs:
        x = tensor(node, 0)
        steps = window_steps(x.type.shape, node.attr, n)
        if prod(s.kernel for s in steps) <= MOST_TAPS and not node.attr.get("ceil_mode"):
            return (_tap_by_tap(build, x, steps),)
        taps = _least_windows(build, x, steps)
        return (build("amax", taps, dim=last_dims(taps.type.rank, n)),)

    return expand


def _tap_by_tap(build: Builder, x: Value, steps: Sequence[Step]) -> Value:
    """The greatest of strided slices of the padded tensor, one for each tap."""
    if any(s.padding for s in steps):
        edges = tuple(p for s in reversed(steps) for p in (s.padding, s.padding))
        x = build("pad", x, pad=edges, value=lowest(x.type.dtype).value)
    dims = last_dims(x.type.rank, len(steps))
    taps: list[Value] = []
    for tap in every(*(range(s.kernel) for s in steps)):
        piece = x
        for dim, k, s in zip(dims, tap, steps, strict=True):
            start = k * s.dilation
            end = add(add(mul(add(s.count, -1), s.stride), 1), start)
            piece = build("slice", piece, dim=dim, start=start, end=end, step=s.stride)
        taps.append(piece)
    return reduce(lambda a, b: build("maximum", a, b), taps)


def _tap_place_read(out: Shape, node: Node) -> Expr:
    """Where the chosen tap of each window lies in the pooled dimensions.

    A tap outside of the tensor is chosen only by a window whose elements are all the least value:
    that window chooses its first element.
    """
    steps = steps_of(node.attr)
    left: Expr = load(node, 0, out)
    place: Expr = m.const(0, i64)
    inner: Dim = 1
    for s, o in reversed(list(zip(steps, out[len(out) - len(steps) :], strict=True))):
        tap: Expr = Apply("remainder", (left, m.const(s.kernel, i64)), i64)
        left = Apply("floordiv", (left, m.const(s.kernel, i64)), i64)
        start = s.start(o)
        if s.padding:
            first = floordiv(add(mul(start, -1), s.dilation - 1), s.dilation)
            tap = m.maximum(tap, m.place(first))
        at = m.add(m.place(start), m.mul(tap, s.dilation))
        place = m.add(place, m.mul(at, m.place(inner)))
        inner = mul(inner, s.size)
    return place


def _tap_place_type(operands: tuple[Arg, ...], at: Attrs) -> Types:
    return (dense(i64, operands[0].shape),)


def _holding(build: Builder, y: Value, steps: Sequence[Step], value: int) -> Value:
    """For each element the values of the windows that hold it, `value` where there are fewer."""
    if any(s.adaptive for s in steps):
        # Element i lies in the windows that would share the dimension of windows among elements.
        turned = attrs_of(adaptive_steps([s.count for s in steps], [s.size for s in steps]))
        return build("windows", y, value=value, **turned)
    return build("covering", y, taps=False, value=value, **attrs_of(steps))


def _max_pool_backward(n: int) -> Callable[[Builder, Node], Outputs]:
    def expand(build: Builder, node: Node) -> Outputs:
        g, x, chosen = (tensor(node, k) for k in range(3))
        steps = _steps(x.type, node.attr, n, g.type.shape[-n:])
        parts = _holding(build, wide(build, g), steps, 0)
        windows = _holding(build, chosen, steps, -1)
        sizes = x.type.shape[-n:]
        places = build("arange", end=product(list(sizes)), dtype=i64)
        own = build("view", places, size=(*sizes, *(1,) * n))
        kept = build("where", build("eq", windows, own), parts, 0.0)
        return finish(build, node, (build("sum", kept, dim=last_dims(kept.type.rank, n)),))

    return expand


def _like_input(operands: tuple[Arg, ...], at: Attrs) -> Types:
    """The gradient of operand 1."""
    return (dense(operands[0].dtype, operands[1].shape),)


def _max_backward_type(n: int) -> TypeRule:
    def rule(operands: tuple[Arg, ...], at: Attrs) -> Types:
        x = operands[1]
        g = operands[0]
        steps = _steps(x, at, n, g.shape[-n:])
        if g.shape != _pooled(x, steps):
            raise Unsupported(f"a gradient of {g.shape} for windows of {steps}")
        if any(s.adaptive for s in steps):
            adaptive_steps(g.shape, x.shape[-n:])
        return _like_input(operands, at)

    return rule


# ---------------------------------------------------------------- means


def _mean_over(build: Builder, x: Value, steps: Sequence[Step], divisor: Value | float) -> Value:
    taps = build("windows", wide(build, x), **attrs_of(steps))
    total = build("sum", taps, dim=last_dims(taps.type.rank, len(steps)))
    return build("div", total, divisor)


def _divisor(build: Builder, steps: Sequence[Step], at: Attrs) -> Value | float:
    """By how many elements each window is divided: one number, or one for each window."""
    given = at.get("divisor_override")
    if given is not None:
        return float(given)
    padded = bool(at.get("count_include_pad", True))
    whole = all(s.padding == 0 or padded for s in steps) and not at.get("ceil_mode")
    if whole and not any(s.adaptive for s in steps):
        return float(prod(s.kernel for s in steps))
    return build("window_sizes", padded=padded, **attrs_of(steps))


def _avg_type(n: int) -> TypeRule:
    def rule(operands: tuple[Arg, ...], at: Attrs) -> Types:
        x = operands[0]
        _check_mean(x, at)
        return (dense(x.dtype, _pooled(x, window_steps(x.shape, at, n))),)

    return rule


def _check_mean(x: TensorType, at: Attrs) -> None:
    if not check_compiled(x.dtype).is_float:
        raise Unsupported(f"a mean of {x.dtype.torch_name}")
    if at.get("divisor_override") == 0:
        raise Unsupported("a mean divided by 0")


def _avg_pool(n: int) -> Callable[[Builder, Node], Outputs]:
    def expand(build: Builder, node: Node) -> Outputs:
        x = tensor(node, 0)
        steps = window_steps(x.type.shape, node.attr, n)
        mean = _mean_over(build, x, steps, _divisor(build, steps, node.attr))
        return finish(build, node, (mean,))

    return expand


def _spread(build: Builder, g: Value, steps: Sequence[Step], at: Attrs) -> Value:
    """g divided by the number of elements of its window, laid on each of them and added up."""
    shares = build("div", wide(build, g), _divisor(build, steps, at))
    parts = _holding(build, shares, steps, 0)
    return build("sum", parts, dim=last_dims(parts.type.rank, len(steps)))


def _avg_pool_backward(n: int) -> Callable[[Builder, Node], Outputs]:
    def expand(build: Builder, node: Node) -> Outputs:
        g, x = tensor(node, 0), tensor(node, 1)
        steps = window_steps(x.type.shape, node.attr, n)
        return finish(build, node, (_spread(build, g, steps, node.attr),))

    return expand


def _adaptive_type(n: int) -> TypeRule:
    def rule(operands: tuple[Arg, ...], at: Attrs) -> Types:
        x = operands[0]
        _check_mean(x, at)
        counts = tuple(at["output_size"])
        if counts != (1,) * n:
            adaptive_steps(x.shape, counts)
        return (dense(x.dtype, (*x.shape[: x.rank - n], *counts)),)

    return rule


def _adaptive_pool(n: int) -> Callable[[Builder, Node], Outputs]:
    def expand(build: Builder, node: Node) -> Outputs:
        x = tensor(node, 0)
        counts = tuple(node.attr["output_size"])
        if counts == (1,) * n:
            return (build("mean", x, dim=last_dims(x.type.rank, n), keepdim=True),)
        steps = adaptive_steps(x.type.shape, counts)
        return finish(build, node, (_mean_over(build, x, steps, _divisor(build, steps, {})),))

    return expand


def _adaptive_backward_type(n: int) -> TypeRule:
    def rule(operands: tuple[Arg, ...], at: Attrs) -> Types:
        g, x = operands
        for a, b in ((x.shape, g.shape), (g.shape, x.shape)):
            adaptive_steps(a, b[-n:])
        return _like_input(operands, at)

    return rule


def _adaptive_backward(n: int) -> Callable[[Builder, Node], Outputs]:
    def expand(build: Builder, node: Node) -> Outputs:
        g, x = tensor(node, 0), tensor(node, 1)
        steps = adaptive_steps(x.type.shape, g.type.shape[-n:])
        return finish(build, node, (_spread(build, g, steps, {}),))

    return expand


# ---------------------------------------------------------------- the table


WINDOWS = attrs_of((Step(6, 3, 3, 2, 1), Step(5, 4, 2)))
X3 = ("f32", (2, 3, 7))
X4 = ("f32", (1, 2, 7, 8))
X5 = ("f32", (1, 1, 5, 4, 6))
CUBE = {"kernel_size": (2, 2, 3), "stride": (2, 1, 2), "padding": (1, 0, 1)}
POOLED = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
MEAN = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")


def _max_ops(n: int, samples: Sequence[Sample], gradients: Sequence[Sample]) -> tuple[Op, ...]:
    called = f"max_pool{n}d"
    return (
        composite(called, default_form(f"{called}_with_indices", ("self",), POOLED),
                  _max_pool_type(n, 2), _max_pool(n), reference.max_pool(n), samples,
                  onnx=("MaxPool",) if n == 2 else ()),
        composite(f"{called}_values", (), _max_pool_type(n, 1), _max_pool_values(n),
                  lambda x, at: reference.max_pool(n)(x, at)[0], samples),
        composite(f"{called}_backward",
                  default_form(f"{called}_with_indices_backward",
                               ("grad_output", "self", "indices"), POOLED),
                  _max_backward_type(n), _max_pool_backward(n), reference.max_pool_backward(n),
                  gradients),
    )  # fmt: skip


def _mean_ops(n: int, samples: Sequence[Sample], gradients: Sequence[Sample]) -> tuple[Op, ...]:
    called = f"avg_pool{n}d"
    return (
        composite(called, default_form(called, ("self",), MEAN), _avg_type(n), _avg_pool(n),
                  reference.avg_pool(n), samples, onnx=("AveragePool",) if n == 2 else ()),
        composite(f"{called}_backward",
                  default_form(f"{called}_backward", ("grad_output", "self"), MEAN), _like_input,
                  _avg_pool_backward(n), reference.avg_pool_backward(n), gradients),
    )  # fmt: skip


def _adaptive_ops(n: int, samples: Sequence[Sample], gradients: Sequence[Sample]) -> tuple[Op, ...]:
    called = f"_adaptive_avg_pool{n}d"
    return (
        composite(called.lstrip("_"), default_form(called, ("self",), ("output_size",)),
                  _adaptive_type(n), _adaptive_pool(n), reference.adaptive_pool(n), samples),
        composite(f"{called}_backward".lstrip("_"),
                  default_form(f"{called}_backward", ("grad_output", "self")),
                  _adaptive_backward_type(n), _adaptive_backward(n),
                  reference.adaptive_backward(n), gradients),
    )  # fmt: skip


def _adaptive_max_ops(n: int, samples: Sequence[Sample], gradients: Sequence[Sample]
                      ) -> tuple[Op, ...]:  # fmt: skip
    called = f"adaptive_max_pool{n}d"
    return (
        composite(called, default_form(called, ("self",), ("output_size",)),
                  _max_pool_type(n, 2), _max_pool(n), reference.max_pool(n), samples),
        composite(f"{called}_backward",
                  default_form(f"{called}_backward", ("grad_output", "self", "indices")),
                  _max_backward_type(n), _max_pool_backward(n), reference.max_pool_backward(n),
                  gradients),
    )  # fmt: skip


_GIVEN: dict[str, Any] = {
    "stride": (2, 1), "padding": (1, 0), "ceil_mode": True, "count_include_pad": False,
    "divisor_override": None,
}  # fmt: skip
_GIVEN3: dict[str, Any] = {
    **CUBE, "ceil_mode": False, "count_include_pad": True, "divisor_override": None,
}  # fmt: skip
OPS: tuple[Op, ...] = (
    *_max_ops(
        2,
        (sample(X4, kernel_size=(3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
         sample(X4, kernel_size=(3, 3), stride=(2, 3), ceil_mode=True),
         sample(("bf16", (1, 2, 6, 7)), kernel_size=(6, 5)), sample(X3, kernel_size=(2,))),
        (sample(("f32", (1, 2, 4, 4)), X4, ("i64", (1, 2, 4, 4)), kernel_size=(3, 3),
                stride=(2, 2), padding=(1, 1), dilation=(1, 1), ceil_mode=False),
         sample(("f32", (1, 2, 4, 6)), X4, ("i64", (1, 2, 4, 6)), kernel_size=(3, 2),
                stride=(2, 1), padding=(1, 0), dilation=(1, 2), ceil_mode=False))),
    *_max_ops(
        3, (sample(X5, **CUBE),),
        (sample(("f32", (1, 1, 3, 3, 3)), X5, ("i64", (1, 1, 3, 3, 3)), dilation=(1, 1, 1),
                ceil_mode=False, **CUBE),)),
    *_mean_ops(
        2,
        (sample(X4, kernel_size=(2, 2)), sample(("bf16", (2, 6, 7)), kernel_size=(3,),
                                                stride=(2,), padding=(1,)),
         sample(X4, kernel_size=(3, 2), **_GIVEN),
         sample(X4, kernel_size=(3, 2), divisor_override=5)),
        (sample(("f32", (1, 2, 4, 7)), X4, kernel_size=(3, 2), **_GIVEN),
         sample(("f32", (1, 2, 4, 7)), X4, kernel_size=(3, 2),
                **{**_GIVEN, "count_include_pad": True, "ceil_mode": False}))),
    *_mean_ops(
        3, (sample(X5, **CUBE), sample(X5, **{**_GIVEN3, "count_include_pad": False})),
        (sample(("f32", (1, 1, 3, 3, 3)), X5, **_GIVEN3),)),
    *_adaptive_ops(
        2,
        (sample(X4, output_size=(1, 1)), sample(X4, output_size=(7, 4)),
         sample(X4, output_size=(3, 5)), sample(("bf16", (1, 2, 4)), output_size=(6, 3))),
        (sample(("f32", (1, 2, 7, 4)), X4), sample(("f32", (1, 2, 3, 5)), X4))),
    *_adaptive_ops(3, (sample(X5, output_size=(1, 1, 1)), sample(X5, output_size=(2, 2, 3))),
                   (sample(("f32", (1, 1, 2, 2, 3)), X5),)),
    *_adaptive_max_ops(
        2, (sample(X4, output_size=(3, 5)), sample(X4, output_size=(7, 4))),
        (sample(("f32", (1, 2, 3, 5)), X4, ("i64", (1, 2, 3, 5))),)),
    *_adaptive_max_ops(3, (sample(X5, output_size=(2, 2, 3)),),
                       (sample(("f32", (1, 1, 2, 2, 3)), X5, ("i64", (1, 1, 2, 2, 3))),)),
    Op("tap_place", Kind.MOVEMENT, (), _tap_place_type, Movement(_tap_place_read),
       reference.tap_place, (sample(("i64", (2, 3, 4)), **WINDOWS),)),
)  # fmt: skip
