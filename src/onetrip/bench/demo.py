"""The two programs of `onetrip demo`: a transformer block, and a norm of a dropout of a sum.

Knows nothing of clocks or rivals.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from onetrip.bench.models import BOTH, First
from onetrip.bench.table import Draw, Row, Work

NORM_SIZE = (4096, 1024)


def block(width: int) -> nn.Module:
    """One BERT encoder layer with random weights: attention, two products around a gelu, norms."""
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertLayer

    config = BertConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_attention_heads=max(2, width // 64),
        attn_implementation="sdpa",
    )
    layer = BertLayer(config)
    assert isinstance(layer, nn.Module)
    return layer


class FirstOf(First):
    """A layer that takes hidden states and returns the new ones, whatever it wraps them in."""

    def forward(self, x: Tensor) -> Tensor:
        """The new hidden states."""
        result = self.model(x)
        first = result if isinstance(result, Tensor) else result[0]
        assert isinstance(first, Tensor)
        return first


def make_block(draw: Draw, batch: int, length: int, width: int) -> Work:
    """The block in evaluation, on hidden states of (batch, length, width)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw.generator.initial_seed())
        model = FirstOf(block(width))
    model = model.to(device=draw.device, dtype=draw.dtype).eval().requires_grad_(False)
    return Work(model, (draw.normal(batch, length, width),), reads=tuple(model.parameters()))


BLOCK = Row("transformer block", "one BERT encoder layer, inference", make_block,
            {"cuda": (32, 512, 768), "cpu": (4, 128, 768), "tiny": (1, 8, 16)},
            dtypes=BOTH, bounded=False)  # fmt: skip


class BiasDropoutNorm(nn.Module):
    """layer_norm(dropout(x + bias)) in training: three kernels in eager, and one trip to memory."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))
        self.dropout = nn.Dropout(0.1)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """A tensor of the shape of x."""
        normalized = self.norm(self.dropout(x + self.bias))
        assert isinstance(normalized, Tensor)
        return normalized


def bias_dropout_norm(rows: int, width: int) -> tuple[nn.Module, Tensor]:
    """The module and its input, without memory behind them."""
    with torch.device("meta"):
        return BiasDropoutNorm(width).train().requires_grad_(False), torch.empty(rows, width)
