"""What the user asks of a plan, put into a search's state before it begins: pins, fuses, wishes.

Cuts are edges that the legality refuses; they need nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .constraints import Constraints, Refusal
from .decision import Decision, decide
from .greedy import State
from .pool import Part


def constrain(state: State, constraints: Constraints) -> None:
    """Groups what must be together; what may not be is among the state's refusals."""
    pinned = [(names, _pin(state, names)) for names in constraints.pin]
    for names, part in pinned:
        if part is not None and not state.pool.stores(part):
            state.pool.drop(part)
            _refuse_idle(state, names)
    for pair in constraints.fuse:
        _force(state, "fuse", pair)
    for pair in constraints.want:
        _force(state, "want", pair)


def _known(state: State, names: Iterable[str]) -> list[int]:
    """Numbers of the atoms of these nodes; aliases take part in any group and are left out."""
    by_name = state.pool.index.by_name
    return [by_name[n].number for n in names if n in by_name]


def _pin(state: State, names: tuple[str, ...]) -> Part | None:
    """The group of a pin; None for one that cannot be met, which is on the record then."""
    pool = state.pool
    parts: dict[int, Part] = {}
    clones: list[int] = []
    for k in _known(state, names):
        owner = pool.parts[pool.owner[k]]
        if owner.frozen:
            clones.append(k)
        else:
            parts[owner.key] = owner
    if not parts:
        known = sorted(clones)
        if clones and all(list(p.atoms) != known for p in pool.parts.values()):
            _refuse_idle(state, names)
        return None
    merged = _apply_union(state, "pin", names, list(parts.values()), clones)
    if merged is not None:
        merged.frozen = True
    return merged


def _refuse_idle(state: State, names: tuple[str, ...]) -> None:
    decision = decide("idle-pin", node=", ".join(names))
    state.refusals.append(Refusal("pin", names, decision))


def _force(state: State, constraint: str, pair: tuple[str, str]) -> None:
    pool = state.pool
    keys = dict.fromkeys(pool.owner[k] for k in _known(state, pair))
    if len(keys) > 1:
        _apply_union(state, constraint, pair, [pool.parts[k] for k in keys])


def _apply_union(
    state: State,
    constraint: str,
    names: tuple[str, ...],
    parts: list[Part],
    clones: Sequence[int] = (),
) -> Part | None:
    """One group of the parts, with clones recomputed in it, or a refusal on the record."""
    pool = state.pool
    if len(parts) == 1:
        return pool.clone(clones, parts[0]) if clones else parts[0]
    answer = state.legality.check(parts, clones)
    if isinstance(answer, Decision):
        state.refusals.append(Refusal(constraint, names, answer))
        return None
    made = state.merge(answer)
    return pool.clone(clones, made) if clones else made
