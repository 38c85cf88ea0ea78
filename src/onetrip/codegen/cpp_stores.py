"""Stores in C++: one element, neighbouring lanes, lanes apart, or lanes at any place.

Must not know: loops, accumulators, threads.
"""

from __future__ import annotations

from ..base.dtype import bf16, f16
from ..base.sym import Opaque, atoms
from ..ir.expr import Cast, Expr
from ..ir.nest import Combine, Store
from .cpp_values import Values

COMBINES: dict[Combine, str] = {
    Combine.ADD: "{0} + {1}",
    Combine.MUL: "{0} * {1}",
    Combine.MAX: "ot::maximum({0}, {1})",
    Combine.MIN: "ot::minimum({0}, {1})",
}


def store_varies(v: Values, stmt: Store) -> bool:
    """Whether a store writes something of its own in each lane."""
    if v.lanes is None:
        return False
    return v.lanes.axis in v.index_needs(stmt.index[0]).free or any(v.varies(e) for e in stmt.roots)


def write_store(v: Values, stmt: Store) -> None:
    """The statement of a store, with all that it needs."""
    place = v.places[stmt.buffer]
    value = stmt.value
    if isinstance(value, Cast) and value.dtype is place.buffer.type.dtype and _rounds(value):
        value = value.arg  # the store itself rounds, to the same bits
    if store_varies(v, stmt):
        _store_lanes(v, stmt, value)
    else:
        _store_one(v, stmt, value)
    v.scopes.changed(stmt.buffer)


def _store_one(v: Values, stmt: Store, value: Expr) -> None:
    text = v.get(value).text
    guard = "" if stmt.guard is None else f"if ({v.get(stmt.guard).text}) "
    pointer = v.pointer(stmt.buffer, stmt.index[0])
    if stmt.combine is not Combine.SET:
        text = COMBINES[stmt.combine].format(f"ot::load_one({pointer})", text)
    v.scopes.line(f"{guard}ot::store_one({pointer}, {text});")


def _store_lanes(v: Values, stmt: Store, value: Expr) -> None:
    (offset,) = stmt.index
    text = v.wide(value)
    mask = v.lane_mask(stmt.guard)
    end = f", {mask});" if mask else ");"
    indirect = any(isinstance(a, Opaque) and v.varies(a.payload) for a in atoms(offset))
    walk = None if indirect else v.walk(offset)
    if walk is None or (stmt.combine is not Combine.SET and walk.stride != 1):
        end = f", {mask or 'true'}"
        rule = COMBINES.get(stmt.combine, "").format("a", "b")
        end += f", [](auto a, auto b) {{ return decltype(a)({rule}); }});" if rule else ");"
        base = v.pointer(stmt.buffer, 0)
        v.scopes.line(f"ot::scatter({base}, {v.index_wide(offset)}, {text}{end}")
        return
    pointer = v.pointer(stmt.buffer, walk.base)
    if stmt.combine is not Combine.SET:
        text = COMBINES[stmt.combine].format(f"ot::load({pointer}{end[:-1]}", text)
    if walk.stride == 1:
        v.scopes.line(f"ot::store({pointer}, {text}{end}")
    else:
        stride = v.index(walk.stride)
        v.scopes.line(f"ot::store_strided({pointer}, {stride}, {text}{end}")


def _rounds(cast: Cast) -> bool:
    """Whether a store rounds as the cast does: 16-bit floats are held wide in registers."""
    return cast.dtype in (bf16, f16) and cast.arg.dtype is cast.dtype.compute
