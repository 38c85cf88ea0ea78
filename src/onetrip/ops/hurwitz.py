"""The leaf `zeta` in numpy: Hurwitz's zeta function, the sum of (q + k)^-x over k >= 0.

    zeta(x, q) = sum over k < N of (q + k)^-x, and with w = q + N the tail of Euler and Maclaurin:
                 w^(1 - x) / (x - 1) - w^-x / 2
                 + sum over j of B(2j) / (2j)! x (x + 1) .. (x + 2j - 2) w^(1 - x - 2j)

Steps follow eager's, since which of them leaves the range decides between 0 and NaN far out. Below
0, with q = f - n for 0 < f < 1 and a whole x, the first n terms are
(-1)^x (zeta(x, 1 - f) - zeta(x, 1 - f + n)), and those from f on zeta(x, f).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

Array = Any
TERMS = 10
"""Of the sum itself: the tail then begins above 9."""
TAIL = 12
EPSILON = 2.0**-53


def _bernoulli(count: int) -> list[Fraction]:
    """B(0) .. B(count - 1): the sum over k <= n of (n + 1 over k) B(k) is 0 for n > 0."""
    found = [Fraction(1)]
    for n in range(1, count):
        terms = (math.comb(n + 1, k) * b for k, b in enumerate(found))
        found.append(-sum(terms, Fraction(0)) / (n + 1))
    return found


_B = _bernoulli(2 * TAIL + 1)
DIVISORS = tuple(float(math.factorial(2 * j) / _B[2 * j]) for j in range(1, TAIL + 1))
"""(2j)! / B(2j); the preludes hold the same."""


def _positive(x: Array, q: Array) -> Array:
    total = b = q**-x
    w = q
    for _ in range(TERMS - 1):
        w = w + 1
        b = w**-x
        total = total + b
    done = np.abs(b / total) < EPSILON
    total = np.where(done, total, total + b * w / (x - 1) - b * 0.5)
    rising = np.ones_like(x)
    for j, divisor in enumerate(DIVISORS):
        rising, b = rising * (x + 2 * j), b / w
        part = rising * b / divisor
        total = np.where(done, total, total + part)
        done = done | (np.abs(part / total) < EPSILON)
        rising, b = rising * (x + (2 * j + 1)), b / w
    return total


def zeta(x: Array, q: Array) -> Array:
    """In f64, of arrays of one shape; NaN for x < 1, infinite at its poles."""
    x, q = x.astype(np.float64), q.astype(np.float64)
    with np.errstate(all="ignore"):
        floor = np.floor(q)
        part = q - floor
        far = _positive(x, 1 - part - floor)
        first = _positive(x, 1 - part) - np.where(np.isnan(far), 0, far)
        sign = np.where(np.floor(x * 0.5) == x * 0.5, 1, -1)
        below = np.where(np.isposinf(x), math.inf, sign * first + _positive(x, part))
        below = np.where(q == floor, math.inf, np.where(x == np.floor(x), below, math.nan))
        value = np.where(q <= 0, below, _positive(x, q))
        return np.where(x == 1, math.inf, np.where(x < 1, math.nan, value))
