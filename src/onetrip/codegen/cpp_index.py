"""Index arithmetic in C++: integer expressions as text, and how an offset moves along the lanes.

Must not know: values, loads, loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..base.affine import coefficient
from ..base.sym import (
    Dim,
    Poly,
    Quotient,
    Remainder,
    Sym,
    Var,
    add,
    atoms,
    is_nonnegative,
    lower_bound,
    mod,
    mul,
    product,
    rebuild,
)

# Every lane count in use (4, 8, 16) divides this: what holds for 16 lanes holds for all.
MOST_LANES = 16
LEAST_LANES = 4


def dim_text(d: Dim, atom: Callable[[Sym], str]) -> str:
    """C++ text of an index; `atom` names its variables, sizes and run-time values."""
    if isinstance(d, int):
        return str(d)
    if isinstance(d, Poly):
        return _sum_text(d, atom)
    if isinstance(d, Quotient | Remainder):
        return _division_text(d, atom)
    return atom(d)


def _division_text(d: Quotient | Remainder, atom: Callable[[Sym], str]) -> str:
    num, den = dim_text(d.num, atom), dim_text(d.den, atom)
    divides = isinstance(d, Quotient)
    if not is_nonnegative(lower_bound(d.num)):
        return f"ot::{'floor_quotient' if divides else 'floor_modulo'}({num}, {den})"
    sign = "/" if divides else "%"
    return f"({_factor(d.num, num)} {sign} {_factor(d.den, den)})"


def _factor(d: Dim, text: str) -> str:
    return f"({text})" if isinstance(d, Poly) else text


def _sum_text(d: Poly, atom: Callable[[Sym], str]) -> str:
    text = ""
    for c, factors in d.terms:
        names = [dim_text(f, atom) for f in factors]
        number = [str(abs(c))] if abs(c) != 1 or not names else []
        part = " * ".join(number + names)
        sign = "-" if c < 0 else "+"
        text = f"{text} {sign} {part}" if text else (f"-{part}" if c < 0 else part)
    return text


def terms(d: Dim) -> Iterator[Dim]:
    """The summands of d."""
    if isinstance(d, Poly):
        for c, factors in d.terms:
            yield mul(c, product(list(factors)))
    elif d != 0:
        yield d


@dataclass(frozen=True)
class Walk:
    """How an offset moves along the lanes of one vector: `base + stride * lane`."""

    base: Dim
    stride: Dim


def walk_of(d: Dim, lane: Var) -> Walk | None:
    """The offset's walk along `lane`, where the lane variable names the first lane; else None.

    A vector starts at a multiple of its lanes, so `(lane + 16 k) // 64` is one number for all of
    them and `(lane + 16 k) % 64` counts up by one.
    """
    steady: dict[Sym, Dim] = {}

    def uniform(atom: Sym) -> Dim | None:
        if isinstance(atom, Quotient | Remainder) and lane in atoms(atom):
            if not _stays_in_block(atom, lane):
                return None
            steady[atom] = 0 if isinstance(atom, Quotient) else 1
            return 0 if isinstance(atom, Quotient) else lane
        return None

    flat = rebuild(d, uniform)
    stride = coefficient(flat, lane)
    if stride is None or any(lane in atoms(a) for a in _opaque_like(flat)):
        return None
    return Walk(d, stride)


def _opaque_like(d: Dim) -> Iterator[Sym]:
    """Atoms of d that hide what they read: quotients and remainders left over."""
    parts = [f for _, factors in d.terms for f in factors] if isinstance(d, Poly) else [d]
    yield from (p for p in parts if isinstance(p, Quotient | Remainder))


def _stays_in_block(atom: Quotient | Remainder, lane: Var) -> bool:
    if not isinstance(atom.den, int) or atom.den % MOST_LANES:
        return False
    rest = add(atom.num, mul(lane, -1))
    return coefficient(atom.num, lane) == 1 and mod(rest, MOST_LANES) == 0


def divides(count: int, d: Dim) -> bool:
    """Whether `count` provably divides d."""
    return mod(d, count) == 0
