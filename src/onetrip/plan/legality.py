"""May these groups be one kernel? The answer is the fused group's price, or a Decision.

Cheap rules first: library calls, the user's cuts, size, order; then one fuse() attempt, memoised by
structure; then the chip's limits. Must not know whether the merge would pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..base.dtype import COMPILED
from ..cost.occupancy import Need
from ..cost.roofline import call_dtype, is_anchor, matrix_rate
from ..ir.graph import Node
from ..passes.close import Unfusable
from .constraints import Constraints
from .decision import Decision, Evidence, IfFused, decide
from .evaluate import Evaluator, Priced
from .peak import Divided, parting
from .pool import Part, Pool, bits

MOST_MEMBERS = 128
"""Operators of one generated kernel: beyond it compile time grows faster than any saving."""
SPILL_SHARE = 16.0
"""Spilled registers / registers of a thread above which no kernel is built: a spill below it is
legal and has its price."""


COUNTED = {
    "size": ("size of one kernel", "expressions"),
    "held-rows": ("elements of a row on chip", "elements"),
}
"""What `Unfusable.count` counts, by code."""


@dataclass(frozen=True)
class Fused:
    """Groups that may be one."""

    parts: tuple[Part, ...]
    atoms: tuple[int, ...]
    stored: tuple[str, ...]
    priced: Priced


class Legality:
    """Legality of merges in one pool, under the user's constraints.

    Attributes:
        divided: atoms that would hold more memory than eager does if they shared a kernel.
    """

    def __init__(self, pool: Pool, evaluator: Evaluator, constraints: Constraints) -> None:
        self.pool = pool
        self.evaluator = evaluator
        self.divided: Divided = {}
        self._cuts = constraints.cuts
        self._cut_names = frozenset(n for pair in constraints.cut for n in pair)

    def check(self, parts: Sequence[Part], clones: Sequence[int] = ()) -> Fused | Decision:
        """The fused group, or why the parts cannot be one (first reason that holds).

        Args:
            clones: atoms to be recomputed in it.
        """
        refused = self._refused(parts)
        if refused is not None:
            return refused
        atoms = tuple(sorted({*self.pool.union(parts), *clones}))
        return self._attempt(parts, atoms, parts)

    def check_clone(self, producer: Part, reader: Part) -> Fused | Decision:
        """The reader with the producer recomputed inside it, or why that cannot be."""
        for rule in (self._library, self._user, self._size, self._memory):
            refused = rule((producer, reader))
            if refused is not None:
                return refused
        return self._attempt((producer, reader), self.pool.union((producer, reader)), (reader,))

    def may_be_one(self, parts: Sequence[Part]) -> bool:
        """Whether nothing but their nests can keep the parts apart; costs next to nothing."""
        return self._refused(parts) is None

    def _refused(self, parts: Sequence[Part]) -> Decision | None:
        rules = (self._library, self._user, self._size, self._order, self._memory)
        return next((found for rule in rules if (found := rule(parts)) is not None), None)

    def group(self, atoms: tuple[int, ...], stored: tuple[str, ...]) -> Priced | None:
        """The price of atoms as one group that stores these values; None when it may not be.

        That no path leaves the group and comes back is the caller's to know.
        """
        if len(atoms) > MOST_MEMBERS or self.is_cut(atoms) or parting(atoms, self.divided):
            return None
        priced = self.evaluator.price(atoms, stored)
        if isinstance(priced, Unfusable):
            return None
        refused = None if priced.need is None or len(atoms) == 1 else self._limits(priced.need)
        return priced if refused is None else None

    def is_cut(self, atoms: Sequence[int]) -> bool:
        """Whether the user wants two of the atoms apart."""
        if not self._cut_names:
            return False
        names = {self.pool.index.atoms[k].name for k in atoms} & self._cut_names
        return any(pair <= names for pair in self._cuts)

    def label(self, part: Part) -> str:
        """A group by its last node, which is what a reader of the plan looks for."""
        return self.pool.index.atoms[part.atoms[-1]].name

    # -------------------------------------------------------------- rules

    def _library(self, parts: Sequence[Part]) -> Decision | None:
        for part in parts:
            if self.pool.is_generated(part):
                continue
            others = [p for p in parts if p is not part]
            neighbour = self._beside(part, others[0]) if others else self.label(part)
            return self._library_decision(part, neighbour)
        return None

    def _beside(self, part: Part, other: Part) -> str:
        """The node of another group that reads what a group makes, or makes what it reads."""
        atoms, maker = self.pool.index.atoms, self.pool.index.maker

        def reads(k: int) -> set[int]:
            return {maker[n] for n in atoms[k].reads if n in maker}

        readers = [k for k in other.atoms if not reads(k).isdisjoint(part.atoms)]
        made = {m for k in part.atoms for m in reads(k)}
        near = [*readers, *(k for k in reversed(other.atoms) if k in made)]
        return atoms[near[0]].name if near else self.label(other)

    def _library_decision(self, part: Part, neighbour: str) -> Decision:
        atom = self.pool.index.atoms[part.atoms[0]]
        node, target = atom.node, self.evaluator.target
        if is_anchor(node):
            cost = self.evaluator.library(atom).cost
            ridge = matrix_rate(target, call_dtype(node)) / target.copy_bandwidth
            found = Evidence("arithmetic intensity", cost.intensity, "FLOP/byte", ridge)
            return decide(
                "compute-bound-anchor",
                found,
                node=atom.name,
                intensity=cost.intensity,
                ridge=ridge,
                neighbour=neighbour,
            )
        if node.op == "extern":
            why = str(node.attr.get("reason") or "no entry in the operator table")
            return decide(_extern_code(node), node=atom.name, detail=why)
        return decide("opaque-call", node=atom.name)

    def as_one(self, parts: Sequence[Part]) -> IfFused | None:
        """What the parts would be as one kernel, wishes and limits apart; None where no kernel
        could be made of them."""
        generated = all(map(self.pool.is_generated, parts))
        if not generated or self._size(parts) or self._order(parts):
            return None
        answer = self._attempt(parts, self.pool.union(parts), parts)
        return answer.if_fused if isinstance(answer, Decision) else if_fused(answer.priced)

    def _user(self, parts: Sequence[Part]) -> Decision | None:
        if len(parts) > 1:
            for part in parts:
                if part.frozen:
                    return decide("user-pin", node=self.label(part))
        if not self._cut_names:
            return None
        atoms = self.pool.index.atoms
        names = [
            sorted(atoms[k].name for k in p.atoms if atoms[k].name in self._cut_names)
            for p in parts
        ]
        for k, own in enumerate(names):
            for other in names[k + 1 :]:
                for a in own:
                    for b in other:
                        if frozenset((a, b)) in self._cuts:
                            return decide("user-cut", a=a, b=b)
        return None

    def _size(self, parts: Sequence[Part]) -> Decision | None:
        count = len(self.pool.union(parts))
        if count <= MOST_MEMBERS:
            return None
        evidence = Evidence("operators of one kernel", count, "operators", MOST_MEMBERS)
        return decide("size", evidence, detail=f"{count} operators, at most {MOST_MEMBERS}")

    def _order(self, parts: Sequence[Part]) -> Decision | None:
        between = self.pool.between(parts)
        if not between:
            return None
        first = next(bits(between))
        return decide(
            "convexity",
            Evidence("operators on the path", between.bit_count(), "operators", 0),
            producer=self.label(parts[0]),
            consumer=self.label(parts[-1]),
            between=self.pool.index.atoms[first].name,
        )

    def _memory(self, parts: Sequence[Part]) -> Decision | None:
        divide = parting(self.pool.union(parts), self.divided) if self.divided else None
        if divide is None:
            return None
        held, limit = self.divided[divide]
        labels = [self.label(p) for p in parts]
        return decide(
            "peak-memory",
            Evidence("bytes alive at once", held, "bytes", limit),
            producer=labels[0],
            consumer=labels[-1],
        )

    # -------------------------------------------------------------- fuse() and the chip

    def _attempt(
        self, parts: Sequence[Part], atoms: tuple[int, ...], replaced: Sequence[Part]
    ) -> Fused | Decision:
        stored = self.pool.stored(atoms, replaced)
        priced = self.evaluator.price(atoms, stored)
        if isinstance(priced, Unfusable):
            return refusal(priced, self.label(parts[0]), self.label(parts[-1]))
        refused = None if priced.need is None else self._limits(priced.need)
        if refused is not None:
            return refused.with_fused(if_fused(priced))
        return Fused(tuple(parts), atoms, stored, priced)

    def _limits(self, needs: Need) -> Decision | None:
        target = self.evaluator.target
        most, block = target.registers_per_thread, target.shared_per_block
        spilled = needs.spill_bytes // 4
        if spilled > SPILL_SHARE * most:
            wanted = needs.registers + spilled
            evidence = Evidence("registers of a thread", wanted, "registers", most)
            return decide("pressure-registers", evidence, value=wanted, bound=most)
        if needs.shared_bytes > block:
            evidence = Evidence("shared memory of a block", needs.shared_bytes, "bytes", block)
            return decide("pressure-shared-memory", evidence, value=needs.shared_bytes, bound=block)
        return None


def refusal(found: Unfusable, producer: str, consumer: str) -> Decision:
    """Why two nodes cannot be of one kernel, as the attempt to make it said."""
    return decide(
        found.code, *_sized(found), producer=producer, consumer=consumer, detail=found.detail
    )


def _sized(refused: Unfusable) -> tuple[Evidence, ...]:
    if refused.count is None:
        return ()
    found, most = refused.count
    limit, unit = COUNTED[refused.code]
    return (Evidence(limit, found, unit, most),)


def _extern_code(node: Node) -> str:
    """What keeps a call from having a kernel: its nature, or the element type of an operand."""
    nature = node.attr.get("nature")
    if nature is not None:
        return str(nature)
    dtypes = (v.type.dtype for v in (*node.values, *node.outputs))
    return "extern" if all(d in COMPILED for d in dtypes) else "dtype"


def if_fused(priced: Priced) -> IfFused:
    """The figures of a fused group."""
    needs, cost = priced.need, priced.cost
    registers = None if needs is None else needs.registers
    spill = None if needs is None else needs.spill_bytes
    return IfFused(1, cost.bytes, registers, spill, cost.us)
