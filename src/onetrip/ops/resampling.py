"""Resampling of the last dimensions and its gradient, one dimension after the other.

    y[.., o] = sum over t of w_t(o) x[.., i_t(o)]              one tap, two or four
    dx[.., i] = sum over k of sum over t of w_t(o) g[.., o]    where i_t(o) = i, o = first(i) + k

Places and weights are computed from o, as eager's kernels do, so nothing is read but x. The
gradient gathers from the results that an element reaches, so no two writes meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..base.dtype import DType, f32, f64, i64
from ..base.errors import Unsupported
from ..base.sym import Dim, add, floordiv, mul
from ..ir.expr import Apply, Expr, Position, both, cast, compare, indirect
from ..ir.graph import Node
from ..ir.types import TensorType
from . import arith as m
from .composite import Outputs, composite, dense, finish, last_dims, tensor, wide
from .joining import guarded
from .movement import load
from .rows import default_form, sample
from .rules import Arg, check_compiled
from .schema import Attrs, Builder, Kind, Movement, Op, Sample
from .shapes import Shape

Tap = tuple[Any, Any]
"""(place, weight); a weight of None is 1."""


@dataclass(frozen=True)
class Grid:
    """How one dimension is sampled.

    Attributes:
        mode: `nearest`, `exact`, `linear` or `cubic`.
        size: elements before.
        count: elements afterwards.
        scale: distance of two samples, in elements.
        align: whether the outer samples lie on the outer elements.
        wide: whether places are computed in f64.
    """

    mode: str
    size: int
    count: int
    scale: float
    align: bool
    wide: bool

    @property
    def compute(self) -> DType:
        """In what places and weights are computed."""
        return f64 if self.wide else f32

    def taps(self, o: Any, a: Any) -> list[Tap]:
        """Places (before they are clamped to the dimension) and weights of sample `o`."""
        return _TAPS[self.mode](self, o, a)


def grid(
    mode: str, size: Dim, count: Dim, factor: float | None, align: bool, wide: bool = False
) -> Grid:
    """The grid of a dimension; raises Unsupported where a size is symbolic."""
    if not (isinstance(size, int) and isinstance(count, int)):
        raise Unsupported(f"{count} samples of a dimension of {size}")
    if align:
        scale = (size - 1) / (count - 1) if count > 1 else 0.0
    else:
        scale = 1.0 / factor if factor is not None and factor > 0 else size / count
    wide = wide and mode not in ("nearest", "exact")
    return Grid(mode, size, count, scale if wide else float(np.float32(scale)), align, wide)


# ---------------------------------------------------------------- places and weights

_NUMPY = SimpleNamespace(
    add=lambda x, y: x + x.dtype.type(y) if np.isscalar(y) else x + y,
    sub=lambda x, y: x - x.dtype.type(y) if np.isscalar(y) else x - y,
    mul=lambda x, y: x * x.dtype.type(y) if np.isscalar(y) else x * y,
    maximum=lambda x, y: np.maximum(x, x.dtype.type(y)),
    minimum=lambda x, y: np.minimum(x, x.dtype.type(y)),
    floor=np.floor,
)
_EXPR = SimpleNamespace(
    add=m.add, sub=m.sub, mul=m.mul, maximum=m.maximum, minimum=m.minimum,
    floor=lambda x: Apply("floor", (x,), x.dtype),
)  # fmt: skip


def _nearest(g: Grid, o: Any, a: Any) -> list[Tap]:
    return [(a.floor(a.mul(o, g.scale)), None)]


def _exact(g: Grid, o: Any, a: Any) -> list[Tap]:
    return [(a.floor(a.mul(a.add(o, 0.5), g.scale)), None)]


def _source(g: Grid, o: Any, a: Any) -> Any:
    return a.mul(o, g.scale) if g.align else a.sub(a.mul(a.add(o, 0.5), g.scale), 0.5)


def _split(g: Grid, place: Any, a: Any) -> tuple[Any, Any]:
    """The element before a place, and the distance from it."""
    first = a.minimum(a.floor(place), float(g.size - 1))
    return first, a.minimum(a.maximum(a.sub(place, first), 0.0), 1.0)


def _linear(g: Grid, o: Any, a: Any) -> list[Tap]:
    first, part = _split(g, a.maximum(_source(g, o, a), 0.0), a)
    return [(first, a.add(a.mul(part, -1.0), 1.0)), (a.add(first, 1.0), part)]


SHARP = -0.75
"""The parameter of the cubic convolution (Keys, 1981) that eager uses."""


def _near(t: Any, a: Any) -> Any:
    """((A + 2) t - (A + 3)) t t + 1: the weight within one element."""
    inner = a.sub(a.mul(t, SHARP + 2), SHARP + 3)
    return a.add(a.mul(a.mul(inner, t), t), 1.0)


def _far(t: Any, a: Any) -> Any:
    """((A t - 5 A) t + 8 A) t - 4 A: the weight between one and two elements."""
    inner = a.add(a.mul(a.sub(a.mul(t, SHARP), 5 * SHARP), t), 8 * SHARP)
    return a.sub(a.mul(inner, t), 4 * SHARP)


def _cubic(g: Grid, o: Any, a: Any) -> list[Tap]:
    first, part = _split(g, _source(g, o, a), a)
    rest = a.add(a.mul(part, -1.0), 1.0)
    weights = (_far(a.add(part, 1.0), a), _near(part, a), _near(rest, a),
               _far(a.add(rest, 1.0), a))  # fmt: skip
    return [(a.add(first, float(k - 1)), w) for k, w in enumerate(weights)]


_TAPS: dict[str, Callable[[Grid, Any, Any], list[Tap]]] = {
    "nearest": _nearest,
    "exact": _exact,
    "linear": _linear,
    "cubic": _cubic,
}


def _samples(g: Grid) -> Any:
    return np.arange(g.count, dtype=np.float64 if g.wide else np.float32)


@cache
def places(g: Grid) -> Any:
    """[tap, sample] -> element, for every sample."""
    o = _samples(g)
    return np.stack([np.clip(p, 0, g.size - 1) for p, _ in g.taps(o, _NUMPY)]).astype(np.int64)


@cache
def steady(g: Grid) -> int | None:
    """Samples of each element, where sample o reads just element o // n; else None."""
    n, left = divmod(g.count, g.size)
    if g.mode not in ("nearest", "exact") or left:
        return None
    return n if np.array_equal(places(g)[0], np.arange(g.count) // n) else None


@cache
def reach(g: Grid) -> tuple[int, int, int, int]:
    """(a, b, before, longest): element i reaches samples from i a // b - before on, `longest` many.

    Raises:
        Unsupported: some element reaches far more samples than the others.
    """
    a, b = (g.count - 1, max(g.size - 1, 1)) if g.align else (g.count, g.size)
    low = np.full(g.size, g.count)
    high = np.full(g.size, -1)
    for row in places(g):
        np.minimum.at(low, row, np.arange(g.count))
        np.maximum.at(high, row, np.arange(g.count))
    hit = high >= 0
    middle = np.arange(g.size) * a // b
    before = int((middle - low)[hit].max())
    longest = int((high - middle)[hit].max()) + before + 1
    if longest > 8 * (g.count // g.size + 2):
        raise Unsupported(f"an element of {g.size} reaches {longest} of {g.count} samples")
    return a, b, before, longest


# ---------------------------------------------------------------- one dimension


def _grid_of(at: Attrs) -> Grid:
    return Grid(at["mode"], at["extent"], at["count"], at["scale"], at["align"], at["wide"])


def _at_of(g: Grid, dim: int) -> dict[str, Any]:
    return {"dim": dim, "mode": g.mode, "extent": g.size, "count": g.count, "scale": g.scale,
            "align": g.align, "wide": g.wide}  # fmt: skip


def _sampled_type(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
    x, k = operands[0], at["dim"]
    shape = (*x.shape[:k], at["count"], *x.shape[k + 1 :])
    return (TensorType.dense(check_compiled(x.dtype), shape),)


def _element(g: Grid, place: Expr) -> Dim:
    """A place as an index."""
    if g.size == 1:
        return 0
    return indirect(m.clamp(cast(place, i64), 0, g.size - 1), g.size)


def _sampled_read(out: Shape, node: Node) -> Expr:
    g, k = _grid_of(node.attr), node.attr["dim"]
    dtype = node.output.type.dtype

    def at(place: Dim) -> Expr:
        return load(node, 0, (*out[:k], place, *out[k + 1 :]))

    each = steady(g)
    if each is not None:
        return at(0 if g.size == 1 else out[k] // each)
    taps = g.taps(m.place(out[k], g.compute), _EXPR)
    if len(taps) == 1:
        return at(_element(g, taps[0][0]))
    total: Expr | None = None
    for place, weight in taps:
        term = m.mul(m.to(at(_element(g, place)), dtype.compute), m.to(weight, dtype.compute))
        total = term if total is None else m.add(total, term)
    assert total is not None
    return total


def _reached_type(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
    g, k = operands[0], at["dim"]
    *_, longest = reach(_grid_of(at))
    shape = (*g.shape[:k], at["extent"], *g.shape[k + 1 :], longest)
    return (TensorType.dense(check_compiled(g.dtype), shape),)


def _reached_read(out: Shape, node: Node) -> Expr:
    """What sample first(i) + k gives to element i."""
    g, dim = _grid_of(node.attr), node.attr["dim"]
    a, b, before, _ = reach(g)
    i, k = out[dim], out[-1]
    o = add(add(floordiv(mul(i, a), b), -before), k)
    guard = both(
        compare("ge", Position(o), m.const(0, i64)), compare("lt", Position(o), m.place(g.count))
    )
    here = 0 if g.count == 1 else o
    given = guarded(load(node, 0, (*out[:dim], here, *out[dim + 1 : -1])), guard)
    compute = node.output.type.dtype.compute
    weight: Expr = m.const(0, compute)
    for place, share in g.taps(m.place(o, g.compute), _EXPR):
        element = m.clamp(cast(place, i64), 0, g.size - 1)
        part = m.const(1, compute) if share is None else m.to(share, compute)
        hit = m.where(m.eq(element, m.place(i)), part, m.const(0, compute))
        weight = m.add(weight, hit)
    return m.mul(m.to(given, compute), weight)


def _matrix(g: Grid) -> Any:
    """[sample, element] -> weight."""
    o = _samples(g)
    found = np.zeros((g.count, g.size))
    for place, weight in g.taps(o, _NUMPY):
        at = np.clip(place, 0, g.size - 1).astype(int)
        np.add.at(found, (np.arange(g.count), at), 1.0 if weight is None else weight)
    return found


def _np_sampled(x: Any, at: Attrs) -> Any:
    return np.moveaxis(np.moveaxis(x, at["dim"], -1) @ _matrix(_grid_of(at)).T, -1, at["dim"])


def _np_reached(y: Any, at: Attrs) -> Any:
    g, dim = _grid_of(at), at["dim"]
    a, b, before, longest = reach(g)
    weights, rows = _matrix(g), np.moveaxis(y, dim, -1)
    out = np.zeros((*rows.shape[:-1], g.size, longest))
    for i in range(g.size):
        for k in range(longest):
            o = i * a // b - before + k
            if 0 <= o < g.count:
                out[..., i, k] = rows[..., o] * weights[o, i]
    return np.moveaxis(out, -2, dim)


# ---------------------------------------------------------------- all dimensions


FACTORS = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}
"""Names of the factors that a call gives, for each number of dimensions."""


Shaped = tuple[str, str, int]
"""ATen's name, the mode and the number of dimensions."""


def _grids(kind: Shaped, sizes: Sequence[Dim], at: Attrs, wide: bool) -> tuple[Grid, ...]:
    _, mode, n = kind
    align = bool(at.get("align_corners", False))
    rows = zip(sizes[-n:], at["output_size"], FACTORS[n], strict=True)
    return tuple(grid(mode, i, o, at.get(name), align, wide) for i, o, name in rows)


def _is_weighted(kind: Shaped) -> bool:
    return kind[1] not in ("nearest", "exact")


def _forward(kind: Shaped, attrs: tuple[str, ...], samples: tuple[Sample, ...]) -> Op:
    called, _, n = kind

    def types(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
        x = operands[0]
        _grids(kind, x.shape, at, False)
        return (dense(x.dtype, (*x.shape[:-n], *at["output_size"])),)

    def expand(build: Builder, node: Node) -> Outputs:
        x = tensor(node, 0)
        grids = _grids(kind, x.type.shape, node.attr, x.type.dtype is f64)
        y = wide(build, x) if _is_weighted(kind) else x
        for dim, g in reversed(list(zip(last_dims(y.type.rank, n), grids, strict=True))):
            y = build("sampled", y, **_at_of(g, dim))
        return finish(build, node, (y,))

    def reference(x: Any, at: Attrs) -> Any:
        for dim, g in zip(last_dims(x.ndim, n), _grids(kind, x.shape, at, True), strict=True):
            x = _np_sampled(x, _at_of(g, dim))
        return x

    forms = default_form(called, ("self",), attrs)
    return composite(called.lstrip("_"), forms, types, expand, reference, samples)


def _backward(kind: Shaped, attrs: tuple[str, ...], samples: tuple[Sample, ...]) -> Op:
    called, _, n = kind

    def types(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
        dtype = operands[0].dtype
        for g in _grids(kind, at["input_size"], at, dtype is f64):
            reach(g)
        return (dense(dtype, tuple(at["input_size"])),)

    def expand(build: Builder, node: Node) -> Outputs:
        y = wide(build, tensor(node, 0))
        grids = _grids(kind, node.attr["input_size"], node.attr, y.type.dtype is f64)
        for dim, g in zip(last_dims(y.type.rank, n), grids, strict=True):
            parts = build("reached", y, **_at_of(g, dim))
            y = build("sum", parts, dim=(parts.type.rank - 1,))
        return finish(build, node, (y,))

    def reference(y: Any, at: Attrs) -> Any:
        grids = _grids(kind, at["input_size"], at, True)
        for dim, g in zip(last_dims(y.ndim, n), grids, strict=True):
            y = np.moveaxis(np.moveaxis(y, dim, -1) @ _matrix(g), -1, dim)
        return y

    forms = default_form(f"{called}_backward", ("grad_output",), (*attrs, "input_size"))
    name = f"{called}_backward".lstrip("_")
    return composite(name, forms, types, expand, reference, samples)


def _pair(kind: Shaped) -> tuple[Op, Op]:
    """A resampling and its gradient."""
    _, _, n = kind
    weighted = _is_weighted(kind)
    attrs = ("output_size", *(("align_corners",) if weighted else ()), *FACTORS[n])
    before, after = (1, 2, *(4, 3, 2)[:n]), (6, 5, 2)[:n]
    plain: dict[str, Any] = dict.fromkeys(FACTORS[n])
    one, other = {**plain}, {**plain, FACTORS[n][0]: 1.6}
    if weighted:
        one, other = {**plain, "align_corners": False}, {**plain, "align_corners": True}
    rows = [{"output_size": after, **at} for at in (one, other)]
    forward = tuple(sample((d, before), **at) for d, at in zip(("f32", "bf16"), rows, strict=True))
    backward = tuple(sample(("f32", (1, 2, *after)), input_size=before, **at) for at in rows)
    return _forward(kind, attrs, forward), _backward(kind, attrs, backward)


MODES: tuple[Shaped, ...] = (
    *((f"upsample_nearest{n}d", "nearest", n) for n in (1, 2, 3)),
    *((f"_upsample_nearest_exact{n}d", "exact", n) for n in (1, 2, 3)),
    ("upsample_linear1d", "linear", 1),
    ("upsample_bilinear2d", "linear", 2),
    ("upsample_trilinear3d", "linear", 3),
    ("upsample_bicubic2d", "cubic", 2),
)
_SAMPLES = tuple(
    {**_at_of(grid(mode, 5, count, None, align), 1)}
    for mode, count, align in (("linear", 8, True), ("cubic", 3, False), ("nearest", 10, False))
)
OPS: tuple[Op, ...] = (
    Op("sampled", Kind.ELEMENTWISE, (), _sampled_type, Movement(_sampled_read), _np_sampled,
       tuple(sample(("f32", (2, 5, 3)), **at) for at in _SAMPLES)),
    Op("reached", Kind.ELEMENTWISE, (), _reached_type, Movement(_reached_read), _np_reached,
       tuple(sample(("f32", (2, at["count"], 3)), **at) for at in _SAMPLES)),
    *(op for row in MODES for op in _pair(row)),
)  # fmt: skip
