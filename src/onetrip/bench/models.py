"""The model suite: real architectures from transformers with random weights, and their inputs.

A table of configurations; nothing is downloaded. Knows nothing of clocks or rivals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from onetrip.bench.table import Draw, Row, Work

BOTH = {"cuda": "bf16", "cpu": "f32"}


class First(nn.Module):
    """A model that takes one tensor and returns the first tensor of its result."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """The last hidden state, or the logits of a model that has a head."""
        result = self.model(x, return_dict=False)
        first = result[0]
        assert isinstance(first, Tensor)
        return first


def bert(layers: int, width: int) -> nn.Module:
    """BERT encoder; its heads are 64 wide, or fewer where the width is small."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=4 * width,
        num_attention_heads=max(2, width // 64),
    )
    return _module(BertModel(config, add_pooling_layer=False))


def gpt2(layers: int, width: int) -> nn.Module:
    """GPT-2 with its language-model head."""
    from transformers import GPT2Config, GPT2LMHeadModel

    heads = max(2, width // 64)
    return _module(
        GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=width, n_head=heads, n_positions=1024))
    )


def llama(layers: int, width: int) -> nn.Module:
    """Llama with grouped keys, an inner width of 3.5 times the width, and its head."""
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = max(4, width // 128)
    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=width * 7 // 2,
        num_attention_heads=heads,
        num_key_value_heads=heads // 4,
    )
    return _module(LlamaForCausalLM(config))


def vit(layers: int, width: int, pixels: int) -> nn.Module:
    """Vision transformer on 16 x 16 patches."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=4 * width,
        num_attention_heads=max(2, width // 64),
        image_size=pixels,
    )
    return _module(ViTModel(config, add_pooling_layer=False))


def resnet(*depths: int) -> nn.Module:
    """ResNet with bottleneck blocks, ResNet-50 at depths 3, 4, 6, 3, and its classifier."""
    from transformers import ResNetConfig, ResNetForImageClassification

    narrow = sum(depths) < 16
    widths = [32, 64, 128, 256] if narrow else [256, 512, 1024, 2048]
    config = ResNetConfig(
        depths=list(depths),
        hidden_sizes=widths,
        embedding_size=16 if narrow else 64,
        num_labels=10 if narrow else 1000,
    )
    return _module(ResNetForImageClassification(config))


def convnext(*depths: int) -> nn.Module:
    """ConvNeXt with its classifier, ConvNeXt-T at depths 3, 3, 9, 3."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    narrow = sum(depths) < 16
    widths = [16, 32, 64, 128] if narrow else [96, 192, 384, 768]
    config = ConvNextConfig(
        depths=list(depths), hidden_sizes=widths, num_labels=10 if narrow else 1000
    )
    return _module(ConvNextForImageClassification(config))


def t5(layers: int, width: int) -> nn.Module:
    """T5, encoder and decoder, with its head."""
    from transformers import T5Config, T5ForConditionalGeneration

    heads = max(2, width // 64)
    config = T5Config(
        num_layers=layers,
        d_model=width,
        d_kv=width // heads,
        d_ff=4 * width,
        num_heads=heads,
    )
    return _SameTokens(_module(T5ForConditionalGeneration(config)))


def mamba(layers: int, width: int) -> nn.Module:
    """Mamba with its head; its recurrence is a loop over the tokens."""
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(num_hidden_layers=layers, hidden_size=width)
    return _module(MambaForCausalLM(config))


class _SameTokens(nn.Module):
    """An encoder-decoder that decodes the tokens which it encodes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, return_dict: bool) -> Any:
        """The model's own result."""
        return self.model(input_ids=x, decoder_input_ids=x, return_dict=return_dict)


def _module(model: Any) -> nn.Module:
    assert isinstance(model, nn.Module)
    return model


def tokens(
    build: Callable[[int, int], nn.Module], training: bool
) -> Callable[[Draw, int, int, int, int], Work]:
    """The maker of a language model's row; sizes: batch, length, layers, width."""

    def make(draw: Draw, batch: int, length: int, layers: int, width: int) -> Work:
        ids = draw.integers(30000, batch, length)
        return _work(lambda: build(layers, width), ids, draw, training)

    return make


def images(build: Callable[..., nn.Module], training: bool) -> Callable[..., Work]:
    """The maker of an image model's row; sizes: batch, pixels, then those of the model."""

    def make(draw: Draw, batch: int, pixels: int, *sizes: int) -> Work:
        x = draw.normal(batch, 3, pixels, pixels)
        given = (*sizes, pixels) if build is vit else sizes
        return _work(lambda: build(*given), x, draw, training)

    return make


def _work(build: Callable[[], nn.Module], x: Tensor, draw: Draw, training: bool) -> Work:
    """The model with weights that depend on the seed alone, without dropout's randomness."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw.generator.initial_seed())
        model = First(build())
    # Dropout would make a training step's values incomparable, so both modes run without it;
    # batch normalization then uses its stored statistics as well.
    model = model.to(device=draw.device, dtype=draw.dtype).eval()
    weights = tuple(model.parameters())
    for weight in weights:
        weight.requires_grad_(training)
    return Work(model, (x,), sources=weights if training else (), reads=weights)


def _pair(name: str, about: str, maker: Any, build: Any, sizes: dict[str, Any]) -> tuple[Row, ...]:
    return tuple(
        Row(
            name + suffix,
            about + text,
            maker(build, training),
            sizes,
            dtypes=BOTH,
            bounded=False,
        )
        for suffix, text, training in (
            ("", ", inference", False),
            ("_training", ", forward and backward, no dropout", True),
        )
    )


MODELS: tuple[Row, ...] = (
    *_pair("bert", "BERT encoder", tokens, bert,
           {"cuda": (32, 512, 4, 768), "cpu": (4, 128, 2, 256), "tiny": (1, 8, 1, 16)}),
    *_pair("resnet", "ResNet with bottleneck blocks", images, resnet,
           {"cuda": (128, 224, 3, 4, 6, 3), "cpu": (4, 64, 1, 1, 1, 1),
            "tiny": (1, 32, 1, 1, 1, 1)}),
    *_pair("gpt2", "GPT-2 with its head", tokens, gpt2,
           {"cuda": (16, 1024, 4, 768), "cpu": (2, 64, 2, 128), "tiny": (1, 8, 1, 16)}),
    *_pair("llama", "Llama with its head", tokens, llama,
           {"cuda": (4, 2048, 2, 4096), "cpu": (2, 64, 2, 128), "tiny": (1, 8, 1, 32)}),
    *_pair("vit", "vision transformer", images, vit,
           {"cuda": (128, 224, 4, 768), "cpu": (4, 64, 2, 128), "tiny": (1, 32, 1, 32)}),
    *_pair("convnext", "ConvNeXt", images, convnext,
           {"cuda": (128, 224, 3, 3, 9, 3), "cpu": (4, 64, 1, 1, 2, 1),
            "tiny": (1, 32, 1, 1, 1, 1)}),
    *_pair("t5", "T5 encoder and decoder", tokens, t5,
           {"cuda": (16, 512, 4, 768), "cpu": (2, 64, 2, 128), "tiny": (1, 8, 1, 16)}),
    *_pair("mamba", "Mamba, its recurrence unrolled", tokens, mamba,
           {"cuda": (16, 32, 2, 768), "cpu": (2, 16, 2, 128), "tiny": (1, 4, 1, 16)}),
)  # fmt: skip
