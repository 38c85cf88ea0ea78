"""Plan: what `onetrip.plan` returns and `onetrip.load_plan` reads.

All figures come from one Document, whether it was planned now or read from a file. A plan made now
also holds its graphs, so that it can be planned again under other wishes. Must not know torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult

from ..base.errors import UsageError
from ..base.lazy import cached_property
from ..base.text import bytes_text, counted, us_text
from ..ir.graph import Graph
from ..plan.choose import Problem, plan_problem
from ..plan.plan import GraphPlan
from ..plan.search import Search
from ..target import Target
from . import page, schema, text
from .keys import Keys, keys_of, listed, short
from .lines import added, constraints_of, raise_all, refused, views_among, wish
from .record import graph_record, totals
from .schema import Alternative, Boundary, Buffer, Document, Group, Line, Refused, Wish


@dataclass(frozen=True)
class Planned:
    """A graph with its plan, and what planning it again needs.

    Attributes:
        role: `inference`, `forward` or `backward`.
        problem: the graph as captured, its alternatives, and how it is planned.
        lines: the wishes that the plan honours, or has on record as refused.
    """

    role: str
    problem: Problem
    plan: GraphPlan
    lines: tuple[Line, ...] = ()

    @property
    def graph(self) -> Graph:
        """The graph that is planned, with the alternatives that pay."""
        return self.plan.graph

    @cached_property
    def keys(self) -> Keys:
        """Names of its calls."""
        return keys_of(self.problem.graph, self.problem.made)


@dataclass(frozen=True)
class Settings:
    """What was asked for, of which chip, and the torch that made the graphs.

    Attributes:
        explorer: opens a page on the model with a plan's groups; the floors above provide it.
    """

    target: Target
    search: Search
    numerics: str
    training: bool
    torch: str
    explorer: Callable[[Plan], Any] | None = field(default=None, compare=False)


class Plan:
    """Which operators of a model share a kernel, why others do not, and what it costs.

    Every figure is of one call; see `schema` for the fields of groups and boundaries.
    """

    def __init__(
        self,
        document: Document,
        planned: tuple[Planned, ...] = (),
        settings: Settings | None = None,
    ) -> None:
        self.document = document
        self.planned = planned
        self.settings = settings

    # -------------------------------------------------------------- figures

    @property
    def target(self) -> str:
        """Name of the chip."""
        return self.document.target

    @property
    def graphs(self) -> tuple[schema.Graph, ...]:
        """One for each graph break, and for training forward and backward."""
        return self.document.graphs

    @property
    def kernels(self) -> int:
        """Kernels launched per call, library calls counted."""
        return self.document.totals.kernels

    @property
    def traffic_bytes(self) -> int:
        """Bytes read and written in device memory."""
        return self.document.totals.traffic_bytes

    @property
    def peak_bytes(self) -> int:
        """Most bytes of intermediates and outputs alive at once; outputs of earlier graphs stay."""
        return self.document.totals.peak_bytes

    @property
    def estimated_us(self) -> float:
        """The cost model's microseconds."""
        return self.document.totals.estimated_us

    @property
    def bound_us(self) -> float:
        """No plan in the planner's vocabulary takes less; see `bound_kind`."""
        return self.document.totals.bound_us

    @property
    def bound_kind(self) -> str:
        """`exact`: some plan reaches the bound; `floor`: perhaps none does."""
        return self.document.totals.bound_kind

    @property
    def generated_share(self) -> float:
        """Share of eager's bytes outside products and attention that is generated."""
        return self.document.totals.generated_share

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups of all graphs, in order of launch."""
        return tuple(g for graph in self.graphs for g in graph.groups)

    @property
    def boundaries(self) -> tuple[Boundary, ...]:
        """Every boundary between groups, with its reason."""
        return tuple(b for graph in self.graphs for b in graph.boundaries)

    @property
    def memory(self) -> tuple[Buffer, ...]:
        """Offsets and live ranges of every buffer."""
        return tuple(b for graph in self.graphs for b in graph.memory)

    @property
    def lines(self) -> tuple[Line, ...]:
        """The cuts, fuses and pins of the user, and those that the model's own code asks for."""
        return tuple(line for graph in self.graphs for line in graph.lines)

    @property
    def refused(self) -> tuple[Refused, ...]:
        """What the model's own code asks for and cannot have, with the reasons."""
        return tuple(r for graph in self.graphs for r in graph.refused)

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """Second ways to compute some of the calls, each taken or not, with its reason."""
        return tuple(a for graph in self.graphs for a in graph.alternatives)

    # -------------------------------------------------------------- wishes

    def cut(self, producer: str, consumer: str) -> Plan:
        """The plan in which these two calls share no kernel.

        Args:
            producer, consumer: an operator (`gelu`), a module path and operator
                (`encoder.layer.0.mlp:gelu`), a node's name, or a key.

        Raises:
            UsageError: a name means nothing or several calls (which are listed), or this plan was
                read from a file and has no graph to plan again.
        """
        return self._with("cut", (producer, consumer))

    def fuse(self, producer: str, consumer: str) -> Plan:
        """The plan in which these two calls share a kernel, with all calls between them.

        Whether it pays is not asked.

        Raises:
            UsageError: as for `cut`; or they may not share one, with the reason.
        """
        return self._with("fuse", (producer, consumer))

    def pin(self, *names: str) -> Plan:
        """The plan in which these calls are one kernel that holds nothing else.

        Raises:
            UsageError: as for `fuse`.
        """
        return self._with("pin", names)

    def _with(self, kind: Wish, names: tuple[str, ...]) -> Plan:
        settings = self.settings
        if settings is None:
            raise UsageError(
                f"a plan that was read from a file cannot be planned again with {kind}",
                expected="a plan of a model",
                found="figures alone",
                next_step=f"onetrip.plan(model, args).{kind}({', '.join(map(repr, names))})",
            )
        for name in names:
            self._refuse_group(kind, name)
        graphs = [(g.name, p.keys) for g, p in zip(self.graphs, self.planned, strict=True)]
        place, line = wish(kind, names, graphs)
        changed = list(self.planned)
        changed[place] = _again(changed[place], line)
        return make_plan(tuple(changed), settings)

    def _refuse_group(self, kind: Wish, name: str) -> None:
        """Raises UsageError for the name of a group, which the next plan may not have."""
        for graph in self.graphs:
            for group in graph.groups:
                if name in (group.name, f"{graph.name}/{group.name}"):
                    raise UsageError(
                        f"{name!r} is a group, and {kind} is about calls",
                        expected="the name of a call",
                        found=f"a group of {listed(dict.fromkeys(map(short, group.nodes)))}",
                        next_step=f"name a call of it: {kind}({short(group.nodes[-1])!r}, ...)",
                    )

    def explore(self) -> Any:
        """Opens the explorer on the model: a page on a local server, as `onetrip explore` has it,
        that begins with the groups of this plan.

        Returns: the running server: its `url`, also shown in notebooks, and `stop()`.

        Raises:
            UsageError: the plan was read from a file, or the extra `explore` is not installed.
        """
        if self.settings is None or self.settings.explorer is None:
            raise UsageError(
                "a plan that was read from a file has no model to explore",
                expected="a plan of a model",
                found="figures alone",
                next_step="onetrip.plan(model, args).explore()",
            )
        return self.settings.explorer(self)

    # -------------------------------------------------------------- files and text

    def save(self, path: str | Path) -> None:
        """Writes the plan file; UsageError when that cannot be done."""
        schema.write(self.document, path)

    @staticmethod
    def load(path: str | Path) -> Plan:
        """The plan in a file; UsageError or OnetripError when there is none."""
        return Plan(schema.read(path))

    def json(self) -> str:
        """The text of the plan file."""
        return schema.encode(self.document)

    def text(self, *, width: int = text.PLAIN_WIDTH, all_boundaries: bool = False) -> str:
        """The tables without colour, no line wider than `width` columns (40 at least)."""
        return text.plain(self.document, width=width, all_boundaries=all_boundaries)

    def __str__(self) -> str:
        return text.shown(self.document)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from text.rich_lines(self.document, options.max_width)

    def _repr_html_(self) -> str:
        return page.fragment(text.blocks(self.document))

    def __repr__(self) -> str:
        kernels, moved = counted(self.kernels, "kernel"), bytes_text(self.traffic_bytes)
        return f"Plan({self.target}: {kernels}, {moved}, {us_text(self.estimated_us)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.document == other.document

    def __hash__(self) -> int:
        return hash(self.json())


def _again(planned: Planned, line: Line) -> Planned:
    """The graph planned under one more wish."""
    lines = added(planned.lines, line)
    plan = plan_problem(planned.problem, constraints_of(lines, planned.keys))
    check_lines(plan, lines, planned.keys)
    return Planned(planned.role, planned.problem, plan, lines)


def check_lines(plan: GraphPlan, lines: Sequence[Line], keys: Keys) -> None:
    """Raises UsageError for the binding lines that a plan does not honour, each with its reason."""
    views = {v.value.name: v.base for v in plan.views}
    raise_all([*views_among(lines, keys, views), *refused(plan.refusals, lines, keys)])


def make_plan(planned: tuple[Planned, ...], settings: Settings) -> Plan:
    """The public plan of graphs that have been planned."""
    records: list[schema.Graph] = []
    roles: dict[str, int] = {}
    for p in planned:
        number = roles[p.role] = roles.get(p.role, 0) + 1
        name = p.role if number == 1 else f"{p.role}{number}"
        records.append(graph_record(name, p.role, p.keys, p.plan, p.lines, p.problem.hints))
    document = Document(
        schema.KIND,
        schema.FORMAT,
        settings.target.name,
        settings.search,
        settings.numerics,
        settings.training,
        totals(records),
        tuple(records),
        settings.torch,
    )
    return Plan(document, planned, settings)
