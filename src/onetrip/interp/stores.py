"""Stores of nests and kernels: which elements, with which values, joined how."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.sym import Sym, Var
from ..ir.nest import Access, Buffer, Combine, Store
from .arrays import Array, InterpreterError, Memory, storage
from .evaluate import Evaluation

_JOIN: dict[Combine, Any] = {
    Combine.ADD: np.add,
    Combine.MAX: np.maximum,
    Combine.MIN: np.minimum,
    Combine.MUL: np.multiply,
}


@dataclass(frozen=True)
class Pending:
    """A store whose elements and values are known and that has not happened yet."""

    memory: Memory
    index: tuple[Array, ...]
    value: Array
    combine: Combine

    def commit(self) -> None:
        """Changes the memory."""
        if self.combine is Combine.SET:
            self.memory.write(self.index, self.value)
        else:
            with np.errstate(all="ignore"):
                self.memory.join(self.index, self.value, _JOIN[self.combine])


def prepare(evaluation: Evaluation, store: Store, axes: Iterable[Var]) -> Pending:
    """The store of one element for each active point of `axes` at which the guard holds."""
    frame = evaluation.frame
    axes = tuple(axes)
    shape = frame.shape(axes)
    mask = frame.mask(axes)
    if store.guard is not None:
        guard = evaluation(store.guard)
        mask = guard if mask is None else guard & mask
    keep = None if mask is None else np.broadcast_to(mask, shape).reshape(-1)

    def flat(x: Array) -> Array:
        whole = np.broadcast_to(x, shape).reshape(-1)
        return whole if keep is None else whole[keep]

    index = tuple(flat(evaluation.index(d)) for d in store.index)
    value = flat(evaluation(store.value))
    return Pending(frame.memory[store.buffer], index, value, store.combine)


def memories(
    declared: Sequence[Buffer], given: Mapping[str, Array], sizes: Mapping[Sym, int]
) -> dict[str, Memory]:
    """The declared buffers' memories; a written one that is not given gets new storage.

    Raises:
        InterpreterError: a buffer that is read is missing, or one is given that nobody declares.
    """
    names = {b.name for b in declared}
    missing = [b.name for b in declared if b.name not in given and b.access is not Access.WRITE]
    unknown = [name for name in given if name not in names]
    if missing or unknown:
        raise InterpreterError(
            "the given buffers are not the declared ones",
            expected=", ".join(sorted(names)),
            found=f"missing {missing}, unknown {unknown}",
        )
    return {
        b.name: Memory.of(
            b.name, b.type, given[b.name] if b.name in given else storage(b.type, sizes), sizes
        )
        for b in declared
    }


def written(declared: Sequence[Buffer], memory: Mapping[str, Memory]) -> dict[str, Array]:
    """The contents of every buffer that may have changed."""
    return {b.name: memory[b.name].data for b in declared if b.access is not Access.READ}
