"""The rule for inexact results: at most twice eager's own distance from fp64, plus 4 ulp."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def assert_near(found: Array, eager: Array, exact: Array) -> None:
    """ulp are those of the largest exact value in the dtype of `eager`."""
    assert found.shape == eager.shape == exact.shape
    assert exact.dtype == np.float64
    limits = np.finfo(eager.dtype)
    ulp = float(limits.eps) * max(float(np.abs(exact).max()), float(limits.tiny))
    mine, its = (float(np.abs(x.astype(np.float64) - exact).max()) / ulp for x in (found, eager))
    assert mine <= 2 * its + 4, f"{mine:.3g} ulp from fp64, eager {its:.3g}"
