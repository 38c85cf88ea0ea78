"""A graph of 3,000 operators stays fluid: what the page takes to open, to change and to expand.

Times by the clock are judged on a machine that does nothing else, and are a warning on a busy one;
what Python spends on a toggle is judged everywhere, by its own processor time.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

LAYERS = 250
TOGGLES = 40
LIMITS = {"toggle": 100.0, "expand": 150.0, "paint": 1500.0}
"""Milliseconds: the 95th percentile from a toggle to new figures, one expansion, first paint."""
PYTHON_MS = 70.0
"""Of the 100 of a toggle, what Python may spend: the rest is the browser's."""
BUSY = 0.3
"""Processors that others use, in the mean, before a clock says nothing."""


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = nn.functional.gelu(self.up(self.norm(x))) * 0.5 + 0.1
        return x + torch.tanh(self.down(h) * 3 - 1).exp() * 2


def deep() -> tuple[Any, ...]:
    with torch.device("meta"):
        layers = [Layer(64) for _ in range(LAYERS)]
        model = nn.ModuleDict({"layers": nn.Sequential(*layers)}).eval().requires_grad_(False)
        return model["layers"], (torch.empty(4096, 64),)


def busy() -> float:
    """How many processors others use while this test and its page rest."""
    begun, ticks = time.perf_counter(), _ticks()
    time.sleep(0.1)
    return (_ticks() - ticks) / os.sysconf("SC_CLK_TCK") / (time.perf_counter() - begun)


def _ticks() -> int:
    """Clock ticks that all processors have worked; 0 where the system does not tell."""
    counted = Path("/proc/stat")
    if not counted.exists():
        return 0
    numbers = [int(x) for x in counted.read_text().partition("\n")[0].split()[1:]]
    return sum(numbers) - sum(numbers[3:5])  # idle, and waiting for a disk


@contextmanager
def served() -> Iterator[str]:
    """The address of the page, from a process of its own as the command line makes it."""
    command = [sys.executable, "-m", "onetrip", "explore", f"{__file__}:deep", "--no-open"]
    run = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    try:
        assert run.stdout is not None
        yield run.stdout.readline().split()[-1]
    finally:
        run.kill()
        run.wait()


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_graph_of_three_thousand_operators_stays_fluid(browser: Any) -> None:
    with served() as url:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        before = busy()
        page.goto(url)
        page.wait_for_selector("body[data-ready]", timeout=120_000)
        assert page.evaluate("onetrip.data.nodes.length") >= 3000
        assert page.evaluate("onetrip.placed.items.size") <= 150
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        within("paint", [paint], before)
        page.evaluate("onetrip.setScope(false)")
        toggles(page)
        expansions(page)


def p95(found: list[float]) -> float:
    return sorted(found)[min(len(found) - 1, int(0.95 * len(found)))]


def within(name: str, found: list[float], load: float) -> None:
    worst = p95(found)
    if load <= BUSY:
        assert worst <= LIMITS[name]
    elif worst > LIMITS[name]:
        warnings.warn(
            f"{name}: {worst:.0f} ms, of {LIMITS[name]:.0f}; not judged, since others use "
            f"{load:.1f} processors of this machine now",
            stacklevel=2,
        )


def toggles(page: Any) -> None:
    ids = page.evaluate(
        "onetrip.data.edges.filter((e) => onetrip.data.status.get(e.id)[0] === 'cut')"
        ".map((e) => e.id)"
    )
    found, python, loads = [], [], []
    for k in range(TOGGLES):
        edge = ids[k * 37 % len(ids)]
        loads.append(busy())
        page.evaluate(f"void onetrip.act({{do: 'toggle', edge: {edge}, everywhere: false}})")
        page.wait_for_selector(f"body[data-acts='{k + 1}']")
        found.append(page.evaluate("onetrip.took"))
        python.append(page.evaluate("onetrip.spent"))
    assert p95(python) <= PYTHON_MS
    within("toggle", found, statistics.mean(loads))


def expansions(page: Any) -> None:
    found, load = [], busy()
    for path in ("0", "1"):
        page.evaluate(f"onetrip.shut('{path}')")
        found.append(page.evaluate("onetrip.expanded"))
        page.evaluate(f"onetrip.open('{path}')")
        found.append(page.evaluate("onetrip.expanded"))
    page.evaluate("onetrip.unfold('')")
    found.append(page.evaluate("onetrip.expanded"))
    within("expand", found, (load + busy()) / 2)
