"""Terms of scores in the form of the library's mask: [batch, heads, queries, keys].

Must not know what they do to the scores.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..base.sym import Dim, product
from ..ir.graph import Value
from .heads import Heads, nested, places_in
from .scores import Term
from .writer import Writer


def form_of(term: Term, heads: Heads) -> tuple[tuple[int, ...], tuple[Dim, ...]] | None:
    """How a term's value becomes [*lead, queries, keys]: an order of dimensions and a shape.

    Dimensions are counted in the scores' rank; those of size 1 in the scores stand first.
    """
    places = places_in(term.frame, heads)
    groups = None if places is None else nested(
        [term.frame.shape[k] for k in places.lead], heads.lead
    )  # fmt: skip
    if places is None or groups is None:
        return None
    rank = term.frame.rank
    own = (1,) * (rank - term.value.type.rank) + term.value.type.shape
    named = [*places.lead, *(k for k in (places.queries, places.keys) if k is not None)]
    order = (*(k for k in range(rank) if k not in named), *named)
    shape: list[Dim] = []
    for k, group in zip(places.lead, groups, strict=True):
        shape.extend([1] * len(group) if own[k] == 1 else group)
    for place in (places.queries, places.keys):
        shape.append(1 if place is None else own[place])
    return order, tuple(shape)


def aligned(write: Writer, term: Term, heads: Heads) -> Value | None:
    """A term's value as [batch, heads, queries, keys], sizes of 1 where it repeats."""
    form = form_of(term, heads)
    if form is None:
        return None
    order, shape = form
    x = term.value
    real = [k for k in order if term.frame.shape[k] != 1]
    if real != sorted(real):
        x = write.viewed(x, (1,) * (term.frame.rank - x.type.rank) + x.type.shape)
        x = write.permuted(x, order)
    *lead, queries, keys = shape
    while len(lead) < 2:
        lead.insert(0, 1)
    if len(lead) > 2:
        x, lead = _merged(write, x, lead, heads, (queries, keys))
    return write.viewed(x, (*lead, queries, keys))


def _merged(
    write: Writer, x: Value, lead: list[Dim], heads: Heads, rest: tuple[Dim, Dim]
) -> tuple[Value, list[Dim]]:
    """All but the last of the leading dimensions as one: repeated where only some repeat."""
    *outer, last = lead
    whole = heads.lead[:-1]
    if all(n == 1 for n in outer):
        return x, [1, last]
    if tuple(outer) != whole:
        x = write("expand", write.viewed(x, (*lead, *rest)), size=(*whole, last, *rest))
    return x, [product(whole), last]


def total(write: Writer, addends: Sequence[Term], parts: Sequence[Value]) -> Value | None:
    """The sum of aligned addends; None where there is none."""
    found: Value | None = None
    for term, part in zip(addends, parts, strict=True):
        if term.factor != 1.0:
            part = write("mul", part, term.factor)
        found = part if found is None else write("add", found, part, alpha=1)
    return found
