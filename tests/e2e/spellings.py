"""One attention in many spellings: a recipe says where scale, mask, casts and transposes stand."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

BATCH, HEADS, LENGTH, WIDTH = 2, 3, 24, 8
SCALE = 1 / math.sqrt(WIDTH)
Step = Callable[..., Tensor]


# ---------------------------------------------------------------- parts


def _bmm(a: Tensor, b: Tensor) -> Tensor:
    lead = a.shape[:-2]
    flat = torch.bmm(a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:]))
    return flat.view(*lead, *flat.shape[-2:])


def _baddbmm(q: Tensor, k: Tensor) -> Tensor:
    flat = q.reshape(-1, *q.shape[-2:]), k.reshape(-1, *k.shape[-2:]).transpose(1, 2)
    nothing = torch.zeros(1, dtype=q.dtype, device=q.device)
    made = torch.baddbmm(nothing, *flat, beta=0, alpha=SCALE)
    return made.view(*q.shape[:-1], k.shape[-2])


def _tril(s: Tensor) -> Tensor:
    return torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).tril()


def _least(s: Tensor) -> Tensor:
    zeros = torch.zeros(s.shape[-2:], dtype=s.dtype, device=s.device)
    return zeros.masked_fill(~_tril(s), torch.finfo(s.dtype).min)


def _before(s: Tensor) -> Tensor:
    place = torch.arange(s.shape[-1], device=s.device)
    return place[None, :] <= place[:, None]


PRODUCTS: Mapping[str, Step] = {
    "matmul": lambda q, k: q @ k.transpose(-2, -1),
    "einsum": lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k),
    "bmm": lambda q, k: _bmm(q, k.permute(0, 1, 3, 2)),
    "turned": lambda q, k: torch.matmul(k, q.mT).transpose(-1, -2),
    "baddbmm": _baddbmm,
}
SCALES: Mapping[str, tuple[Step, Step, Step]] = {
    "product": (lambda q: q, lambda k: k, lambda s: s * SCALE),
    "quotient": (lambda q: q, lambda k: k, lambda s: s / math.sqrt(WIDTH)),
    "query": (lambda q: q * SCALE, lambda k: k, lambda s: s),
    "both": (lambda q: q * SCALE**0.5, lambda k: k * SCALE**0.5, lambda s: s),
}
MASKS: Mapping[str, Step] = {
    "none": lambda s: s,
    "filled": lambda s: s.masked_fill(~_tril(s), -math.inf),
    "where": lambda s: torch.where(_before(s), s, torch.finfo(s.dtype).min),
    "added": lambda s: s + torch.full(s.shape[-2:], -math.inf, device=s.device).triu(1).to(s.dtype),
    "least": lambda s: s + _least(s),
}


def _spelled_softmax(s: Tensor) -> Tensor:
    e = torch.exp(s - s.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


SOFTMAXES: Mapping[str, Step] = {
    "plain": lambda s: s.softmax(-1),
    "positive": lambda s: torch.softmax(s, s.dim() - 1),
    "float": lambda s: functional.softmax(s, dim=-1, dtype=torch.float32).to(s.dtype),
    "cast": lambda s: s.float().softmax(-1).to(s.dtype),
    "spelled": lambda s: _spelled_softmax(s.float()).to(s.dtype),
}
VALUES: Mapping[str, Step] = {
    "matmul": lambda p, v: p @ v,
    "einsum": lambda p, v: torch.einsum("bhqk,bhkd->bhqd", p, v),
    "bmm": _bmm,
    "turned": lambda p, v: (v.mT @ p.mT).mT,
}
LAYOUTS: Mapping[str, tuple[Step, Step]] = {
    "heads": (lambda x: x, lambda o: o),
    "tokens": (lambda x: x.transpose(1, 2), lambda o: o.transpose(1, 2).flatten(2)),
    "moved": (lambda x: x.permute(0, 2, 1, 3), lambda o: o.permute(0, 2, 1, 3).contiguous()),
}
"""How inputs become [batch, heads, length, width], and what is done to the result."""


# ---------------------------------------------------------------- recipes


@dataclass(frozen=True)
class Spelling:
    """Names in the tables above."""

    layout: str
    product: str
    scale: str
    mask: str
    softmax: str
    values: str

    def __str__(self) -> str:
        return "-".join(getattr(self, f.name) for f in fields(self))

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        into, out = LAYOUTS[self.layout]
        q, k, v = map(into, (q, k, v))
        on_q, on_k, on_s = SCALES[self.scale if self.product != "baddbmm" else "product"]
        if self.product == "baddbmm":
            scores = PRODUCTS["baddbmm"](q, k)
        else:
            scores = on_s(PRODUCTS[self.product](on_q(q), on_k(k)))
        weights = SOFTMAXES[self.softmax](MASKS[self.mask](scores))
        return out(VALUES[self.values](weights, v))

    def inputs(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value in this spelling's layout."""
        draw = torch.Generator().manual_seed(len(str(self)))
        shape = (BATCH, HEADS, LENGTH, WIDTH)
        if self.layout != "heads":
            shape = (BATCH, LENGTH, HEADS, WIDTH)
        q, k, v = (torch.randn(shape, generator=draw).to(dtype) for _ in range(3))
        return q, k, v


TABLES: Sequence[Mapping[str, Any]] = (LAYOUTS, PRODUCTS, SCALES, MASKS, SOFTMAXES, VALUES)


def spellings(count: int, seed: int) -> list[Spelling]:
    """Different spellings drawn at random; each name of each table stands in one of them."""
    draw = random.Random(seed)
    names = [draw.sample(sorted(t), len(t)) for t in TABLES]
    cycles = [itertools.cycle(n) for n in names]
    found = dict.fromkeys(Spelling(*map(next, cycles)) for _ in range(max(map(len, names))))
    while len(found) < count:
        found[Spelling(*(draw.choice(n) for n in names))] = None
    return list(found)[:count]
