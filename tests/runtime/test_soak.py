"""Memory stays flat while sizes change from call to call."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from onetrip.runtime.pool import LASTING, outputs

MOST_ROWS, WIDTH = 6000, 64
GROWTH_MIB = 64
"""What allocators and caches of the process may still take after the first calls."""

LONG = (pytest.mark.exhaustive, pytest.mark.timeout(3600))
"""A minute or two where nothing else runs, twenty on a busy machine."""


def resident_mib() -> float:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
@pytest.mark.parametrize("calls", [600, pytest.param(10_000, marks=LONG)])
def test_memory_is_flat_over_changing_shapes(calls: int) -> None:
    sizes = random.Random(5)
    layer = torch.nn.Linear(WIDTH, WIDTH)
    model = torch.compile(
        lambda x: torch.softmax(layer(x) * 2, -1) + x, backend="onetrip", dynamic=True
    )
    outputs.release()
    settled = 0.0
    for call in range(2 * LASTING + calls):
        x = torch.randn(sizes.randint(1, MOST_ROWS), WIDTH)
        with torch.no_grad():
            y = model(x)
        if call == 2 * LASTING:
            settled = resident_mib()
    assert y.shape == x.shape
    assert resident_mib() - settled < GROWTH_MIB
    assert outputs.held_bytes <= (LASTING + 1) * MOST_ROWS * WIDTH * 4
