"""A program whose work is replayed as one: when a call is recorded, and which recording serves it.

    first call of a signature    runs plainly: kernels are loaded, libraries make their choices
    second                       runs plainly where the recording will read, and is recorded
    later ones                   are replayed

Where callers still hold what a recording lent, another one serves, at last one that copies its
results, so nothing that somebody holds is overwritten. What cannot be recorded runs plainly from
then on, with the reason on record. Knows no device.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ..base.errors import Unsupported
from .answer import Answer
from .lending import lent
from .recording import DeviceGraphs, Fixed, Graph, Recording, Run
from .settling import Inputs, Place, Settling

WARM = 1
"""Plain calls of a signature at a place before one is recorded there."""
LENDERS = 2
"""Recordings for one place that lend their results; one more copies them. Two serve a loop that
holds the last result while it computes the next."""
PLACES = 64
"""Places with recordings; the one used longest ago makes room for another."""
REMEMBERED = 16 * PLACES
"""Signatures that a program knows, and places that it counts calls at."""
PAYBACK = 100
"""Calls that must come for each place beyond that number, since a recording costs many of them."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Latest(Generic[K, V]):
    """What was used last of all that was made."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._values: OrderedDict[K, V] = OrderedDict()

    def find(self, key: K) -> V | None:
        """The value of a key, now the one used last."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def keep(self, key: K, value: V) -> None:
        """Keeps a value; the one used longest ago makes room for it."""
        self._values[key] = value
        if len(self._values) > self._bound:
            self._values.popitem(last=False)

    def drop(self, unwanted: Callable[[K], bool]) -> int:
        """Drops what has such a key; answers with how many that were."""
        keys = [k for k in self._values if unwanted(k)]
        for key in keys:
            del self._values[key]
        return len(keys)


Key = tuple[Settling, Place]


class Plain(Protocol):
    """A program that runs launch by launch."""

    @property
    def run(self) -> Run:
        """Runs once; empties its list of arguments."""
        ...

    def step_of(self, error: BaseException) -> str | None:
        """What the program was at when an error was raised."""
        ...

    def rest(self) -> None:
        """Frees the memory that waits for a call."""
        ...


_one_at_a_time = threading.Lock()


class Replayed:
    """A program that is recorded and replayed.

    Args:
        plain: the program.
        graphs: how its device records.
        name: of the program, for a warning.
        lasting: positions of inputs that keep their address: parameters.
        sized: positions of inputs of symbolic shape.
        written: positions of inputs that the program writes.
        strict: whether what cannot be recorded is an error.

    Attributes:
        reason: why all further calls run plainly; None where they do not.
        recorded: recordings made so far.
    """

    def __init__(
        self,
        plain: Plain,
        graphs: DeviceGraphs,
        name: str,
        *,
        lasting: Collection[int] = (),
        sized: Collection[int] = (),
        written: Collection[int] = (),
        strict: bool = False,
    ) -> None:
        self._plain = plain
        self._graphs = graphs
        self._name = name
        self._lasting, self._sized, self._written = lasting, sized, written
        self._strict = strict
        self.reason: str | None = None
        self.recorded = 0
        self._is_crowded = False
        self._lock = threading.RLock()
        self._boxed_call = True
        self.forget()
        _all.add(self)

    def forget(self) -> None:
        """Drops every recording; what they lent lives as long as its tensors."""
        with self._lock:
            self._inputs: Inputs | None = None
            self._forms: Latest[Hashable, Settling] = Latest(REMEMBERED)
            self._sights: Latest[Key, int] = Latest(REMEMBERED)
            self._shelves: Latest[Key, list[Recording]] = Latest(PLACES)
            self._calls = self._places = 0

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Runs once; empties `arguments`.

        Raises:
            Unsupported: the call could not be recorded, and `strict` asks for that.
        """
        if self.reason is not None or self._graphs.capturing():
            return self._plain.run(arguments)
        with self._lock:
            key, recordings = self._shelf(arguments)
            for recording in recordings:
                if recording.is_free():
                    return recording(arguments)
            wanted = bool(recordings) or self._pays(key)
        return self._record(key, arguments) if wanted else self._plain.run(arguments)

    def _shelf(self, arguments: list[Any]) -> tuple[Key, Sequence[Recording]]:
        """The signature and place of a call, and the recordings for them."""
        self._calls += 1
        if self._inputs is None:
            self._inputs = Inputs(arguments, self._lasting, self._sized)
        signature = (self._graphs.queue(), self._inputs.signature(arguments))
        form = self._forms.find(signature)
        if form is None:
            form = Settling(self._inputs)
            self._forms.keep(signature, form)
        if form.version == lent.version:
            key = (form, form.place(arguments))
            recordings = self._shelves.find(key)
            if recordings is not None:
                return key, recordings
        moving = form.settle(arguments)
        if moving:
            self._places -= self._shelves.drop(
                lambda key: key[0] is form and not moving <= key[1][0]
            )
        key = (form, form.place(arguments))
        return key, self._shelves.find(key) or ()

    def _pays(self, key: Key) -> bool:
        """Whether the first recording for a place is made at this call."""
        sights = self._sights.find(key) or 0
        self._sights.keep(key, sights + 1)
        if sights < WARM:
            return False
        if self._places >= PLACES:
            self._crowded()
        return self._places < PLACES + self._calls // PAYBACK

    def _record(self, key: Key, arguments: list[Any]) -> list[Any]:
        """Runs plainly where a recording will read and write, and records the same."""
        _, (copied, _) = key
        fixed = Fixed(arguments, copied, self._written)
        fixed.load(arguments)
        results = self._plain.run(list(fixed.tensors))
        fixed.store(arguments)
        answer = Answer(results, fixed.tensors)
        answered = answer(answer.own, arguments)
        arguments.clear()
        try:
            with _one_at_a_time:
                graph, recorded = self._graphs.capture(self._plain.run, list(fixed.tensors))
        except Exception as error:
            self._give_up(error)
        else:
            self._keep(key, graph, fixed, recorded)
        return answered

    def _keep(self, key: Key, graph: Graph, fixed: Fixed, results: list[Any]) -> None:
        with self._lock:
            recordings = self._shelves.find(key)
            if recordings is None:
                self._places += 1
                recordings = []
                self._shelves.keep(key, recordings)
            lends = len(recordings) < LENDERS
            recordings.append(Recording(graph, fixed, results, lends))
            self.recorded += 1
        self._plain.rest()

    # ---------------------------------------------------------------- what is said

    def _crowded(self) -> None:
        """There are more places than are recorded: the first time, that is said."""
        if self._is_crowded:
            return
        self._is_crowded = True
        warnings.warn(
            f"onetrip is asked to replay {self._name} for more than {PLACES} sets of sizes and "
            f"addresses: from here on it records at most one in {PAYBACK} calls",
            RuntimeWarning,
            stacklevel=4,
        )

    def _give_up(self, error: Exception) -> None:
        """Runs plainly from here on."""
        step = self._plain.step_of(error)
        found = f"{type(error).__name__}: {error}".strip().split("\n")[0]
        self.reason = f"{step or 'a step'} cannot be recorded: {found}"
        self.forget()
        refused.append(Refusal(self._name, self.reason))
        if self._strict:
            raise Unsupported(
                f"{self._name} cannot be replayed, and strict=True asks for that",
                found=found,
                where=step,
                next_step="leave out strict=True, or cuda_graphs and mode='reduce-overhead'",
            ) from error
        warnings.warn(
            f"onetrip runs {self._name} launch by launch: {self.reason}",
            RuntimeWarning,
            stacklevel=4,
        )


class Refusal(NamedTuple):
    """A program that was to be replayed and runs plainly, and why."""

    program: str
    reason: str


refused: list[Refusal] = []
"""Since the last `forget`."""
_all: weakref.WeakSet[Replayed] = weakref.WeakSet()


def forget() -> None:
    """Drops every recording of this process, and what was refused."""
    for program in list(_all):
        program.forget()
    refused.clear()
