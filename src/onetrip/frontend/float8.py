"""What this torch makes of numbers that are too large for e4m3, which has no infinity.

Older versions give NaN, newer ones the largest number. Knows attributes of the cast alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ..base.dtype import f8e4m3

SATURATES = bool(torch.full((), 1e4, device="cpu").to(torch.float8_e4m3fn).float().isfinite())


def with_overflow(op: str, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a call; a cast to e4m3 says what lies beyond its numbers."""
    narrows = op == "to" and attrs.get("dtype") is f8e4m3
    return {**attrs, "beyond": math.nan} if narrows and not SATURATES else dict(attrs)
