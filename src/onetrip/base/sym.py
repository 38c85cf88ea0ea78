"""Integer expressions over sizes and axes: shapes, strides and index maps.

    Dim     ::= int | Sym
    Sym     ::= Poly                       a polynomial in atoms with integer coefficients
    atom    ::= Size | Var | Quotient | Remainder | Opaque
    Size    a shape symbol of the model, at least `least`
    Var     an axis of a nest: 0 <= var < extent
    Opaque  a value read at run time (an indirect index); only its bounds are known

Everything is interned, so `is` compares. Arithmetic keeps one canonical form; floor-division and
modulo, which round down, are folded whenever the bounds of the operands prove it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from math import gcd, prod
from typing import Any, TypeAlias, Union

from .intern import Interned
from .lazy import cached_property

Dim: TypeAlias = Union[int, "Sym"]
_remembered = lru_cache(1 << 16)  # folding asks the same bounds again at every level


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
        """The expression as `render` prints it."""
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


def monomials(e: Dim) -> Monomials:
    """e as coefficients by product of atoms; the constant has the empty product."""
    if isinstance(e, int):
        return {(): int(e)} if e else {}
    if isinstance(e, Poly):
        return {factors: c for c, factors in e.terms}
    return {(e,): 1}


def _order(factors: tuple[Sym, ...]) -> tuple[Any, ...]:
    return (not factors, -len(factors), tuple(f.text for f in factors))


def _rejoin(parts: Monomials) -> Monomials:
    """n from den * (n // den) + n % den, for any common multiple of the three."""
    for factors, c in list(parts.items()):
        for position, f in enumerate(factors):
            if not isinstance(f, Remainder) or not c:
                continue
            rest = factors[:position] + factors[position + 1 :]
            others = mul(c, product(rest))
            whole = mul(others, mul(f.den, floordiv(f.num, f.den)))
            wanted = monomials(whole)
            present = all(parts.get(k) == v for k, v in wanted.items())
            if wanted and present and factors not in wanted:
                left = {k: v for k, v in parts.items() if k not in wanted and k != factors}
                return monomials(add(from_monomials(left), mul(others, f.num)))
    return parts


def from_monomials(parts: Monomials) -> Dim:
    """The canonical expression of a sum of parts."""
    if any(isinstance(f, Remainder) for factors in parts for f in factors):
        parts = _rejoin(parts)
    kept = [(c, f) for f, c in parts.items() if c]
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
    total = dict(monomials(a))
    for factors, c in monomials(b).items():
        total[factors] = total.get(factors, 0) + c
    return from_monomials(total)


def mul(a: Dim, b: Dim) -> Dim:
    """a * b."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    total: Monomials = {}
    for fa, ca in monomials(a).items():
        for fb, cb in monomials(b).items():
            factors = tuple(sorted(fa + fb, key=lambda f: f.text))
            total[factors] = total.get(factors, 0) + ca * cb
    return from_monomials(total)


def product(dims: tuple[Dim, ...] | list[Dim]) -> Dim:
    """The product of all dims; 1 for none."""
    return reduce(mul, dims) if dims else 1


def _divide_term(c: int, factors: tuple[Sym, ...], den: Dim) -> tuple[int, tuple[Sym, ...]] | None:
    """c * factors / den when it is exact and den is a single monomial."""
    dens = monomials(den)
    if len(dens) != 1:
        return None
    ((den_factors, den_c),) = dens.items()
    if c % den_c:
        return None
    rest = list(factors)
    for f in den_factors:
        if f not in rest:
            return None
        rest.remove(f)
    return c // den_c, tuple(rest)


def _split(e: Dim, den: Dim) -> tuple[Dim, Dim]:
    """(q, r) with e == q * den + r: q gathers what den divides exactly.

    Of an integer den, r's constant is in [0, den) and no coefficient reaches den; of another, r is
    not provably in [-den, 0).
    """
    quotient: Monomials = {}
    rest: Monomials = {}
    for factors, c in monomials(e).items():
        exact = _divide_term(c, factors, den)
        if exact is not None:
            quotient[exact[1]] = quotient.get(exact[1], 0) + exact[0]
        elif isinstance(den, int) and den > 0 and (abs(c) >= den or not factors):
            quotient[factors] = quotient.get(factors, 0) + c // den
            rest[factors] = rest.get(factors, 0) + c % den
        else:
            rest[factors] = rest.get(factors, 0) + c
    q, r = from_monomials(quotient), from_monomials(rest)
    if not isinstance(den, int) and within(add(r, den), den):
        return add(q, -1), add(r, den)
    return q, r


def _coarse(e: Dim, den: Dim) -> tuple[int, Dim, Dim] | None:
    """(g, a, r) with e == g * a + r, 0 <= r < g, and g > 1 a proper divisor of den."""
    if not isinstance(den, int) or den <= 1:
        return None
    steps = {gcd(c, den) for factors, c in monomials(e).items() if factors}
    for g in sorted(steps - {1, den}, reverse=True):
        big: Monomials = {}
        small: Monomials = {}
        for factors, c in monomials(e).items():
            if c % g == 0 or not factors:
                big[factors] = c // g
            if c % g:
                small[factors] = c if factors else c % g
        rest = from_monomials(small)
        if within(rest, g):
            return g, from_monomials(big), rest
    return None


@_remembered
def floordiv(a: Dim, b: Dim) -> Dim:
    """floor(a / b), for b > 0.

    (q * b + r) // b -> q + r // b      (n // d) // b -> n // (d * b)
    (g * a + r) // (g * b) -> a // b    where 0 <= r < g
    """
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    quotient, rest = _split(a, b)
    if rest == 0 or within(rest, b):
        return quotient
    coarse = _coarse(rest, b)
    if coarse is not None and isinstance(b, int):
        return add(quotient, floordiv(coarse[1], b // coarse[0]))
    if isinstance(rest, Quotient):
        return add(quotient, floordiv(rest.num, mul(rest.den, b)))
    return add(quotient, Quotient(rest, b))


@_remembered
def mod(a: Dim, b: Dim) -> Dim:
    """a mod b with the sign of b, for b > 0.

    (q * b + r) % b -> r % b            (n % (k * b)) % b -> n % b
    (g * a + r) % (g * b) -> g * (a % b) + r    where 0 <= r < g
    """
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    _, rest = _split(a, b)
    if rest == 0 or within(rest, b):
        return rest
    coarse = _coarse(rest, b)
    if coarse is not None and isinstance(b, int):
        g, big, small = coarse
        return add(mul(g, mod(big, b // g)), small)
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
    """A bound from above for every value of the axes, over sizes only; None when unknown."""
    return _bound(e, upper=True)


@_remembered
def _bound(e: Dim, upper: bool) -> Dim | None:
    """The sum of the terms' bounds: exact when each axis stands in one term only."""
    total: Dim = 0
    for factors, c in monomials(e).items():
        part = _product_bound(factors, upper if c > 0 else not upper)
        if part is None:
            return None
        total = add(total, mul(c, part))
    return total


def _product_bound(factors: tuple[Sym, ...], upper: bool) -> Dim | None:
    """A product grows with each factor only where no factor can be negative."""
    if len(factors) > 1 and not all(is_nonnegative(f) for f in factors):
        return None
    total: Dim = 1
    for f in factors:
        bound = _atom_bound(f, upper)
        if bound is None:
            return None
        total = mul(total, bound)
    return total


def _atom_bound(atom: Sym, upper: bool) -> Dim | None:
    if isinstance(atom, Var | Opaque | Remainder):
        end = atom.den if isinstance(atom, Remainder) else atom.extent
        return _bound(add(end, -1), True) if upper else 0
    if isinstance(atom, Size):
        return atom
    if isinstance(atom, Quotient) and all(isinstance(a, Size) for a in atoms(atom.den)):
        inner = _bound(atom.num, upper)
        return None if inner is None else floordiv(inner, atom.den)
    return None


@_remembered
def is_nonnegative(e: Dim | None) -> bool:
    """Whether e >= 0 is provable for every value of its axes, from the least sizes."""
    if e is None:
        return False
    low = e if all(isinstance(a, Size) for a in atoms(e)) else lower_bound(e)
    if low is None:
        return False
    least = _extreme(low, upper=False)
    return (least is not None and least >= 0) or is_nonnegative(_without_quotient(low))


def _without_quotient(e: Dim) -> Dim | None:
    """A lower bound of d * e for a quotient n // d in e: n - d + 1 <= d * (n // d) <= n."""
    for factors, c in monomials(e).items():
        for position, f in enumerate(factors):
            rest = product(factors[:position] + factors[position + 1 :])
            if isinstance(f, Quotient) and isinstance(f.den, int) and is_nonnegative(rest):
                others = add(e, mul(-c, product(factors)))
                bound = add(f.num, 1 - f.den if c > 0 else 0)
                return add(mul(f.den, others), mul(mul(c, rest), bound))
    return None


@_remembered
def _extreme(e: Dim, upper: bool) -> int | None:
    """A bound of an expression over sizes as a number; None when unknown."""
    total = 0
    for factors, c in monomials(e).items():
        up = upper if c > 0 else not upper
        parts = [_size_extreme(f, up) for f in factors]
        floors = parts if not up else [_size_extreme(f, upper=False) for f in factors]
        monotone = len(factors) < 2 or all(x is not None and x >= 0 for x in floors)
        if not monotone or any(x is None for x in parts):
            return None
        total += c * prod(x for x in parts if x is not None)
    return total


def _size_extreme(atom: Sym, upper: bool) -> int | None:
    if isinstance(atom, Size):
        return None if upper else atom.least
    if isinstance(atom, Remainder):
        most = _extreme(atom.den, True) if upper else 1
        return None if most is None else most - 1
    if isinstance(atom, Quotient):
        inner = _extreme(atom.num, upper)
        if inner is not None and isinstance(atom.den, int):
            return inner // atom.den
        return 0 if not upper and inner is not None and inner >= 0 else None
    return None


@_remembered
def within(e: Dim, limit: Dim) -> bool:
    """Whether 0 <= e < limit is provable for every value of the axes.

    Axes with no points prove anything, since no point contradicts it.
    """
    high = upper_bound(e)
    return (
        high is not None
        and is_nonnegative(lower_bound(e))
        and is_nonnegative(add(add(limit, -1), mul(high, -1)))
    )


def rebuild(e: Dim, leaf: Callable[[Sym], Dim | None]) -> Dim:
    """e with every atom for which `leaf` answers replaced by the answer."""
    if isinstance(e, int):
        return e
    known = leaf(e)
    if known is not None:
        return known
    if isinstance(e, Poly):
        made = [tuple(rebuild(x, leaf) for x in factors) for _, factors in e.terms]
        if made == [factors for _, factors in e.terms]:
            return e
        total: Monomials = {}
        for (c, _), replaced in zip(e.terms, made, strict=True):
            for f, k in monomials(product(replaced)).items():
                total[f] = total.get(f, 0) + c * k
        return from_monomials(total)
    if isinstance(e, Quotient | Remainder):
        num, den = rebuild(e.num, leaf), rebuild(e.den, leaf)
        return floordiv(num, den) if isinstance(e, Quotient) else mod(num, den)
    return e


def substitute(e: Dim, values: Mapping[Sym, Dim]) -> Dim:
    """e with the given variables and sizes replaced."""
    return rebuild(e, values.get)


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
    if isinstance(e, Quotient | Remainder):
        num, den = evaluate(e.num, lookup), evaluate(e.den, lookup)
        return num // den if isinstance(e, Quotient) else num % den
    return lookup(e)


def render(e: Dim, atom: Callable[[Sym], str] | None = None) -> str:
    """Text of e: `4*i0 + i1`, `((i0 + 1) // 3)`, `(i0 % 7)`."""
    if isinstance(e, int):
        return str(e)
    if isinstance(e, Poly):
        return _render_poly(e, atom)
    if isinstance(e, Quotient):
        return f"({_factor(e.num, atom)} // {_factor(e.den, atom)})"
    if isinstance(e, Remainder):
        return f"({_factor(e.num, atom)} % {_factor(e.den, atom)})"
    if atom is not None:
        return atom(e)
    return e.name if isinstance(e, Size | Var) else f"[{getattr(e, 'payload', '?')}]"


def _factor(e: Dim, atom: Callable[[Sym], str] | None) -> str:
    text = render(e, atom)
    return f"({text})" if isinstance(e, Poly) else text


def _render_poly(e: Poly, atom: Callable[[Sym], str] | None) -> str:
    parts: list[str] = []
    for c, factors in e.terms:
        size = [str(abs(c))] if abs(c) != 1 or not factors else []
        text = "*".join(size + [render(f, atom) for f in factors])
        sign = ("- " if c < 0 else "+ ") if parts else ("-" if c < 0 else "")
        parts.append(sign + text)
    return " ".join(parts)
