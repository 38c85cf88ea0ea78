"""Eight families of models from transformers, with random weights: their configurations, one place.

Every setting that is not a size keeps its default: caches are returned, attention is the library's
default, training uses dropout where `dropout` is asked for. Knows nothing of compilers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

CLASSES = 10
VOCABULARY = 101
CLASSIFIER = {"num_labels": CLASSES, "problem_type": "single_label_classification"}
"""A classifier without a kind of problem writes it into its configuration when first called."""
Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Family:
    """One kind of model.

    Attributes:
        model, config: names of the classes in transformers.
        inputs: makes the arguments of one call.
        sizes: arguments of the configuration that make it small.
        deeper: those of them that are larger where time allows.
    """

    model: str
    config: str
    inputs: Callable[[], Inputs]
    sizes: Mapping[str, Any]
    deeper: Mapping[str, Any] = field(default_factory=dict)


def tokens(batch: int, length: int) -> Inputs:
    """Token numbers and labels."""
    ids, labels = torch.randint(0, VOCABULARY, (2, batch, length))
    return {"input_ids": ids, "labels": labels}


def padded_tokens(batch: int, length: int) -> Inputs:
    """Token numbers of which the last row's second half is padding."""
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[-1, length // 2 :] = 0
    return {**tokens(batch, length), "attention_mask": mask}


def images(batch: int, pixels: int) -> Inputs:
    """Normal pixels and one class for each image."""
    labels = torch.randint(0, CLASSES, (batch,))
    return {"pixel_values": torch.randn(batch, 3, pixels, pixels), "labels": labels}


FAMILIES: Mapping[str, Family] = {
    "bert": Family(
        "BertForMaskedLM", "BertConfig", partial(padded_tokens, 2, 17),
        {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 128,
         "num_attention_heads": 4, "vocab_size": VOCABULARY, "max_position_embeddings": 64},
        {"num_hidden_layers": 3},
    ),
    "gpt2": Family(
        "GPT2LMHeadModel", "GPT2Config", partial(tokens, 2, 12),
        {"n_layer": 1, "n_embd": 64, "n_head": 2, "vocab_size": VOCABULARY, "n_positions": 64,
         "bos_token_id": 0, "eos_token_id": 0},
        {"n_layer": 3},
    ),
    "llama": Family(
        "LlamaForCausalLM", "LlamaConfig", partial(tokens, 2, 12),
        {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 160,
         "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY},
        {"num_hidden_layers": 3},
    ),
    "vit": Family(
        "ViTForImageClassification", "ViTConfig", partial(images, 2, 32),
        {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 128,
         "num_attention_heads": 2, "image_size": 32, "patch_size": 8, **CLASSIFIER},
        {"num_hidden_layers": 3},
    ),
    "resnet": Family(
        "ResNetForImageClassification", "ResNetConfig", partial(images, 2, 32),
        {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 2], **CLASSIFIER},
        {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 2, 2, 1]},
    ),
    "convnext": Family(
        "ConvNextForImageClassification", "ConvNextConfig", partial(images, 2, 32),
        {"num_stages": 2, "depths": [1, 1], "hidden_sizes": [8, 16], **CLASSIFIER},
        {"num_stages": 4, "depths": [1, 1, 3, 1], "hidden_sizes": [8, 16, 24, 32]},
    ),
    "t5": Family(
        "T5ForConditionalGeneration", "T5Config", partial(tokens, 2, 10),
        {"num_layers": 1, "d_model": 64, "d_ff": 128, "num_heads": 2, "d_kv": 16,
         "vocab_size": VOCABULARY, "decoder_start_token_id": 0},
        {"num_layers": 3},
    ),
    "mamba": Family(
        "MambaForCausalLM", "MambaConfig", partial(tokens, 2, 4),
        {"num_hidden_layers": 1, "hidden_size": 32, "state_size": 8, "vocab_size": VOCABULARY},
        {"num_hidden_layers": 2},
    ),
}  # fmt: skip

DROPOUTS = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "dropout_rate",
    "resid_pdrop", "embd_pdrop", "attn_pdrop",
)  # fmt: skip
"""Every name under which a configuration of these families keeps a dropout probability."""


def build(
    name: str, dtype: torch.dtype, *, dropout: bool = False, seed: int = 0, deep: bool = False
) -> tuple[nn.Module, Inputs]:
    """A model in evaluation mode and the inputs of one call, the same whenever it is called.

    Args:
        name: of the family.
        dtype: of parameters and of inputs that are floating-point.
        dropout: whether training mode drops out; otherwise all its probabilities are 0.
        seed: of the weights and the inputs.
        deep: whether the model has several equal layers.
    """
    import transformers

    family = FAMILIES[name]
    config = getattr(transformers, family.config)(
        **{**family.sizes, **(family.deeper if deep else {})}
    )
    for key in DROPOUTS:
        if hasattr(config, key):
            setattr(config, key, 0.1 if dropout else 0.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, family.model)(config)
        stir(model)
        inputs = family.inputs()
    cast = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    return model.eval().to(dtype), cast


@torch.no_grad()
def stir(model: nn.Module) -> None:
    """Moves every constant away from 0 and 1, where a wrong factor or sum would not be seen."""
    for p in model.parameters():
        if p.numel() > 1 and bool((p == p.flatten()[0]).all()):
            p.add_(0.25 * torch.randn_like(p))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
