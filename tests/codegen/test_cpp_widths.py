"""The prelude at the vector widths that this machine has beside the one eager picks by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
NARROWER = {"AVX512": ("avx2", "default"), "AVX2": ("default",)}


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["avx2", "default"])
def test_the_prelude_is_eager_at_a_narrower_width(capability: str) -> None:
    if capability not in NARROWER.get(torch.backends.cpu.get_cpu_capability(), ()):
        pytest.skip("eager has no narrower unit of this kind here")
    files = [str(HERE / f"test_{name}.py") for name in ("cpp_prelude", "cpp_exactness")]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        env={**os.environ, "ATEN_CPU_CAPABILITY": capability},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:]
    assert " passed" in run.stdout
