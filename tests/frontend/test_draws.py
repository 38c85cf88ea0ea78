"""Seeds of a device whose generator counts: the same recorded and launched one by one."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

from onetrip.frontend.draws import COUNTED, Recorded, draw, number

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime"))
from taped import TapedGraphs

CPU = torch.device("cpu")


class Counting:
    """A generator as CUDA's."""

    def __init__(self, seed: int) -> None:
        self.seed, self.offset = seed, 0

    def initial_seed(self) -> int:
        return self.seed

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> None:
        assert offset % COUNTED == 0
        self.offset = offset


def recording(generator: Counting, seeds: int) -> tuple[Recorded, object, list[Tensor]]:
    """A recorded graph that draws so many."""
    recorded = Recorded(generator, torch.full((), -1, dtype=torch.int64))

    def run(arguments: list[object]) -> list[Tensor]:
        with recorded.recording():
            return [draw(CPU) for _ in range(seeds)]

    graph, results = TapedGraphs().capture(run, [])
    return recorded, graph, results


def replayed(recorded: Recorded, graph: object, results: list[Tensor]) -> list[int]:
    recorded.prepare()
    graph.replay()  # type: ignore[attr-defined]
    return [int(t) for t in results]


def test_replays_find_the_seeds_that_single_calls_find() -> None:
    generator = Counting(11)
    case = recording(generator, 3)
    assert generator.offset == 0, "recording draws nothing"
    found = [s for _ in range(4) for s in replayed(*case)]
    assert found == [number(11, COUNTED * k) for k in range(12)]
    assert generator.offset == 12 * COUNTED


def test_whoever_draws_or_seeds_between_replays_is_followed() -> None:
    generator = Counting(5)
    case = recording(generator, 2)
    first = replayed(*case)
    generator.offset += 40
    assert replayed(*case) == [number(5, 48), number(5, 52)]
    generator.offset = 0
    assert replayed(*case) == first
    generator.seed, generator.offset = 6, 0
    assert replayed(*case) == [number(6, 0), number(6, 4)]
    generator.seed, generator.offset = 5, 8
    assert replayed(*case) == [number(5, 8), number(5, 12)]


def test_two_recordings_share_a_generator_and_no_seed() -> None:
    generator = Counting(3)
    a, b = recording(generator, 2), recording(generator, 1)
    found = [s for _ in range(5) for case in (a, b, a) for s in replayed(*case)]
    assert found == [number(3, COUNTED * k) for k in range(25)]


def test_a_graph_without_draws_leaves_the_generator_alone() -> None:
    generator = Counting(3)
    assert replayed(*recording(generator, 0)) == []
    assert generator.offset == 0


def test_outside_of_a_recording_a_cpu_draws_from_its_generator() -> None:
    recording(Counting(1), 2)
    torch.manual_seed(9)
    seeds = [int(draw(CPU)) for _ in range(3)]
    torch.manual_seed(9)
    assert seeds == [int(draw(CPU)) for _ in range(3)]
    assert len(set(seeds)) == 3


def test_seeds_are_64_bits_that_differ_in_both_halves() -> None:
    seeds = [number(s, COUNTED * k) for s in (0, 1, 2, 2**63) for k in range(20_000)]
    assert len(set(seeds)) == len(seeds)
    for half in (0, 32):
        assert len({s >> half & 0xFFFFFFFF for s in seeds}) > 0.9999 * len(seeds) - 20
    assert min(seeds) < -(2**62) and max(seeds) > 2**62
