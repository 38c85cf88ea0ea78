"""Lowering: every primitive node of a graph becomes the nest that it computes.

    y = add(x, b)     y[y_0, y_1] = f32(x[y_0, y_1]) + f32(b[y_1]), cast to y's dtype
    s = sum(x, [1])   s[s_0] = cast(sum over s_r0 of f32(x[s_0, s_r0]))

Dimensions of extent 1 have no axis. Every rounding is a Cast: operands are cast to the compute
dtype, the body is evaluated there, the result is cast once to the output's dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..base.dtype import DType, f32, f64
from ..base.errors import OnetripError
from ..base.sym import Dim, Sym, Var, product
from ..ir.expr import Expr, Load, Position, Reduced, Reduction, Rng, Scanned, cast, walk
from ..ir.graph import Graph, Node, Operand, Scalar, Value
from ..ir.monoid import MONOIDS, number
from ..ir.nest import Access, Axis, Buffer, Nest, Store
from ..ops.element import element
from ..ops.schema import Elementwise, Movement, Op, Random, Reduce, Scanning
from ..ops.table import OPS

Index = tuple[Dim, ...]


def lower(graph: Graph, gpu: bool = False) -> dict[str, Nest]:
    """The nest of every node that has one, by the name of its output.

    Library calls and externs have none; composites must have been expanded before. `gpu`: follow
    eager's GPU kernels where they round otherwise than its CPU ones.
    """
    return dict(Lowering(gpu)(graph))


class Lowering:
    """`lower` for graphs that have nodes in common: each is lowered once, when it is asked for.

    What is known of a node holds for all that differ from it in names only, so of a deep graph few
    are asked for.
    """

    def __init__(self, gpu: bool) -> None:
        self._gpu = gpu
        self._known: dict[str, tuple[Node, Nest]] = {}

    def __call__(self, graph: Graph) -> Mapping[str, Nest]:
        """The nest of every node that has one, made at the first look-up."""
        primitive = {n.name: n for n in graph.nodes if n.op in OPS and is_primitive(OPS[n.op])}
        return _Nests(primitive, self.nest)

    def nest(self, node: Node) -> Nest:
        """The nest of a primitive node."""
        known = self._known.get(node.name)
        if known is None or known[0] is not node:
            known = self._known[node.name] = (node, lower_node(node, self._gpu))
        return known[1]


class _Nests(Mapping[str, Nest]):
    """Nests of nodes by name."""

    def __init__(self, nodes: Mapping[str, Node], nest: Callable[[Node], Nest]) -> None:
        self._nodes = nodes
        self._nest = nest

    def __getitem__(self, name: str) -> Nest:
        return self._nest(self._nodes[name])

    def __contains__(self, name: object) -> bool:
        return name in self._nodes

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)


def is_primitive(op: Op) -> bool:
    """Whether an operator lowers to a nest of its own."""
    return type(op.body) in _LOWERINGS


def lower_node(node: Node, gpu: bool = False) -> Nest:
    """The nest of one primitive node."""
    op = OPS[node.op]
    try:
        axes, inner, value = _LOWERINGS[type(op.body)](op.body, node, gpu)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise OnetripError(
            f"the body of {node.op} does not fit the node {node.name}",
            expected=f"operands as in the entry of {node.op} in ops/",
            found=f"{[_form(x) for x in node.inputs]} {dict(node.attr)}: {error!r}",
            where=str(node.origin),
            next_step="report this with the model's source line",
        ) from error
    out = node.output
    reads = {v.name: v for v in node.values}
    used = {e.buffer for e in _loads(value)}
    buffers = [Buffer(v.name, v.type, Access.READ) for n, v in reads.items() if n in used]
    buffers.append(Buffer(out.name, out.type, Access.WRITE))
    space = tuple(Axis(v) for v in axes if isinstance(v, Var) and v not in inner)
    store = Store(out.name, axes, cast(value, out.type.dtype), inner)
    return Nest(space, tuple(buffers), (store,))


def _loads(value: Expr) -> list[Load]:
    return [e for e in walk((value,)) if isinstance(e, Load)]


def _form(x: Operand) -> Any:
    return x.type if isinstance(x, Value) else x.value


def output_axes(value: Value) -> Index:
    """One axis for each dimension of a value; 0 where the extent is 1."""
    shape = value.type.shape
    return tuple(0 if s == 1 else Var(f"{value.name}_{k}", s) for k, s in enumerate(shape))


def _broadcast(value: Value, axes: Index) -> Load:
    """The element of a broadcast operand that meets the output element `axes`."""
    shape = value.type.shape
    own = axes[len(axes) - len(shape) :]
    index = tuple(0 if s == 1 else a for s, a in zip(shape, own, strict=True))
    return Load(value.name, index, value.type.dtype)


def scalar(value: bool | int | float | Sym, dtype: DType) -> Expr:
    """A Python number, or a symbolic size, as an expression of the dtype."""
    if isinstance(value, Sym):
        return cast(Position(value), dtype)
    return number(value, dtype)


def _operand(x: Operand, dtype: DType, axes: Index) -> Expr:
    if isinstance(x, Scalar):
        return scalar(x.value, dtype)
    return cast(_broadcast(x, axes), dtype)


def _elementwise(body: Elementwise, node: Node, gpu: bool) -> tuple[Index, tuple[Var, ...], Expr]:
    axes = output_axes(node.output)
    loaded = tuple(
        _broadcast(x, axes) if isinstance(x, Value) else scalar(x.value, f64) for x in node.inputs
    )
    return axes, (), element(body, node, loaded, gpu)


def _movement(body: Movement, node: Node, gpu: bool) -> tuple[Index, tuple[Var, ...], Expr]:
    axes = output_axes(node.output)
    return axes, (), body.read(axes, node)


def _random(body: Random, node: Node, gpu: bool) -> tuple[Index, tuple[Var, ...], Expr]:
    """The last operand is the seed; the number drawn is that of the element's linear index."""
    axes = output_axes(node.output)
    *rest, seed = node.inputs
    assert isinstance(seed, Value)
    linear: Dim = 0
    for a, size in zip(axes, node.output.type.shape, strict=False):
        linear = linear * size + a
    key = Load(seed.name, (0,) * seed.type.rank, seed.type.dtype)
    compute = node.output.type.dtype.compute
    operands = tuple(_operand(x, compute, axes) for x in rest)
    uniform = Rng(key, linear, rounds=body.rounds)
    return axes, (), body.body(operands, uniform, node.attr)


def _element(x: Value, at: Index) -> Expr:
    return cast(Load(x.name, at, x.type.dtype), x.type.dtype.compute)


def _reduce(body: Reduce, node: Node, gpu: bool) -> tuple[Index, tuple[Var, ...], Expr]:
    (x, *_) = node.values
    reduced = body.axes(node)
    keeps = len(node.output.type.shape) == len(x.type.shape)
    axes = output_axes(node.output)
    kept = iter(a for k, a in enumerate(axes) if not (keeps and k in reduced))
    at: list[Dim] = []
    inner: list[Var] = []
    position: Dim = 0
    for k, size in enumerate(x.type.shape):
        if k not in reduced:
            at.append(next(kept))
            continue
        axis: Dim = 0 if size == 1 else Var(f"{node.name}_r{k}", size)
        position = position * size + axis
        at.append(axis)
        if isinstance(axis, Var):
            inner.append(axis)
    lift = body.lift(_element(x, tuple(at)), position, node)
    held = lift
    if not gpu and node.attr.get("accumulate") == "f64":
        held = tuple(cast(e, f64) if e.dtype is f32 else e for e in lift)
    folded = _folded(body.monoid, tuple(inner), held)
    state = tuple(cast(wide, e.dtype) for wide, e in zip(folded, lift, strict=True))
    count = product([x.type.shape[k] for k in reduced])
    return axes, (), body.finish(state if inner else lift, count, node)


def _folded(monoid: str, inner: tuple[Var, ...], lift: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The state after all elements; of no elements the neutral one, and nothing is loaded."""
    if any(axis.extent == 0 for axis in inner):
        return MONOIDS[monoid].identity(tuple(e.dtype for e in lift))
    reduction = Reduction(monoid, inner, lift)
    return tuple(Reduced(reduction, k, e.dtype) for k, e in enumerate(lift))


def _scan(body: Scanning, node: Node, gpu: bool) -> tuple[Index, tuple[Var, ...], Expr]:
    operands = node.values
    axes = output_axes(node.output)
    axis = axes[body.axis(node)] if axes else 0
    lift = body.lift(tuple(_element(x, axes) for x in operands), axis, node)
    if body.wide and not gpu and operands[0].type.dtype is f32:
        lift = tuple(cast(e, f64) if e.dtype is f32 else e for e in lift)
    component = body.component
    if not isinstance(axis, Var):
        return axes, (), lift[component]
    kind, reverse = lift[component].dtype, body.reverse(node)
    return axes, (axis,), Scanned(body.monoid, axis, lift, component, kind, reverse)


_LOWERINGS: dict[type, Callable[[Any, Node, bool], tuple[Index, tuple[Var, ...], Expr]]] = {
    Elementwise: _elementwise,
    Movement: _movement,
    Random: _random,
    Reduce: _reduce,
    Scanning: _scan,
}
