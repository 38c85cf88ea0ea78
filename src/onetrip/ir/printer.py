"""The text of all four levels: stable from run to run, and different for different IR.

nest (p0: 4) {
  axis r0: 8
  read x: f32[4,8]
  write y: f32[4]
  %0 = load x[p0, r0]: f32
  %1 = reduce sum[0] over (r0) of (%0): f32
  y[p0] = %1
}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..base.host import Computed
from ..base.sym import Dim, Size, Sym, Var, atoms
from .expr import Contract, Expr, Fold, Prefix, Reduced, Scanned, dims_of
from .graph import Graph, Node, Scalar, Value
from .kernel import Assign, Carry, Kernel, Let, Loop, Scratch, Stmt, parts
from .listing import Listing, Writer, attr_text, name_text, plain_dim, type_text, value_text
from .nest import AxisKind, Buffer, Nest, Store
from .program import Alias, Alloc, Bind, Call, Free, Launch, Program, Step, Update
from .types import TensorType

Printable = Graph | Nest | Kernel | Program


def text(ir: Printable, *, comments: bool = False) -> str:
    """The whole text; with `comments` also where things came from and what they cost."""
    return listing(ir, comments=comments).text


def listing(ir: Printable, *, comments: bool = False) -> Listing:
    """The lines, with the objects that they stand for."""
    made = Listing()
    _LEVELS[type(ir)](made, ir, comments)
    return made


# ------------------------------------------------------------------ graph


def _graph(out: Listing, g: Graph, comments: bool) -> None:
    out.add("graph {")
    out.depth = 1
    for size, source, dim in g.sizes:
        out.add(f"size {_size(size)} from {_source(source)} dim {dim}", size)
    known = {size for size, _, _ in g.sizes}
    results = [o.value for o in g.outputs if isinstance(o, Scalar)]
    _sizes(out, _sizes_in([*_dims(v.type for v in g.values()), *results, *_terms(g)]) - known)
    for v in g.inputs:
        out.add(f"input {value_text(v)}", v)
    for n in g.nodes:
        out.add(_node(n), n, *n.outputs)
    for target, value in g.mutations:
        out.add(f"mutate {name_text(target.name)} = {name_text(value.name)}", target)
    out.add(f"return {', '.join(map(_output, g.outputs))}".rstrip(), g.outputs)
    out.depth = 0
    out.add("}")


def _source(source: str | Computed) -> str:
    return name_text(source) if isinstance(source, str) else attr_text(source)


def _node(n: Node) -> str:
    operands = ", ".join(_output(x) for x in n.inputs)
    outputs = ", ".join(map(value_text, n.outputs))
    attrs = ", ".join(f"{name_text(k)}={attr_text(v)}" for k, v in n.attrs)
    o = n.origin
    asked = (o.regions, o.stored) if o.regions or o.stored else ()
    origin = (o.module, o.line, o.call, *asked)
    return (
        f"{outputs} = {name_text(n.op)}({operands})"
        + (f" {{{attrs}}}" if n.attrs else "")
        + f" call {n.call}"
        + (f" from {attr_text(origin)}" if any(origin) else "")
    )


def _output(x: Value | Scalar | None) -> str:
    if isinstance(x, Value):
        return name_text(x.name)
    return "none" if x is None else f"scalar({attr_text(x.value)})"


def _dims(types: Iterable[TensorType]) -> list[Dim]:
    return [d for t in types for d in (*t.shape, *t.strides)]


def _terms(g: Graph) -> list[Any]:
    """What stands in nodes beside tensors."""
    return [x for n in g.nodes for x in (*n.inputs, *(v for _, v in n.attrs))]


def _sizes_in(values: Iterable[Any]) -> set[Size]:
    return {a for d in _flat(values) for a in atoms(d) if isinstance(a, Size)}


def _flat(values: Iterable[Any]) -> Iterable[Sym]:
    for v in values:
        if isinstance(v, Sym):
            yield v
        elif isinstance(v, Scalar):
            yield from _flat((v.value,))
        elif isinstance(v, tuple):
            yield from _flat(v)


def _size(s: Size) -> str:
    return f"{name_text(s.name)} >= {s.least}"


def _sizes(out: Listing, sizes: Iterable[Size]) -> None:
    for s in sorted(sizes, key=lambda s: (s.name, s.least)):
        out.add(f"size {_size(s)}", s)


# ------------------------------------------------------------------ nest


def _nest(out: Listing, n: Nest, comments: bool) -> None:
    w = Writer(out)
    inner = inner_axes(n)
    space = (
        f"{w.axis(a.var)}: {plain_dim(a.extent)}"
        + ("" if a.kind is AxisKind.PARALLEL else f" {a.kind.value}")
        for a in n.space
    )
    out.add("nest {", n)
    out.depth = 1
    dims = [a.extent for a in (*(x.var for x in n.space), *inner)]
    dims += [d for e in n.expressions for d in dims_of(e)]
    dims += [d for s in n.stores for d in s.index]
    _sizes(out, _sizes_in([*dims, *_dims(b.type for b in n.buffers)]))
    out.add(f"space {', '.join(space)}".rstrip(), *n.space, *(a.var for a in n.space))
    for a in inner:
        out.add(f"axis {w.axis(a)}: {plain_dim(a.extent)}", a)
    _buffers(out, n.buffers)
    for s in n.stores:
        _store(out, w, s)
    out.depth = 0
    out.add("}")


def inner_axes(n: Nest) -> tuple[Var, ...]:
    """The axes of stores, reductions and scans and any other variable, without the space's."""
    found = dict.fromkeys(v for s in n.stores for v in s.axes)
    for e in n.expressions:
        found.update(dict.fromkeys(bound_axes(e)))
        found.update(_variables(e))
    for s in n.stores:
        found.update(dict.fromkeys(a for d in s.index for a in atoms(d) if isinstance(a, Var)))
    space = {a.var for a in n.space}
    return tuple(v for v in found if v not in space)


def bound_axes(e: Expr) -> tuple[Var, ...]:
    """The axes along which an expression joins values."""
    if isinstance(e, Reduced):
        return e.reduction.axes
    if isinstance(e, Fold):
        return e.axes
    return (e.axis,) if isinstance(e, Scanned | Prefix | Contract) else ()


def _variables(e: Expr) -> dict[Var, None]:
    return dict.fromkeys(a for d in dims_of(e) for a in atoms(d) if isinstance(a, Var))


def _buffers(out: Listing, buffers: Iterable[Buffer]) -> None:
    for b in buffers:
        out.add(f"{b.access.value} {name_text(b.name)}: {type_text(b.type)}", b)


def _store(out: Listing, w: Writer, s: Store) -> None:
    w.lines(*s.roots)
    over = f" over {w.axes(s.axes)}" if s.axes else ""
    place = f"{name_text(s.buffer)}[{w.dims(s.index)}]"
    value = f"{s.combine.value} {w.operand(s.value)}"
    out.add(f"{place} {value}{over}{w.condition(s.guard)}", s)


# ------------------------------------------------------------------ kernel


def _kernel(out: Listing, k: Kernel, comments: bool) -> None:
    launch = f"{k.family} warps {k.warps} stages {k.stages}{' backwards' * k.backwards}"
    launch += f"{' reload' * k.reload}{f' resident {k.resident}' * (k.resident > 1)}"
    out.add(f"kernel {name_text(k.name)} {launch} {{", k)
    out.depth = 1
    if comments:
        _facts(out, k)
    for size in k.sizes:
        out.add(f"size {_size(size)}", size)
    _buffers(out, k.buffers)
    _body(out, Writer(out), k.body)
    out.depth = 0
    out.add("}")


def _facts(out: Listing, k: Kernel) -> None:
    f = k.facts
    moved = f"reads {plain_dim(f.bytes_read)} B, writes {plain_dim(f.bytes_written)} B"
    out.add(f"# {moved}, {plain_dim(f.flops)} flops", f)
    for title, values in (("ops", f.ops), ("from", f.origins)):
        if values:
            out.add(f"# {title}: {', '.join(values)}")


def _body(out: Listing, w: Writer, body: tuple[Stmt, ...]) -> None:
    for s in body:
        w.forget()
        _STATEMENTS[type(s)](out, w, s)


def _loop(out: Listing, w: Writer, s: Loop) -> None:
    w.lines(*_payloads(s))
    bounds = "" if s.start == 0 else f" from {w.dim(s.start)}"
    bounds += "" if s.stop is None else f" to {w.dim(s.stop)}"
    head = f"{s.mapping.value} {w.axis(s.axis)}: {w.dim(s.axis.extent)} by {s.tile}{bounds}"
    out.add(f"{head} {{", s, s.axis)
    out.depth += 1
    _body(out, w, s.body)
    out.depth -= 1
    out.add("}")


def _payloads(s: Loop) -> tuple[Expr, ...]:
    dims = (s.start, s.end, s.axis.extent)
    return tuple(a.payload for d in dims for a in atoms(d) if hasattr(a, "payload"))


def _let(out: Listing, w: Writer, s: Let) -> None:
    w.lines(s.value)
    out.add(f"let {name_text(s.name)} = {w.operand(s.value)}", s)


def _carry(out: Listing, w: Writer, s: Carry) -> None:
    w.lines(s.init)
    out.add(f"carry {name_text(s.name)}{w.axes(s.over)} = {w.operand(s.init)}", s)


def _assign(out: Listing, w: Writer, s: Assign) -> None:
    w.lines(*s.values)
    names = ", ".join(map(name_text, s.names))
    out.add(f"set {names} = {', '.join(map(w.operand, s.values))}", s)


def _scratch(out: Listing, w: Writer, s: Scratch) -> None:
    out.add(f"scratch {name_text(s.name)}: {type_text(s.type)}", s)


_STATEMENTS: dict[type, Callable[[Listing, Writer, Any], None]] = {
    Loop: _loop,
    Let: _let,
    Carry: _carry,
    Assign: _assign,
    Scratch: _scratch,
    Store: _store,
}


# ------------------------------------------------------------------ program


def _program(out: Listing, p: Program, comments: bool) -> None:
    out.add(f"program arena {plain_dim(p.arena_bytes)} {{", p)
    out.depth = 1
    for size in p.sizes:
        out.add(f"size {_size(size)}", size)
    for v in p.inputs:
        out.add(f"input {value_text(v)}", v)
    for name, form in p.buffers:
        out.add(f"buffer {name_text(name)}: {type_text(form)}")
    for step in p.steps:
        out.add(_STEPS[type(step)](step), step)
    outputs = (name_text(o) if isinstance(o, str) else _output(o) for o in p.outputs)
    out.add(f"return {', '.join(outputs)}".rstrip(), p.outputs)
    out.depth = 0
    out.add("}")
    launched = (k for s in p.steps if isinstance(s, Launch) for k in parts(s.kernel))
    for kernel in dict.fromkeys(launched):
        _kernel(out, kernel, comments)


def _alloc(s: Alloc) -> str:
    place = "" if s.offset is None else f" at {plain_dim(s.offset)}"
    return f"alloc {value_text(s.value)}{place}"


def _call(s: Call) -> str:
    inputs = ", ".join(map(_output, s.inputs))
    outputs = ", ".join(map(value_text, s.outputs))
    words = {"args": s.args, "kwargs": s.kwargs, "reason": s.reason, "out": s.out}
    more = ", ".join(f"{k}={attr_text(v)}" for k, v in words.items())
    return f"call {outputs} = {name_text(s.target)}({inputs}) {{{more}}}"


_STEPS: dict[type[Step], Callable[[Any], str]] = {
    Bind: lambda s: f"bind {_size(s.size)} from {_source(s.source)} dim {s.dim}",
    Alloc: _alloc,
    Alias: lambda s: f"alias {value_text(s.value)} = {name_text(s.source)} + {plain_dim(s.offset)}",
    Launch: lambda s: (
        f"launch {name_text(s.kernel.name)}({', '.join(map(name_text, s.arguments))})"
    ),
    Call: _call,
    Update: lambda s: f"update {name_text(s.target)} = {name_text(s.value)}",
    Free: lambda s: f"free {name_text(s.value)}",
}

_LEVELS: dict[type, Callable[[Listing, Any, bool], None]] = {
    Graph: _graph,
    Nest: _nest,
    Kernel: _kernel,
    Program: _program,
}
