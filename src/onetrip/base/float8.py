"""The two 8-bit floats as bits: which numbers they are, and which is nearest to a number.

Conversion is PyTorch's: ties go to even; what is too large becomes the largest number in e4m3,
which has no infinity, and an infinity in e5m2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .dtype import DType, f8e4m3, f8e5m2


@dataclass(frozen=True)
class Layout:
    """Bits of the fraction, the exponent's bias, and the byte of what is too large."""

    fraction: int
    bias: int
    beyond: int


LAYOUTS: dict[DType, Layout] = {f8e4m3: Layout(3, 7, 0x7E), f8e5m2: Layout(2, 15, 0x7C)}
NAN = 0x7F


def decode(bits: int, dtype: DType) -> float:
    """The number that a byte stands for."""
    layout, magnitude = LAYOUTS[dtype], bits & 0x7F
    sign = -1.0 if bits & 0x80 else 1.0
    if magnitude > layout.beyond:
        return math.copysign(math.nan, sign)
    if dtype is f8e5m2 and magnitude == layout.beyond:
        return sign * math.inf
    exponent, part = magnitude >> layout.fraction, magnitude & ((1 << layout.fraction) - 1)
    whole = part + (1 << layout.fraction) if exponent else part
    return sign * math.ldexp(whole, max(exponent, 1) - layout.bias - layout.fraction)


def encode(value: float, dtype: DType) -> int:
    """The byte of the nearest number, ties to even."""
    layout = LAYOUTS[dtype]
    sign = 0x80 if math.copysign(1.0, value) < 0 else 0
    if math.isnan(value):
        return sign | NAN
    if math.isinf(value):
        return sign | layout.beyond
    size = abs(value)
    exponent = max(math.frexp(size)[1] - 1 if size else 1 - layout.bias, 1 - layout.bias)
    steps = round(math.ldexp(size, layout.fraction - exponent))
    magnitude = steps + ((exponent + layout.bias - 1) << layout.fraction)
    return sign | min(magnitude, layout.beyond)
