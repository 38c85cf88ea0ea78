"""What a recording depends on in a call's arguments, and which of them it copies.

A recording bakes numbers, shapes and strides into its work, and the address of every input that it
reads where it lies. Parameters are always read so: calls with other ones are calls of another
signature. Results that recordings lend come back to a few addresses; any other input is believed to
stay where it was met first, until it is met elsewhere.
Knows no recordings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .lending import lent

ADDRESSES = {True: 4, False: 1}
"""Addresses at which an input is read where it lies, by whether a recording lends them; one met at
more is copied. Programs that feed each other results would else need recordings without end."""

Place: TypeAlias = tuple[frozenset[int], tuple[int, ...]]
"""Positions that are copied, and the addresses of all other tensors but parameters."""


class Inputs:
    """The kinds of a program's inputs, which are the same in each call.

    Args:
        arguments: of one call.
        lasting: positions of parameters.
        sized: positions of tensors whose shape or strides are symbolic.
    """

    def __init__(
        self, arguments: Sequence[Any], lasting: Collection[int], sized: Collection[int]
    ) -> None:
        tensors = [k for k, a in enumerate(arguments) if isinstance(a, Tensor)]
        self.loose = [k for k in tensors if k not in lasting]
        self._loose = _getter(self.loose)
        self._lasting = _getter([k for k in tensors if k in lasting])
        self._sized = _getter([k for k in self.loose if k in sized])
        self._numbers = _getter([k for k in range(len(arguments)) if k not in tensors])

    def signature(self, arguments: Sequence[Any]) -> Hashable:
        """What of a call, beside addresses of what is no parameter, a recording depends on."""
        return (
            torch.is_inference_mode_enabled(),
            tuple(map(_exactly, self._numbers(arguments))),
            tuple([t.shape for t in self._sized(arguments)]),
            tuple(map(Tensor.stride, self._loose(arguments))),
            tuple(map(Tensor.data_ptr, self._lasting(arguments))),
        )


def _exactly(number: Any) -> Any:
    """A key that tells 0.0 from -0.0 and finds NaN."""
    return number.hex() if isinstance(number, float) else number


def _getter(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """What takes these positions of a list."""
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda a: tuple([a[k] for k in positions])


class Settling:
    """Which inputs of calls of one signature are copied.

    Attributes:
        copied: their positions.
        version: of `lent`, when that was decided.
    """

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._met: defaultdict[tuple[int, bool], set[int]] = defaultdict(set)
        self._decide(frozenset())
        self.version = -1

    def _decide(self, copied: frozenset[int]) -> None:
        self.copied = copied
        self.version = lent.version
        self._fixed = _getter([k for k in self._inputs.loose if k not in copied])

    def settle(self, arguments: Sequence[Any]) -> frozenset[int]:
        """Decides anew; answers with inputs that were read where they lay and turn out to move."""
        moving, copied = set(), set()
        for k in self._inputs.loose:
            borrowed = arguments[k] in lent
            met, most = self._met[k, borrowed], ADDRESSES[borrowed]
            before = len(met)
            if before <= most:
                met.add(arguments[k].data_ptr())
            if len(met) > most:
                copied.add(k)
                if before <= most and not borrowed:
                    moving.add(k)
        self._decide(frozenset(copied))
        return frozenset(moving)

    def place(self, arguments: Sequence[Any]) -> Place:
        """Where a call's tensors lie, as far as a recording depends on it."""
        return self.copied, tuple(map(Tensor.data_ptr, self._fixed(arguments)))
