"""Who makes plans and source for the explorer: the floors above implement this.

Must not know how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ..plan.plan import Group
from ..report.budget import Budget
from ..report.view import Plan, Planned


@dataclass(frozen=True)
class Written:
    """The source of a group.

    Attributes:
        language: `Triton`, `C++` or `library`.
        values: the value of the graph behind each buffer that the text names.
    """

    language: str
    text: str
    values: Mapping[str, str]


class Workshop(Protocol):
    """A model in one or several sizes, planned for any target."""

    @property
    def name(self) -> str:
        """What the model is called, as on the command line."""

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of the sizes that the model comes in; one at least."""

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the chips that it can be planned for."""

    @property
    def measures(self) -> bool:
        """Whether groups may be run on the device at hand."""

    @property
    def given(self) -> Plan | None:
        """A plan whose groups a page begins with; None: with Eager."""

    @property
    def budget(self) -> Budget | None:
        """What plans may come to; None: anything."""

    def plan(self, size: str, target: str, search: str) -> Plan:
        """The plan of a preset; made once.

        Raises:
            Cancelled: nobody wants it any more.
        """

    def made(self, size: str, target: str, search: str) -> Plan | None:
        """The plan of a preset if it is made already."""

    def source(self, planned: Planned, group: Group) -> Written:
        """The generated text of a group of a draft, or the library's call."""

    def measured(self, planned: Planned, group: Group) -> float:
        """Microseconds of a group on the device at hand.

        Raises:
            UsageError: the target is no device of this machine, or nobody asked to measure.
        """
