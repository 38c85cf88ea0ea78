"""The record of a cost model's error: predicted beside measured, and the figures of its spread.

    error of a kernel = |predicted / measured - 1|

Knows nothing of how a figure was measured or predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median

import msgspec

from onetrip.base.errors import OnetripError
from onetrip.base.files import File
from onetrip.base.text import slug

FILE = File("the costs", "a file that `onetrip bench model --out` wrote", "measure again")
REGIMES = ("cold", "warm")
TELLING = 0.1
"""Plans whose estimates differ by less than this share of the smaller one are not compared."""


class Time(msgspec.Struct, frozen=True):
    """Microseconds of one launch of a group."""

    predicted_us: float
    measured_us: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_us / self.measured_us

    @property
    def error(self) -> float:
        """Distance of the ratio from one."""
        return abs(self.ratio - 1)


class Launch(msgspec.Struct, frozen=True):
    """One kernel of a group."""

    family: str
    programs: int
    warps: int


class Kernel(msgspec.Struct, frozen=True):
    """One generated group.

    Attributes:
        program: the row it comes from, with size and dtype.
        part: of the split.
        bytes: moved in device memory, predicted.
        cold: nothing that it reads is in the cache; warm: all is; None where it does not fit.
        nest: what it computes.
    """

    name: str
    program: str
    part: str
    ops: list[str]
    bytes: int
    flops: int
    special: int
    bound_by: str
    launches: list[Launch]
    cold: Time
    warm: Time | None
    nest: str


class Plan(msgspec.Struct, frozen=True):
    """A whole program under one plan, replayed without launch gaps where the device can."""

    program: str
    plan: str
    kernels: int
    predicted_us: float
    measured_us: float


class Spread(msgspec.Struct, frozen=True):
    """The errors of one part and regime."""

    part: str
    regime: str
    kernels: int
    median: float
    p90: float


class Ranking(msgspec.Struct, frozen=True):
    """Pairs of plans of one program whose estimates differ tellingly, and how many measure so."""

    pairs: int
    agree: int

    @property
    def share(self) -> float:
        """Share of the pairs whose order is measured as predicted; 1.0 of no pairs."""
        return self.agree / self.pairs if self.pairs else 1.0


class Costs(msgspec.Struct, frozen=True):
    """One run.

    Attributes:
        split: how kernels were parted into calibration and held out.
        regimes: what cold and warm mean on this device.
        left_out: programs that were not measured, with the reason.
    """

    device: str
    card: str
    target: str
    threads: int
    date: str
    versions: dict[str, str]
    split: str
    regimes: str
    spreads: list[Spread]
    ranking: Ranking
    plans: list[Plan]
    left_out: dict[str, str]
    kernels: list[Kernel]


def spreads(kernels: Sequence[Kernel]) -> list[Spread]:
    """Median and ninetieth percentile of the errors, for each part and regime that has any."""
    found = []
    for part in dict.fromkeys(k.part for k in kernels):
        for regime in REGIMES:
            errors = sorted(t.error for _, t in times(kernels, part, regime))
            if errors:
                p90 = errors[min(len(errors) - 1, round(0.9 * (len(errors) - 1)))]
                found.append(Spread(part, regime, len(errors), median(errors), p90))
    return found


def times(kernels: Iterable[Kernel], part: str, regime: str) -> list[tuple[Kernel, Time]]:
    """The measured kernels of a part in a regime."""
    found = ((k, getattr(k, regime)) for k in kernels if k.part == part)
    return [(k, t) for k, t in found if t is not None]


def worst(kernels: Iterable[Kernel], count: int = 10) -> list[tuple[Kernel, str, Time]]:
    """The kernels whose time is predicted worst, by the factor, in either direction."""
    all_of = [(k, r, getattr(k, r)) for k in kernels for r in REGIMES]
    known = [x for x in all_of if x[2] is not None]
    return sorted(known, key=lambda x: -max(x[2].ratio, 1 / x[2].ratio))[:count]


def ranking(plans: Sequence[Plan]) -> Ranking:
    """How many pairs of plans of one program are measured in the order of their estimates."""
    pairs = [
        (a, b)
        for a, b in combinations(plans, 2)
        if a.program == b.program and _telling(a.predicted_us, b.predicted_us)
    ]
    agree = sum(
        (a.predicted_us < b.predicted_us) == (a.measured_us < b.measured_us) for a, b in pairs
    )
    return Ranking(len(pairs), agree)


Price = Callable[[str], tuple[float, float]]
"""The text of a nest to its cold and its warm microseconds; raises where it means nothing now."""


def repriced(costs: Costs, target: str, price: Price) -> Costs:
    """The measured kernels of a record beside what the cost model says of them now.

    A kernel whose text can be read no more is named in `left_out`. Plans keep their estimates: they
    are of the planner of that day.
    """
    kernels: list[Kernel] = []
    left_out = dict(costs.left_out)
    for k in costs.kernels:
        try:
            cold, warm = price(k.nest)
        except OnetripError as error:
            left_out[f"{k.program}: {k.name}"] = str(error).splitlines()[0]
            continue
        again = k.warm and Time(warm, k.warm.measured_us)
        made = Time(cold, k.cold.measured_us)
        kernels.append(msgspec.structs.replace(k, cold=made, warm=again))
    changed = msgspec.structs.replace(costs, target=target, left_out=left_out)
    return with_kernels(changed, kernels)


def with_kernels(costs: Costs, kernels: list[Kernel]) -> Costs:
    """The record of these kernels alone, with the spread of their errors."""
    return msgspec.structs.replace(costs, kernels=kernels, spreads=spreads(kernels))


def _telling(a: float, b: float) -> bool:
    return abs(a - b) > TELLING * min(a, b)


def encode(costs: Costs) -> str:
    """The file's text: JSON, one value a line."""
    return msgspec.json.format(msgspec.json.encode(costs), indent=1).decode() + "\n"


def decode(data: bytes, where: str) -> Costs:
    """The record in a file's text.

    Raises:
        UsageError: the file is of another form.
    """
    return FILE.decoded(data, lambda t: msgspec.json.decode(t, type=Costs), where)


def write(costs: Costs, folder: Path) -> Path:
    """Write the run into a folder, which is made where needed; returns the file."""
    return FILE.write_into(folder, f"costs-{costs.device}-{slug(costs.card)}.json", encode(costs))
