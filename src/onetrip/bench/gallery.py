"""The demos of the explorer: small programs on which fusion can be learnt, and a whole model.

Each comes in sizes, so that a user sees what does not change with them. Nothing has memory behind
it: plans need shapes alone. Must not know the explorer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from onetrip.bench.demo import BiasDropoutNorm
from onetrip.bench.models import First, bert
from onetrip.target import Target, load

F = nn.functional
Made = tuple[Any, ...]
ROWS = {"1x": 4096, "2x": 8192, "4x": 16384}


@dataclass(frozen=True)
class Demo:
    """A program in several sizes.

    Attributes:
        about: what it teaches, in one line.
        make: (model, args) for a size: a number of rows, images or tokens.
        target: the chip that its page begins with.
    """

    about: str
    make: Callable[[int], Made]
    sizes: Mapping[str, int]
    target: str = "h100"

    def programs(self) -> dict[str, Callable[[], Made]]:
        """What makes each size."""

        def maker(rows: int) -> Callable[[], Made]:
            def make() -> Made:
                with torch.device("meta"):
                    return self.make(rows)

            return make

        return {name: maker(rows) for name, rows in self.sizes.items()}


def _frozen(model: nn.Module, *, train: bool = False) -> nn.Module:
    return model.to(torch.bfloat16).train(train).requires_grad_(False)


def _empty(*shape: int) -> Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16)


class Block(nn.Module):
    """matmul -> bias -> gelu -> add -> norm: what the field teaches fusion on."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, hidden))
        self.bias = nn.Parameter(torch.empty(hidden))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """Rows of the hidden width."""
        h = torch.matmul(x, self.weight)
        h = h + self.bias
        h = F.gelu(h)
        h = h + residual
        normalized: Tensor = self.norm(h)
        return normalized


def _block(rows: int) -> Made:
    return _frozen(Block(1024, 4096)), (_empty(rows, 1024), _empty(rows, 4096))


class Streams(Block):
    """The block with a gate and two residual streams: what is fused with the norm loads more."""

    def forward(self, x: Tensor, gate: Tensor, *streams: Tensor) -> Tensor:
        """Rows of the hidden width."""
        h = F.gelu(torch.matmul(x, self.weight) + self.bias) * gate
        for stream in streams:
            h = h + stream
        normalized: Tensor = self.norm(h)
        return normalized


def _streams(rows: int) -> Made:
    return _frozen(Streams(1024, 4096)), (_empty(rows, 1024), *(_empty(rows, 4096) for _ in "abc"))


def _dropout(rows: int) -> Made:
    return _frozen(BiasDropoutNorm(1024), train=True), (_empty(rows, 1024),)


class Siblings(nn.Module):
    """Several operators that read one input: one trip for it instead of one each."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Three tensors of the shape of x."""
        return torch.sigmoid(x), torch.tanh(x), F.silu(x) * 2


def _siblings(rows: int) -> Made:
    return Siblings(), (_empty(rows, 4096),)


class ConvNormRelu(nn.Module):
    """A convolution whose norm is folded into its weights in evaluation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """The shape of x."""
        return F.relu(self.norm(self.conv(x)))


def _conv(images: int) -> Made:
    return _frozen(ConvNormRelu(64)), (_empty(images, 64, 56, 56),)


class Attention(nn.Module):
    """Attention as it is written on a board: two products around a softmax."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(batch, heads, length, 64)."""
        scores = torch.matmul(q, k.transpose(-2, -1)) * 0.125
        return torch.matmul(torch.softmax(scores, -1), v)


def _attention(length: int) -> Made:
    return Attention(), tuple(_empty(4, 12, length, 64) for _ in range(3))


def _bert(length: int) -> Made:
    return _frozen(First(bert(12, 768))), (torch.zeros(8, length, dtype=torch.int64),)


IMAGES = {"1x": 32, "2x": 64, "4x": 128}
LENGTHS = {"1x": 512, "2x": 1024, "4x": 2048}
DEMOS: dict[str, Demo] = {
    "demo": Demo("matmul -> bias -> gelu -> add -> norm", _block, ROWS),
    "pressure": Demo(
        "matmul -> bias -> gelu -> gate -> add -> add -> norm, on few registers",
        _streams,
        ROWS,
        "few-registers",
    ),
    "dropout": Demo("norm(dropout(x + bias)) in training", _dropout, ROWS),
    "siblings": Demo("three operators over one input", _siblings, ROWS),
    "conv": Demo("convolution, batch norm, relu in evaluation", _conv, IMAGES),
    "attention": Demo("two products around a softmax", _attention, LENGTHS),
    "bert": Demo(
        "the encoder of BERT base, twelve layers", _bert, {"1x": 128, "2x": 256, "4x": 512}
    ),
}


def made_up_chips() -> dict[str, tuple[str, Target]]:
    """A chip to learn register pressure on: real ones have five times what the demos need, and a
    cache behind them; what spills here goes to memory and back."""
    chip = load("h100")
    few = replace(
        chip,
        name="few-registers",
        registers_per_thread=40,
        spill_bandwidth=chip.copy_bandwidth,
    )
    return {few.name: ("h100", few)}
