"""The CPU backend of the executor: one foreign call for each run of kernels.

The C++ text comes from above (this floor does not know code generation); here it is built, loaded
and called with the thread count that `torch.set_num_threads` asks for at that moment.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..base.errors import OutOfRangeError
from ..ir.kernel import parts
from .build_cpp import CppUnit, build
from .cache import Cache
from .calls import CALL, caller, caller_of_each
from .frame import Action, BoundLaunch, Native
from .pages import advise_huge
from .pool import empty_strided, maker_of


@dataclass(frozen=True)
class Failure:
    """What a failed run of kernels told.

    Attributes:
        lookups: the calls of the failed kernel that read where an index says.
        index: what was not in [least, size).
    """

    lookups: tuple[str, ...]
    index: int
    least: int
    size: int


def _out_of_range(failure: Failure) -> Exception:
    called = " or ".join(dict.fromkeys(x.partition(" at ")[0] for x in failure.lookups))
    return OutOfRangeError(
        f"index {failure.index} is out of range for {called or 'a lookup'} in a dimension of size "
        f"{failure.size}",
        expected=f"{failure.least} <= index < {failure.size}",
        found=str(failure.index),
        where="; ".join(failure.lookups),
        next_step="look at the indices that this call is given",
    )


FAULTS: dict[int, Callable[[Failure], Exception]] = {
    1: lambda _: RuntimeError("ZeroDivisionError"),
    2: _out_of_range,
}
"""What a kernel's error code means; the exception classes are eager's."""

Emit = Callable[[Sequence[Sequence[BoundLaunch]]], list[CppUnit]]
"""C++ units in which run k is the function `segment_k(slots, sizes, threads)`."""


@dataclass(frozen=True)
class CpuBackend:
    """Builds C++ for this machine.

    Attributes:
        emit: runs of kernels -> translation units.
        prelude: the header that every unit includes.
        begun: waits for what was begun before there was anything to build.
    """

    emit: Emit
    prelude: str
    cache: Cache
    begun: Callable[[], None] = lambda: None

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def build(self, segments: Sequence[Sequence[BoundLaunch]]) -> list[Action]:
        """Raises ToolchainError when no compiler runs or it rejects the text."""
        units = [*self.emit(segments), CALL]
        self.begun()
        *libraries, call = build(units, self.prelude, cache=self.cache)
        found = [_function(libraries, k) for k in range(len(segments))]
        return [
            Native(
                caller(f, call), caller_of_each(f, call), partial(_fault, library, _lookups(run))
            )
            for (f, library), run in zip(found, segments, strict=True)
        ]

    @property
    def immediate(self) -> bool:
        """A CPU's work is done when the call returns."""
        return True

    def queue(self) -> int:
        """Work is done at once: there is one queue."""
        return 0

    def capturing(self) -> bool:
        """Nothing records a CPU's work."""
        return False

    def arena(self, size: int) -> Tensor:
        """`size` bytes, on huge pages where the system grants them."""
        made = torch.empty(size, dtype=torch.uint8, device="cpu")
        advise_huge(made.data_ptr(), size)
        return made

    def empty(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
        """An output on reused pages."""
        return empty_strided(shape, strides, dtype)

    def maker(
        self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype
    ) -> Callable[[], Tensor]:
        """What makes outputs of one form on reused pages."""
        return maker_of(tuple(shape), tuple(strides), dtype)


def _function(libraries: Sequence[ctypes.CDLL], k: int) -> tuple[Any, ctypes.CDLL]:
    for library in libraries:
        found = getattr(library, f"segment_{k}", None)
        if found is not None:
            return found, library
    raise AssertionError(f"no unit defines segment_{k}")


def _lookups(run: Sequence[BoundLaunch]) -> tuple[tuple[str, ...], ...]:
    """Those of each kernel of a run."""
    return tuple(launch.lookups for launch in run for _ in parts(launch.kernel))


def _fault(library: ctypes.CDLL, lookups: Sequence[tuple[str, ...]], code: int) -> None:
    """Raises what the calling thread's last call came to."""
    told = (ctypes.c_int64 * 4)()
    library.onetrip_failure(told)
    launch, index, least, size = told
    raise FAULTS[code](Failure(lookups[launch] if lookups else (), index, least, size))
