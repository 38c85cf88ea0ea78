"""Integer expressions over sizes and axes: shapes, strides and index maps.

    Dim     ::= int | Sym
    Sym     ::= Poly                       a polynomial in atoms with integer coefficients
    atom    ::= Size | Var | Quotient | Remainder | Opaque
    Size    a shape symbol of the model, at least `least`
    Var     an axis of a nest: 0 <= var < extent
    Opaque  a value read at run time (an indirect index); only its bounds are known

Everything is interned, so `is` compares. Arithmetic keeps one canonical form; floor-division and
modulo are folded whenever the bounds of the operands prove it. Division rounds down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, Union

from .intern import Interned

Dim: TypeAlias = Union[int, "Sym"]


class Sym(metaclass=Interned):
    """Base of non-constant integer expressions; use the operators `+ - * // %`."""

    def __add__(self, other: Dim) -> Dim:
        return add(self, other)

    __radd__ = __add__

    def __sub__(self, other: Dim) -> Dim:
        return add(self, mul(other, -1))

    def __rsub__(self, other: Dim) -> Dim:
        return add(other, mul(self, -1))

    def __neg__(self) -> Dim:
        return mul(self, -1)

    def __mul__(self, other: Dim) -> Dim:
        return mul(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return mod(self, other)

    def __rmod__(self, other: Dim) -> Dim:
        return mod(other, self)

    @cached_property
    def text(self) -> str:
        return render(self)

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True, eq=False, repr=False)
class Size(Sym):
    """A symbolic size of the model, named as the capture names it; at least `least`."""

    name: str
    least: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class Var(Sym):
    """An axis variable: 0 <= var < extent."""

    name: str
    extent: Dim


@dataclass(frozen=True, eq=False, repr=False)
class Quotient(Sym):
    """floor(num / den) that no rule could fold."""

    num: Dim
    den: Dim


@dataclass(frozen=True, eq=False, repr=False)
class Remainder(Sym):
    """num mod den (sign of den) that no rule could fold."""

    num: Dim
    den: Dim


@dataclass(frozen=True, eq=False, repr=False)
class Opaque(Sym):
    """An index read at run time: `payload` is the scalar expression, 0 <= value < extent."""

    payload: Any
    extent: Dim


@dataclass(frozen=True, eq=False, repr=False)
class Poly(Sym):
    """sum of coefficient * product(factors), sorted; the constant term has no factors."""

    terms: tuple[tuple[int, tuple[Sym, ...]], ...]


Monomials = dict[tuple[Sym, ...], int]


def _monomials(e: Dim) -> Monomials:
    if isinstance(e, int):
        return {(): int(e)} if e else {}
    if isinstance(e, Poly):
        return {factors: c for c, factors in e.terms}
    return {(e,): 1}


def _order(factors: tuple[Sym, ...]) -> tuple[Any, ...]:
    return (not factors, -len(factors), tuple(f.text for f in factors))


def _rejoin(monomials: Monomials) -> Monomials:
    """n from den * (n // den) + n % den, for any common multiple of the three."""
    for factors, c in list(monomials.items()):
        for position, f in enumerate(factors):
            if not isinstance(f, Remainder) or not c:
                continue
            rest = factors[:position] + factors[position + 1 :]
            others = mul(c, product(rest))
            whole = mul(others, mul(f.den, floordiv(f.num, f.den)))
            wanted = _monomials(whole)
            if wanted and all(monomials.get(k) == v for k, v in wanted.items()):
                left = {k: v for k, v in monomials.items() if k not in wanted and k != factors}
                return _monomials(add(_build(left), mul(others, f.num)))
    return monomials


def _build(monomials: Monomials) -> Dim:
    if any(isinstance(f, Remainder) for factors in monomials for f in factors):
        monomials = _rejoin(monomials)
    kept = [(c, f) for f, c in monomials.items() if c]
    if not kept:
        return 0
    if len(kept) == 1:
        c, factors = kept[0]
        if not factors:
            return c
        if c == 1 and len(factors) == 1:
            return factors[0]
    return Poly(tuple(sorted(kept, key=lambda t: _order(t[1]))))


def add(a: Dim, b: Dim) -> Dim:
    """a + b."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    total = dict(_monomials(a))
    for factors, c in _monomials(b).items():
        total[factors] = total.get(factors, 0) + c
    return _build(total)


def mul(a: Dim, b: Dim) -> Dim:
    """a * b."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    total: Monomials = {}
    for fa, ca in _monomials(a).items():
        for fb, cb in _monomials(b).items():
            factors = tuple(sorted(fa + fb, key=lambda f: f.text))
            total[factors] = total.get(factors, 0) + ca * cb
    return _build(total)


def product(dims: tuple[Dim, ...] | list[Dim]) -> Dim:
    """The product of all dims; 1 for none."""
    total: Dim = 1
    for d in dims:
        total = mul(total, d)
    return total


def _divide_term(c: int, factors: tuple[Sym, ...], den: Dim) -> tuple[int, tuple[Sym, ...]] | None:
    """c * factors / den when it is exact and den is a single monomial."""
    dens = _monomials(den)
    if len(dens) != 1:
        return None
    (den_factors, den_c), = dens.items()
    if c % den_c:
        return None
    rest = list(factors)
    for f in den_factors:
        if f not in rest:
            return None
        rest.remove(f)
    return c // den_c, tuple(rest)


def _split(e: Dim, den: Dim) -> tuple[Dim, Dim]:
    """(q, r) with e == q * den + r, where q gathers the terms that den divides exactly."""
    quotient: Monomials = {}
    rest: Monomials = {}
    for factors, c in _monomials(e).items():
        exact = _divide_term(c, factors, den)
        if exact is None and isinstance(den, int) and den > 0 and abs(c) >= den:
            whole = c // den
            quotient[factors] = quotient.get(factors, 0) + whole
            rest[factors] = rest.get(factors, 0) + (c - whole * den)
        elif exact is None:
            rest[factors] = rest.get(factors, 0) + c
        else:
            quotient[exact[1]] = quotient.get(exact[1], 0) + exact[0]
    return _build(quotient), _build(rest)


def floordiv(a: Dim, b: Dim) -> Dim:
    """floor(a / b), for b > 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 1:
        return a
    quotient, rest = _split(a, b)
    if within(rest, b):
        return quotient
    if isinstance(rest, Quotient):
        return add(quotient, floordiv(rest.num, mul(rest.den, b)))
    if rest == 0:
        return quotient
    return add(quotient, Quotient(rest, b))


def mod(a: Dim, b: Dim) -> Dim:
    """a mod b with the sign of b, for b > 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if b == 1:
        return 0
    _, rest = _split(a, b)
    if within(rest, b):
        return rest
    if isinstance(rest, Remainder) and _split(rest.den, b)[1] == 0:
        return mod(rest.num, b)
    return Remainder(rest, b)


def ceildiv(a: Dim, b: Dim) -> Dim:
    """ceil(a / b), for b > 0."""
    return floordiv(add(a, add(b, -1)), b)


def lower_bound(e: Dim) -> Dim | None:
    """A bound that holds for every value of the axes, over sizes only; None when unknown."""
    return _bound(e, upper=False)


def upper_bound(e: Dim) -> Dim | None:
    """The largest value over the axes, over sizes only; None when unknown."""
    return _bound(e, upper=True)


def _bound(e: Dim, upper: bool) -> Dim | None:
    if isinstance(e, int):
        return e
    total: Dim = 0
    for factors, c in _monomials(e).items():
        part: Dim | None = c
        for f in factors:
            atom = _atom_bound(f, upper if c > 0 else not upper)
            part = None if atom is None or part is None else mul(part, atom)
        if part is None:
            return None
        total = add(total, part)
    return total


def _atom_bound(atom: Sym, upper: bool) -> Dim | None:
    if isinstance(atom, Var | Opaque):
        return add(atom.extent, -1) if upper else 0
    if isinstance(atom, Size):
        return atom
    if isinstance(atom, Remainder):
        return add(atom.den, -1) if upper else 0
    if isinstance(atom, Quotient):
        inner = _bound(atom.num, upper)
        return None if inner is None else floordiv(inner, atom.den)
    return None


def is_nonnegative(e: Dim | None) -> bool:
    """Whether e >= 0 is provable from the lower bounds of its sizes."""
    if e is None:
        return False
    if isinstance(e, int):
        return e >= 0
    total = 0
    for factors, c in _monomials(e).items():
        least = 1
        for f in factors:
            if not isinstance(f, Size):
                least = 0 if isinstance(f, Quotient | Remainder) and _atom_is_nonneg(f) else -1
                if least < 0:
                    return False
            else:
                least *= f.least
        if c < 0 and factors:
            return False
        total += c * least
    return total >= 0


def _atom_is_nonneg(atom: Sym) -> bool:
    return is_nonnegative(_atom_bound(atom, upper=False)) if isinstance(atom, Remainder) else False


def within(e: Dim, limit: Dim) -> bool:
    """Whether 0 <= e < limit is provable for every value of the axes."""
    low, high = lower_bound(e), upper_bound(e)
    if low is None or high is None:
        return False
    return is_nonnegative(low) and is_nonnegative(add(add(limit, -1), mul(high, -1)))


def rebuild(e: Dim, leaf: Callable[[Sym], Dim | None]) -> Dim:
    """e with every atom for which `leaf` answers replaced by the answer."""
    if isinstance(e, int):
        return e
    known = leaf(e)
    if known is not None:
        return known
    if isinstance(e, Poly):
        total: Dim = 0
        for c, factors in e.terms:
            total = add(total, mul(c, product([rebuild(f, leaf) for f in factors])))
        return total
    if isinstance(e, Quotient):
        return floordiv(rebuild(e.num, leaf), rebuild(e.den, leaf))
    if isinstance(e, Remainder):
        return mod(rebuild(e.num, leaf), rebuild(e.den, leaf))
    return e


def substitute(e: Dim, values: Mapping[Sym, Dim]) -> Dim:
    """e with the given variables and sizes replaced."""
    return rebuild(e, lambda atom: values.get(atom))


def atoms(e: Dim) -> Iterator[Sym]:
    """Every Size, Var and Opaque in e, in order of first appearance, with repetitions."""
    if isinstance(e, int):
        return
    if isinstance(e, Poly):
        for _, factors in e.terms:
            for f in factors:
                yield from atoms(f)
    elif isinstance(e, Quotient | Remainder):
        yield from atoms(e.num)
        yield from atoms(e.den)
    else:
        yield e


def coefficient(e: Dim, var: Sym) -> Dim | None:
    """The factor of `var` in e when e is affine in it; None when it is not."""
    if isinstance(e, int):
        return 0
    total: Monomials = {}
    for factors, c in _monomials(e).items():
        rest = list(factors)
        if var in rest:
            rest.remove(var)
            if any(var in atoms(f) for f in rest):
                return None
            total[tuple(rest)] = total.get(tuple(rest), 0) + c
        elif any(var in atoms(f) for f in rest):
            return None
    return _build(total)


def evaluate(e: Dim, lookup: Callable[[Sym], Any]) -> Any:
    """The value of e; `lookup` gives ints or integer arrays for its atoms."""
    if isinstance(e, int):
        return e
    if isinstance(e, Poly):
        total: Any = 0
        for c, factors in e.terms:
            part: Any = c
            for f in factors:
                part = part * evaluate(f, lookup)
            total = total + part
        return total
    if isinstance(e, Quotient):
        return evaluate(e.num, lookup) // evaluate(e.den, lookup)
    if isinstance(e, Remainder):
        return evaluate(e.num, lookup) % evaluate(e.den, lookup)
    return lookup(e)


def render(e: Dim, atom: Callable[[Sym], str] | None = None) -> str:
    """Text of e: `4*i0 + i1`, `(i0 + 1)//3`, `i0 mod 7` as `i0 % 7`."""
    if isinstance(e, int):
        return str(e)
    if isinstance(e, Poly):
        return _render_poly(e, atom)
    if isinstance(e, Quotient):
        return f"({render(e.num, atom)} // {_factor(e.den, atom)})"
    if isinstance(e, Remainder):
        return f"({render(e.num, atom)} % {_factor(e.den, atom)})"
    if atom is not None:
        return atom(e)
    return e.name if isinstance(e, Size | Var) else f"[{getattr(e, 'payload', '?')}]"


def _factor(e: Dim, atom: Callable[[Sym], str] | None) -> str:
    text = render(e, atom)
    return f"({text})" if isinstance(e, Poly) else text


def _render_poly(e: Poly, atom: Callable[[Sym], str] | None) -> str:
    parts: list[str] = []
    for c, factors in e.terms:
        names = [render(f, atom) for f in factors]
        size = [str(abs(c))] if abs(c) != 1 or not names else []
        text = "*".join(size + names)
        sign = "-" if c < 0 else "+"
        parts.append(f"{sign} {text}" if parts else (f"-{text}" if c < 0 else text))
    return " ".join(parts)
