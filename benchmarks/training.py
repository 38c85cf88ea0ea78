"""Does compiled training learn like eager? Writes results/checks/training-cpu.json.

    python benchmarks/training.py [--steps N] [--out FOLDER]

A small GPT-2 (dropout 0.1) and a small ResNet (dropout before its head) learn synthetic data with
AdamW, on the CPU. A seed decides initial weights, data and dropout.

- Five eager runs with five seeds span, at each checkpoint, a range of losses.
- The same five seeds with model and optimizer step compiled: the mean of the five compiled curves
  must lie in that range at every checkpoint. One curve alone would leave the range of five others
  at about every third checkpoint though nothing is wrong, and a shift of all would go unseen.
- A compiled run again, compiled anew, must give the same bits in every loss.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onetrip.bench.engine import versions

SEEDS = (0, 1, 2, 3, 4)
STEPS, WINDOW = 200, 20
"""Steps of a run, and over how many a loss is averaged; a checkpoint follows each window."""
BATCH, LENGTH, WORDS = 8, 32, 64
IMAGE, CLASSES = 16, 8

Batches = Callable[[torch.Generator], tuple[Tensor, Tensor]]
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


# ---------------------------------------------------------------- what is learned


def gpt2() -> nn.Module:
    """Two layers of width 64, dropout 0.1 on embeddings, attention and residuals."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model: nn.Module = GPT2LMHeadModel(
        GPT2Config(
            n_layer=2,
            n_embd=64,
            n_head=4,
            n_positions=LENGTH,
            vocab_size=WORDS,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    return model


def resnet() -> nn.Module:
    """Two stages of one basic block, and dropout 0.1 before the classifier."""
    from transformers import ResNetConfig, ResNetForImageClassification

    model: nn.Module = ResNetForImageClassification(
        ResNetConfig(
            embedding_size=16,
            hidden_sizes=[16, 32],
            depths=[1, 1],
            layer_type="basic",
            num_labels=CLASSES,
        )
    )
    model.classifier = nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(32, CLASSES))
    return model


def sentences(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Words that follow from the word before by one rule, one in ten drawn at random instead."""
    ids = torch.randint(0, WORDS, (BATCH, LENGTH), generator=generator)
    kept = torch.rand(BATCH, LENGTH, generator=generator) < 0.9
    for k in range(1, LENGTH):
        ids[:, k] = torch.where(kept[:, k], (5 * ids[:, k - 1] + 3) % WORDS, ids[:, k])
    return ids, ids


def pictures(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A fixed pattern for each class, under noise."""
    shape = (3, IMAGE, IMAGE)
    patterns = torch.randn(CLASSES, *shape, generator=torch.Generator().manual_seed(1000))
    labels = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    return patterns[labels] + 2 * torch.randn(BATCH, *shape, generator=generator), labels


def loss_of(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """The loss that the model computes itself."""
    loss: Tensor = model(x, labels=labels).loss
    return loss


@dataclass(frozen=True)
class Task:
    """A model, its data and the rate at which it learns."""

    name: str
    model: Callable[[], nn.Module]
    batch: Batches
    rate: float


TASKS = (Task("gpt2", gpt2, sentences, 3e-3), Task("resnet", resnet, pictures, 1e-3))


# ---------------------------------------------------------------- one run


def losses(task: Task, seed: int, steps: int, backend: str | None = None) -> list[float]:
    """The loss of each step of one run; with a backend, model and optimizer step are compiled."""
    torch._dynamo.reset()
    torch.manual_seed(seed)
    model = task.model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.rate)
    forward: Any = loss_of if backend is None else torch.compile(loss_of, backend=backend)
    step: Any = (
        optimizer.step if backend is None else torch.compile(optimizer.step, backend=backend)
    )
    generator = torch.Generator().manual_seed(seed)
    found: list[float] = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = forward(model, *task.batch(generator))
        loss.backward()
        step()
        found.append(float(loss.detach()))
    return found


# ---------------------------------------------------------------- the verdict


@dataclass(frozen=True)
class Verdict:
    """What one task showed; curves are means over windows."""

    task: str
    steps: int
    window: int
    seeds: tuple[int, ...]
    eager_curves: list[list[float]]
    compiled_curves: list[list[float]]
    compiled_mean: list[float]
    low: list[float]
    high: list[float]
    points_within: str
    within: bool
    repeats_bitwise: bool
    learned: bool

    @property
    def ok(self) -> bool:
        """Whether all holds."""
        return self.within and self.repeats_bitwise and self.learned


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Means of consecutive windows."""
    starts = range(0, len(values) - window + 1, window)
    return [sum(values[s : s + window]) / window for s in starts]


def judged(task: Task, steps: int = STEPS, window: int = WINDOW) -> Verdict:
    """Runs a task with five seeds in eager mode and compiled, and once more compiled."""
    eager = [smoothed(losses(task, seed, steps), window) for seed in SEEDS]
    ours = [losses(task, seed, steps, "onetrip") for seed in SEEDS]
    again = losses(task, SEEDS[0], steps, "onetrip")
    curves = [smoothed(run, window) for run in ours]
    low, high = (list(map(most, zip(*eager, strict=True))) for most in (min, max))
    mean = [sum(at) / len(at) for at in zip(*curves, strict=True)]
    inside = [a <= x <= b for c in curves for a, x, b in zip(low, c, high, strict=True)]
    return Verdict(
        task.name,
        steps,
        window,
        SEEDS,
        eager,
        curves,
        mean,
        low,
        high,
        points_within=f"{sum(inside)} of {len(inside)}",
        within=all(a <= x <= b for a, x, b in zip(low, mean, high, strict=True)),
        repeats_bitwise=ours[0] == again,
        learned=mean[-1] < mean[0],
    )


def main() -> int:
    """The script; 0 where all holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=STEPS)
    default = Path(__file__).parent / "results" / "checks"
    parser.add_argument("--out", type=Path, default=default)
    given = parser.parse_args()
    torch.set_num_threads(1)  # the tensors are small, and other programs share the processor
    verdicts = [judged(task, given.steps) for task in TASKS]
    found = {
        "date": date.today().isoformat(),
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "tasks": [asdict(v) for v in verdicts],
    }
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "training-cpu.json").write_text(json.dumps(found, indent=1) + "\n")
    for v in verdicts:
        print(f"{v.task}: within {v.within}, repeats {v.repeats_bitwise}, learned {v.learned}")
        for k, (a, c, b) in enumerate(zip(v.low, v.compiled_mean, v.high, strict=True), 1):
            print(f"  step {k * v.window:3}: {a:.4f} <= {c:.4f} <= {b:.4f}")
    return 0 if all(v.ok for v in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
