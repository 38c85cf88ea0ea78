"""Philox4x32 in torch integer arithmetic: the random numbers of every seeded operator.

The stream is part of the numerics contract, not of one implementation. Generated C++ and Triton
must follow it bit for bit:

- element ``i`` (row-major linear index over the logical shape, never over memory) takes word
  ``i % 4`` of the block with counter ``(lo32(i // 4), hi32(i // 4), 0, 0)`` and key
  ``(lo32(seed), hi32(seed))``; the published multipliers and Weyl constants; ten rounds, of
  dropout seven
- a uniform number has as many random bits as its dtype has precision, taken from the top of the
  word: ``(word >> (32 - bits)) * 2**-bits`` with bits = 24 for float32, 11 for float16, 8 for
  bfloat16 and 32 for float64; it is never 1 and needs no rounding
- dropout and Bernoulli always compare the **float32** number: dropout keeps element ``i`` iff
  ``uniform >= float32(p)``

It must not know operators, graphs or devices: it computes where the seed lies.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..ops.random import DROPOUT_ROUNDS, ROUNDS

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_CHUNK = 1 << 20  # blocks computed at once: bounds the int64 temporaries at tens of MiB

UNIFORM_BITS = {
    torch.float16: 11,
    torch.bfloat16: 8,
    torch.float32: 24,
    torch.float64: 32,
}
"""Random bits of a uniform number per dtype."""


def _product(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a 32 x 32 bit product; int64 wraps modulo 2**64, which keeps both."""
    wide = b * a
    return (wide >> 32) & _MASK, wide & _MASK


def philox_block(
    counter: Sequence[Tensor], key: Sequence[Tensor], rounds: int
) -> tuple[Tensor, ...]:
    """The four 32-bit words (in int64 tensors) of each counter of four words, key of two."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        hi0, lo0 = _product(_MULTIPLIERS[0], c0)
        hi1, lo1 = _product(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def philox_words(seed: Tensor, count: int, rounds: int) -> Tensor:
    """The first ``count`` 32-bit words of the stream of ``seed`` (0-d int64), as int64."""
    key = (seed & _MASK, (seed >> 32) & _MASK)
    blocks = (count + 3) // 4
    parts = []
    for first in range(0, max(blocks, 1), _CHUNK):
        index = torch.arange(first, min(first + _CHUNK, blocks), device=seed.device)
        zero = torch.zeros_like(index)
        words = philox_block((index & _MASK, index >> 32, zero, zero), key, rounds)
        parts.append(torch.stack(words, -1).reshape(-1))
    return torch.cat(parts)[:count]


def uniform_numbers(
    seed: Tensor, shape: Sequence[int], dtype: torch.dtype, rounds: int = ROUNDS
) -> Tensor:
    """Uniform numbers in [0, 1) of ``dtype``, contiguous, on the seed's device."""
    bits = UNIFORM_BITS[dtype]
    words = philox_words(seed, math.prod(shape), rounds) >> (32 - bits)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return (words.to(wide) * 2.0**-bits).to(dtype).reshape(tuple(shape))


def dropout_scale(p: float, wide: torch.dtype) -> float:
    """What dropout multiplies a kept element by: ``1 - p`` rounded to ``wide``, then its
    correctly rounded reciprocal in ``wide``."""
    return torch.full((), 1.0 - p, dtype=wide, device="cpu").reciprocal().item()


def dropout_factor(seed: Tensor, shape: Sequence[int], p: float, wide: torch.dtype) -> Tensor:
    """The factor of each element: the scale where it is kept and 0 where not, in ``wide``."""
    kept = uniform_numbers(seed, shape, torch.float32, DROPOUT_ROUNDS) >= p
    scale = torch.full((), dropout_scale(p, wide), dtype=wide, device=seed.device)
    return torch.where(kept, scale, torch.zeros_like(scale))
