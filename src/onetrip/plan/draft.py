"""A grouping under a user's hand: atoms are put into one kernel or apart, and priced at once.

    fuse(a, b)  the groups of a and b become one, if that is legal
    cut(A, B)   of every group that holds both: B and all that depends on it there, and the rest

The prices are those of a search, remembered by structure, so that one change of a graph of
thousands of operators costs milliseconds: what a group reads, stores and may reuse is kept until
the group changes, and only the sums over the groups are made again.
Must not know how a draft is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from ..cost.roofline import Cost
from ..cost.sizes import number
from ..ir.graph import Graph
from ..passes.close import Unfusable
from .alive import Alive, facts_of, peak_of
from .assemble import group_of, launched
from .choose import Problem
from .constraints import NO_CONSTRAINTS
from .decision import Decision
from .draft_pool import DraftPool, Form, Grouping
from .evaluate import Evaluator, Priced
from .in_place import written_in_place
from .legality import Legality, refusal
from .memory import MemoryPlan
from .plan import Group, Together
from .pool import Part
from .reasons import reason
from .search import indexed
from .share import OWN_DRAW
from .structure import Names
from .together import may_pay

Pair = tuple[int, int]
T = TypeVar("T")
_Kernel = tuple[tuple[int, ...], Names]
"""The atoms of a group and the values that it stores."""
_Ends = tuple[tuple[int, ...], tuple[int, ...], Names, Names, Names]
"""The atoms of two groups, what each stores, and what one kernel of both would store."""
ENTWINED = "one is computed in the middle of the other"
CIRCLE = "the two halves would wait for each other"
"""Why two atoms of one group cannot be cut."""


class Sums(NamedTuple):
    """Figures of a draft, as of a plan.

    Attributes:
        registers, spill_bytes: of a thread of the generated kernel that needs most of them.
        spilled_bytes: of the traffic, what moves registers out and in.
    """

    kernels: int
    traffic_bytes: int
    peak_bytes: int
    estimated_us: float
    registers: int
    spill_bytes: int
    spilled_bytes: int


Standing = tuple[Sums, Alive, Cost | None]
"""What is known of a group as long as it stands; a library call's cost is none of a launch's."""


class Draft:
    """The groups of one graph, to be changed one pair at a time.

    Args:
        problem: whose target, hints and assembler are asked.
        graph: `problem.graph`, or that of a plan of it, with alternatives.
    """

    def __init__(self, problem: Problem, graph: Graph) -> None:
        structures = indexed(graph, problem.lower(graph))
        self.index = structures.index
        self.evaluator = Evaluator(
            self.index, problem.target, problem.hints, problem.resources, structures=structures
        )
        self.hints = problem.hints
        self.pool = DraftPool(self.index)
        self.legality = Legality(self.pool, self.evaluator, NO_CONSTRAINTS)
        self._prices: dict[int, tuple[tuple[str, ...], Priced | Unfusable]] = {}
        self._standing: dict[int, Standing] = {}
        self._known_alive: dict[_Kernel, Alive] = {}
        self._groups: dict[_Kernel, Group] = {}
        self._paths: dict[_Ends, Decision] = {}
        self._decisions: dict[_Ends, Decision] = {}

    def twin(self) -> Draft:
        """Groups of its own over the same graph; prices and reasons are shared."""
        made = object.__new__(Draft)
        made.__dict__.update(self.__dict__)
        made.pool = DraftPool(self.index)
        made.legality = Legality(made.pool, self.evaluator, NO_CONSTRAINTS)
        made._prices, made._standing = {}, {}
        made.start(self.grouping)
        made._paths = dict(self._paths)
        return made

    # -------------------------------------------------------------- groupings

    @property
    def grouping(self) -> Grouping:
        """The groups: their atoms, and those of them that they own."""
        return self.pool.grouping

    def start(self, grouping: Grouping) -> None:
        """Takes over a grouping; groups that stand already keep what is known of them."""
        wanted = set(grouping)
        known = {self.pool.form(p): key for key, p in self.pool.parts.items()}
        self._paths = {}
        self.pool.exchange(
            [key for form, key in known.items() if form not in wanted],
            [form for form in grouping if form not in known],
        )
        if not self.pool.has_order:
            raise AssertionError("the groups of a plan depend on each other in a circle")

    def grouping_of(self, groups: Sequence[Group]) -> Grouping:
        """The grouping that a plan of the same graph has."""
        known = self.index.by_name
        atoms = [tuple(sorted(known[n].number for n in g.nodes if n in known)) for g in groups]
        homes: dict[int, int] = {}
        for inside in atoms:
            for k in inside:
                homes[k] = homes.get(k, 0) + 1
        made: list[Form] = []
        for group, inside in zip(groups, atoms, strict=True):
            stored = set(group.stored)
            owned = tuple(k for k in inside if homes[k] == 1 or stored & self._makes(k))
            made.append((inside, owned))
        return tuple(sorted(made))

    def _makes(self, atom: int) -> set[str]:
        return {v.name for v in self.index.atoms[atom].node.outputs}

    # -------------------------------------------------------------- changes

    def is_one(self, pair: Pair) -> bool:
        """Whether every kernel that computes the second atom computes the first as well."""
        a, b = pair
        return all(self.pool.parts[h].holds(a) for h in self.pool.homes[b])

    def change(self, attempt: Callable[[], T | None]) -> T | Decision | None:
        """Makes a change whole, or leaves all as it was and answers why it cannot be made."""
        mark, standing, paths = self.pool.mark(), dict(self._standing), self._paths
        self._paths, self.pool.touched = {}, set()
        refused: T | Decision | None = None
        done = False
        try:
            refused = attempt() or self._settled()
            done = refused is None
        finally:
            if done:
                self.pool.touched |= mark["touched"]
            else:
                self.pool.back(mark)
                self._standing, self._paths = standing, paths
        return refused

    def _settled(self) -> Decision | None:
        """Leaves out groups that store nothing any more, all of which is computed again elsewhere;
        why not where a group that a change touched is no kernel."""
        pool = self.pool
        while idle := [
            p.key for p in self._touched() if pool.is_generated(p) and not pool.stores(p)
        ]:
            pool.exchange(idle, ())
        refused = ((p, self._priced(p)) for p in self._touched())
        return next((self._no_kernel(p, x) for p, x in refused if isinstance(x, Unfusable)), None)

    def _touched(self) -> list[Part]:
        parts = self.pool.parts
        return [parts[key] for key in sorted(self.pool.touched & parts.keys())]

    def _no_kernel(self, part: Part, found: Unfusable) -> Decision:
        first, last = (self.index.atoms[part.atoms[k]].name for k in (0, -1))
        return refusal(found, first, last)

    def fuse(self, *pairs: Pair) -> Decision | None:
        """Puts the groups of the atoms of each pair into one; answers why not where that is
        illegal for one of them."""
        return self.change(lambda: next(filter(None, map(self._fuse, pairs)), None))

    def _fuse(self, pair: Pair) -> Decision | None:
        a, b = pair
        while readers := [h for h in self.pool.homes[b] if not self.pool.parts[h].holds(a)]:
            maker = self.pool.parts.get(self.pool.owner[a])
            if maker is None:
                break
            answer = self.legality.check((maker, self.pool.parts[min(readers)]))
            if isinstance(answer, Decision):
                return answer
            self.pool.merge(answer.parts)
        return None

    def cut(self, producers: Iterable[int], consumers: Iterable[int]) -> str | None:
        """Takes two sets of atoms apart wherever they share a group; answers why that cannot be."""
        above, below = set(producers), set(consumers)
        refused = self.change(lambda: self._cut(above, below))
        return refused.sentence if isinstance(refused, Decision) else refused

    def _cut(self, above: set[int], below: set[int]) -> str | None:
        apart = False
        for key in sorted({h for k in below for h in self.pool.homes[k]}):
            part = self.pool.parts[key]
            if above.isdisjoint(part.atoms):
                continue
            lower = self._below(part, below)
            lower |= self._apart(part, above, lower)
            upper = tuple(k for k in part.atoms if k not in lower)
            if upper and not above.isdisjoint(upper):
                self.pool.exchange([key], self._halves(part, upper, tuple(sorted(lower))))
                apart = True
        if not apart:
            return ENTWINED
        return None if self.pool.has_order else CIRCLE

    def _below(self, part: Part, atoms: set[int]) -> set[int]:
        """These atoms of a group, and those of it that depend on them."""
        lower = atoms & set(part.atoms)
        for k in part.atoms:
            if not lower.isdisjoint(self._sources(k)):
                lower.add(k)
        return lower

    def _apart(self, part: Part, above: set[int], lower: set[int]) -> set[int]:
        """Atoms of a group that only the lower half needs: no atom of `above` has to do with them.

        A norm's weights are cast in it and depend on nothing that the norm reads.
        """
        near = (self._below(part, above) - lower) | self._needed(part, above)
        return self._needed(part, lower) - near - lower

    def _needed(self, part: Part, atoms: set[int]) -> set[int]:
        """These atoms of a group, and those of it that they depend on."""
        needed, inside = atoms & set(part.atoms), set(part.atoms)
        for k in reversed(part.atoms):
            if k in needed:
                needed |= self._sources(k) & inside
        return needed

    def _sources(self, atom: int) -> set[int]:
        return {self.index.maker.get(n, -1) for n in self.index.atoms[atom].reads}

    def _halves(self, part: Part, upper: tuple[int, ...], lower: tuple[int, ...]) -> list[Form]:
        """The two groups, without what either computed for the other alone."""
        pool = self.pool
        read = {self.index.maker.get(n, -1) for k in lower for n in self.index.atoms[k].reads}
        orphans = {k for k in upper if pool.owner[k] < 0 and k in read}
        forms = [
            (half, tuple(k for k in half if pool.owner[k] == part.key or k in orphans))
            for half in (upper, lower)
        ]
        return [(atoms, owned) for atoms, owned in forms if owned]

    # -------------------------------------------------------------- figures

    def price(self, part: Part) -> Priced:
        """What a group costs and needs."""
        priced = self._priced(part)
        assert not isinstance(priced, Unfusable), f"{part.atoms}: {priced}"
        return priced

    def _priced(self, part: Part) -> Priced | Unfusable:
        stored = self.pool.stores(part)
        found = self._prices.get(part.key)
        if found is None or found[0] != stored:
            found = self._prices[part.key] = stored, self.evaluator.price(part.atoms, stored)
        return found[1]

    def group(self, part: Part) -> Group:
        """A group as it stands in a plan, with its nest."""
        key = (part.atoms, self.pool.stores(part))
        found = self._groups.get(key)
        if found is None:
            made = group_of(self.pool, self.evaluator, part, 0)
            found = self._groups[key] = replace(made, name=name_of(part))
        return found

    def order(self) -> list[Part]:
        """The groups in an order in which they can run."""
        return self.pool.ordered

    def places(self) -> dict[int, int]:
        """The place of each group in the order, by its key."""
        return self.pool.places

    def sums(self) -> Sums:
        """The figures of all groups together."""
        standing = self._stand()
        if not standing:
            return Sums(0, 0, 0, 0.0, 0, 0, 0)
        figures, alive, _ = zip(*standing, strict=True)
        kernels, traffic, _, us, registers, spill, spilled = zip(*figures, strict=True)
        shared = self.shared()
        return Sums(
            sum(kernels) - sum(len(one.groups) - 1 for one in shared),
            sum(traffic), peak_of(self.index, alive), sum(us) - sum(one.saved_us for one in shared),
            max(registers), max(spill), sum(spilled),
        )  # fmt: skip

    def shared(self) -> tuple[Together, ...]:
        """The launches that several groups share."""
        standing, target = self._stand(), self.evaluator.target

        def reads(place: int) -> bool:
            before, here = standing[place - 1][1], standing[place][1]
            return not before.stored.keys().isdisjoint(here.reads)

        return self.launched()[1] if may_pay([s[2] for s in standing], reads, target) else ()

    def launched(self) -> tuple[MemoryPlan, tuple[Together, ...]]:
        """Where every value lies, and the launches that several groups share."""
        groups = [self.group(p) for p in self.order()]
        targets = written_in_place(self.index, groups)
        target = self.evaluator.target
        return launched(self.index, groups, targets, target, self.hints, lambda _: False)

    def peak(self) -> int:
        """Most bytes of intermediates and outputs alive at once, reuse in place included."""
        return peak_of(self.index, [alive for _, alive, _ in self._stand()])

    def _stand(self) -> list[Standing]:
        """Each group's own figures and what it keeps alive, in order."""
        known, order = self._standing, self.order()
        for key in self.pool.touched | (known.keys() - self.pool.parts.keys()):
            known.pop(key, None)
        self.pool.touched.clear()
        for key in self.pool.parts.keys() - known.keys():
            part = self.pool.parts[key]
            cost = self.price(part).cost if self.pool.is_generated(part) else None
            known[key] = self._figures_of(part), self._alive_of(part), cost
        return [known[part.key] for part in order]

    def launches(self, part: Part) -> bool:
        """Whether a group is a kernel: a seed that is drawn from torch's generator is none."""
        return self.index.atoms[part.atoms[0]].node.op != OWN_DRAW

    def _figures_of(self, part: Part) -> Sums:
        """The figures of one group, whose peak is not asked for."""
        priced = self.price(part)
        need = priced.need
        registers, spill = (need.registers, need.spill_bytes) if need else (0, 0)
        kernels, cost = int(self.launches(part)), priced.cost
        return Sums(kernels, cost.bytes, 0, cost.us, registers, spill, cost.spill_bytes)

    def _alive_of(self, part: Part) -> Alive:
        key = (part.atoms, self.pool.stores(part))
        known = self._known_alive.get(key)
        if known is None:
            facts = facts_of(self.index, self.group(part), lambda dim: number(dim, self.hints))
            known = self._known_alive[key] = facts
        return known

    # -------------------------------------------------------------- reasons

    def why(self, maker: Part, reader: Part) -> Decision:
        """Why two groups are two, with what one kernel would cost."""
        pool, both = self.pool, (maker, reader)
        stored = pool.stored(pool.union(both), both)
        key = (maker.atoms, reader.atoms, pool.stores(maker), pool.stores(reader), stored)
        found = self._decisions.get(key) or self._paths.get(key)
        if found is None:
            apart = self.price(maker).cost.us + self.price(reader).cost.us
            found = reason(self.legality, "best", both, apart)
            known = self._paths if found.code == "convexity" else self._decisions
            known[key] = found
        return found


def name_of(part: Part) -> str:
    """A name that stays when other groups change: the last atom's number, which one group has."""
    return f"K{part.atoms[-1] + 1}"
