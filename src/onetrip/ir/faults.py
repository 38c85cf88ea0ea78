"""What a verifier is made of: named invariants, the faults they find, the report of a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..base.errors import VerifyError
from .listing import Listing

T = TypeVar("T")


@dataclass(frozen=True)
class Fault:
    """One breach of an invariant.

    Attributes:
        subject: the object at fault: its line is marked in the report.
        expected, found: what would be right, and what is there.
    """

    subject: object
    expected: str
    found: str


@dataclass(frozen=True)
class Invariant(Generic[T]):
    """A property that every IR of one level has.

    Attributes:
        name: a few words, stated as what holds.
        breaches: the faults in an IR, in order.
    """

    name: str
    breaches: Callable[[T], Iterator[Fault]]


def check(
    ir: T, invariants: Sequence[Invariant[T]], lines: Callable[[T], Listing], after: str
) -> None:
    """Raises VerifyError for the first breach of the first broken invariant."""
    for invariant in invariants:
        for fault in invariant.breaches(ir):
            where = lines(ir).around(fault.subject)
            raise VerifyError(
                f"a {type(ir).__name__} breaks the invariant: {invariant.name}\n{where}",
                expected=fault.expected,
                found=fault.found,
                where=f"after {after}" if after else None,
                next_step="this is a fault of onetrip; report it with the lines above",
            )


def duplicates(named: Sequence[tuple[str, Any]]) -> Iterator[Fault]:
    """A fault for each subject whose name another one before it has."""
    seen: set[str] = set()
    for name, subject in named:
        if name in seen:
            yield Fault(subject, "a name used once", f"{name} again")
        seen.add(name)
