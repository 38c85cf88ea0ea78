"""Which programs' kernels the cost model is fitted to, and which it is judged by.

A table and the rule of the split; nothing is measured here. Programs are forms alone: tensors on
the meta device, so that a model of any size costs no memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from onetrip.bench.blocks import BLOCKS
from onetrip.bench.models import MODELS
from onetrip.bench.table import Draw, Row, Work, torch_dtype

Part = Literal["calibration", "held out"]
PARTS: tuple[Part, Part] = ("calibration", "held out")
SPLIT = (
    "calibration: every other block, at two sizes; held out: the blocks between them, at two "
    "sizes, and every model, inference and training"
)
"""The split, as a record states it."""

# Other sizes of a block, by device: none is a multiple of its own, and some are no powers of two.
OTHER: dict[str, dict[str, tuple[int, ...]]] = {
    "chain8": {"cuda": (3, 2048, 1536), "cpu": (768, 1536)},
    "bias_dropout_norm": {"cuda": (4, 2048, 1024), "cpu": (512, 768)},
    "rmsnorm": {"cuda": (4096, 1000), "cpu": (512, 1000)},
    "add_rmsnorm": {"cuda": (2048, 5120), "cpu": (384, 1536)},
    "rmsnorm_fp8_quant": {"cuda": (4096, 2048), "cpu": (256, 2048)},
    "softmax": {"cuda": (65536, 384), "cpu": (4096, 384)},
    "softmax_bigrow": {"cuda": (512, 50257), "cpu": (16, 50257)},
    "cross_entropy": {"cuda": (4096, 32000), "cpu": (128, 8000)},
    "rope_qk": {"cuda": (2, 1024, 16, 4, 64), "cpu": (1, 256, 8, 2, 64)},
    "groupnorm_silu": {"cuda": (8, 640, 32, 32), "cpu": (1, 128, 24, 32)},
    "siblings": {"cuda": (2, 1024, 3072), "cpu": (512, 1536)},
    "siblings_small": {"cuda": (2, 128, 512), "cpu": (2, 32, 512)},
    "row_and_col_reduce": {"cuda": (8192, 1536), "cpu": (1024, 1536)},
    "col_sum": {"cuda": (16384, 3000), "cpu": (2048, 3000)},
    "full_reduce": {"cuda": (4, 1024, 1000), "cpu": (1024, 1000)},
    "reductions": {"cuda": (8192, 1024), "cpu": (1000, 1024)},
    "transpose_add": {"cuda": (3072,), "cpu": (1536,)},
    "layernorm_training": {"cuda": (8192, 768), "cpu": (512, 768)},
    "gelu_glu_training": {"cuda": (4096, 3072), "cpu": (512, 1536)},
    "batchnorm_train_relu": {"cuda": (32, 64, 56), "cpu": (4, 64, 56)},
    "adamw_small": {"cuda": (2, 1024), "cpu": (2, 384)},
}
# Blocks of many equal kernels, with as many as say the same.
FEWER: dict[str, dict[str, tuple[int, ...]]] = {
    "siblings_small": {"cuda": (2, 64, 1024), "cpu": (2, 64, 256)},
    "adamw_small": {"cuda": (2, 512), "cpu": (2, 256)},
}
# One layer says what many do: kernels of equal layers are equal.
MODEL_SIZES: dict[str, dict[str, tuple[int, ...]]] = {
    "bert": {"cuda": (32, 512, 1, 768), "cpu": (4, 128, 1, 256)},
    "resnet": {"cuda": (128, 224, 1, 1, 1, 1), "cpu": (4, 64, 1, 1, 1, 1)},
    "gpt2": {"cuda": (16, 1024, 1, 768), "cpu": (2, 64, 1, 128)},
    "llama": {"cuda": (4, 2048, 1, 4096), "cpu": (2, 64, 1, 128)},
    "vit": {"cuda": (128, 224, 1, 768), "cpu": (4, 64, 1, 128)},
    "convnext": {"cuda": (128, 224, 1, 1, 1, 1), "cpu": (4, 64, 1, 1, 1, 1)},
    "t5": {"cuda": (16, 512, 1, 768), "cpu": (2, 64, 1, 128)},
}
TRAINING = "_training"


class Forms(Draw):
    """Inputs of the right shape and dtype without memory behind them."""

    @staticmethod
    def start(device: str, dtype: torch.dtype) -> Forms:
        """Forms on the meta device, whichever device is meant."""
        return Forms("meta", dtype, torch.Generator())

    def normal(self, *shape: int, scale: float = 1.0, grad: bool = False) -> Tensor:
        """A floating-point input."""
        return torch.empty(*shape, dtype=self.dtype, device="meta").requires_grad_(grad)

    def positive(self, *shape: int) -> Tensor:
        """A floating-point input."""
        return self.normal(*shape)

    def integers(self, high: int, *shape: int) -> Tensor:
        """An int64 input."""
        return torch.empty(*shape, dtype=torch.int64, device="meta")


@dataclass(frozen=True)
class Program:
    """A row at one size, and which part of the split its kernels belong to."""

    row: Row
    size: tuple[int, ...]
    dtype: str
    part: Part

    @property
    def name(self) -> str:
        """Row and size."""
        return f"{self.row.name} {'x'.join(map(str, self.size))} {self.dtype}"

    @property
    def training(self) -> bool:
        """Whether its gradients are computed as well."""
        return self.row.name.endswith(TRAINING)

    def work(self) -> Work:
        """The program with forms in place of inputs and parameters."""
        draw = Forms.start("meta", torch_dtype(self.dtype))
        with torch.device("meta"):
            return self.row.make(draw, *self.size)


def programs(device: str, size: str = "", only: str = "") -> tuple[Program, ...]:
    """All programs of a device whose row's name contains `only`; quick ones first.

    Args:
        size: `tiny` for tests: every block at that size, and no model.
    """
    if size:
        found = _blocks({row.name: {device: row.sizes[size]} for row in BLOCKS}, device)
    else:
        own = {row.name: FEWER.get(row.name, row.sizes) for row in BLOCKS}
        found = (*_blocks(own, device), *_blocks(OTHER, device), *_models(device))
    return tuple(p for p in found if only in p.row.name)


def _blocks(sizes: Mapping[str, Mapping[str, tuple[int, ...]]], device: str) -> tuple[Program, ...]:
    return tuple(
        Program(row, sizes[row.name][device], row.dtype_on(device), PARTS[number % 2])
        for number, row in enumerate(BLOCKS)
        if row.name in sizes
    )


def _models(device: str) -> Iterator[Program]:
    for training in (False, True):
        for row in MODELS:
            stem = row.name.removesuffix(TRAINING)
            if row.name.endswith(TRAINING) is training and stem in MODEL_SIZES:
                size = MODEL_SIZES[stem][device]
                yield Program(row, size, row.dtype_on(device), PARTS[1])


__all__ = ["OTHER", "SPLIT", "Part", "Program", "programs"]
