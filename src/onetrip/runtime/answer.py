"""What a recorded call answers with, by where each result comes from.

A result that is an argument, or lies in one's memory, is made from the argument that a later call
gives, which may lie elsewhere; all others lie in memory of the program's own. Knows no recordings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from .lending import form_of, over

Part = Callable[[Sequence[Tensor], Sequence[Any]], Any]
"""One result, from the program's own tensors and the arguments of a call."""


class Answer:
    """The results of calls like one that ran.

    Args:
        results: of the call.
        arguments: what it ran on.

    Attributes:
        own: the results that no argument holds, each once.
    """

    def __init__(self, results: Sequence[Any], arguments: Sequence[Any]) -> None:
        self.own: list[Tensor] = []
        given = [(k, t) for k, t in enumerate(arguments) if isinstance(t, Tensor)]
        self._parts = [self._part(r, given) for r in results]

    def __call__(self, own: Sequence[Tensor], arguments: Sequence[Any]) -> list[Any]:
        """The results of a call with these arguments, whose own tensors are `own`."""
        return [part(own, arguments) for part in self._parts]

    def _part(self, result: Any, given: Sequence[tuple[int, Tensor]]) -> Part:
        if not isinstance(result, Tensor):
            return lambda _, arguments: result
        source = _source(result, given)
        if source is not None:
            return _from_argument(*source, result)
        for n, known in enumerate(self.own):
            if known is result:
                return _own(n)
        self.own.append(result)
        return _own(len(self.own) - 1)


def _own(n: int) -> Part:
    return lambda own, _: own[n]


def _source(result: Tensor, given: Sequence[tuple[int, Tensor]]) -> tuple[int, Tensor] | None:
    """The argument that a result is or in whose memory it lies: of several, the one that begins
    last before it."""
    for k, t in given:
        if t is result:
            return k, t
    memory = result.untyped_storage()._cdata
    inside = [(k, t) for k, t in given if t.untyped_storage()._cdata == memory]
    before = [(k, t) for k, t in inside if t.data_ptr() <= result.data_ptr()]
    return max(before or inside, key=lambda p: p[1].data_ptr(), default=None)


def _from_argument(k: int, given: Tensor, result: Tensor) -> Part:
    """`result` from argument k, which was `given`."""
    if result is given:
        return lambda _, arguments: arguments[k]
    form, size = form_of(result), result.element_size()
    shift = result.storage_offset() * size - _first_byte(given)
    if result.dtype == given.dtype:
        step = shift // size
        return lambda _, a: a[k].as_strided(*form[1:], a[k].storage_offset() + step)
    return lambda _, a: over(a[k].untyped_storage(), form, (_first_byte(a[k]) + shift) // size)


def _first_byte(t: Tensor) -> int:
    return int(t.storage_offset()) * t.element_size()
