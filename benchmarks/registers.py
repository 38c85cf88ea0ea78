"""Estimated registers, spills and shared memory beside the real assembler's, on any machine.

    python benchmarks/registers.py [--chips h200] [--only chain8,bert] [--fit] [--out FOLDER]

Plans the block suite, models of one layer and programs that press on registers for two chips, and
cross-compiles every distinct group; merges into results/checks/registers.json. `--fit` prints the
weights of `onetrip/cost/occupancy.py` with the least absolute relative error over these groups.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own spelling
from torch import Tensor

from onetrip.api.devices import device_for
from onetrip.api.pipeline import Analyzed, schedule_groups
from onetrip.api.plans import analyze_model
from onetrip.base.options import Options
from onetrip.bench.blocks import BLOCKS
from onetrip.bench.engine import versions
from onetrip.bench.models import MODELS
from onetrip.bench.table import SEED, Draw, Work
from onetrip.codegen.prelude_triton import dialect_of
from onetrip.codegen.triton import emit
from onetrip.cost.occupancy import Assembled, Need, Weights, estimate, near_limit
from onetrip.cost.pressure import Pressure, pressure
from onetrip.cost.tiles import Tile, tile_of
from onetrip.cost.traffic import stages
from onetrip.ir.nest import Nest
from onetrip.runtime.triton_assemble import assemble_all
from onetrip.target import Target, load

HERE = Path(__file__).resolve().parent
CHIPS = ("h200", "mi300x")
WIDTHS = (4096, 8192, 16384)
ONE_LAYER = {
    "bert": (32, 512, 1, 768),
    "llama": (4, 2048, 1, 4096),
    "vit": (128, 224, 1, 768),
}
"""Sizes of the models of `onetrip bench models`, by family."""
SMALLER = {"adamw_small": (4, 512), "siblings_small": (2, 64, 1024)}
"""Rows whose many kernels are alike."""


def make_norm(draw: Draw, width: int) -> Work:
    """layer_norm(gelu(x) + r)."""
    x, r, g, b = (draw.normal(*s) for s in ((4096, width), (4096, width), (width,), (width,)))
    return Work(lambda x, r, g, b: F.layer_norm(F.gelu(x) + r, (width,), g, b), (x, r, g, b))


def make_centred(draw: Draw, width: int) -> Work:
    """Four tensors without the mean of their sum: all live until it is known."""

    def fn(*xs: Tensor) -> tuple[Tensor, ...]:
        bent = [torch.tanh(x) for x in xs]
        mean = (bent[0] + bent[1] + bent[2] + bent[3]).mean(-1, keepdim=True)
        return tuple(x - mean for x in bent)

    return Work(fn, tuple(draw.normal(4096, width) for _ in range(4)))


def make_sum_of_ten(draw: Draw, width: int) -> Work:
    """softmax of the sum of tanh of ten tensors."""

    def fn(*xs: Tensor) -> Tensor:
        total = torch.tanh(xs[0])
        for x in xs[1:]:
            total = total + torch.tanh(x)
        return torch.softmax(total, -1)

    return Work(fn, tuple(draw.normal(4096, width) for _ in range(10)))


@dataclass(frozen=True)
class Group:
    """One generated group: its words and tile, what was estimated and what the assembler says."""

    row: str
    name: str
    kind: str
    tile: Tile
    pressure: Pressure
    estimated: Need
    assembled: Assembled
    near: bool

    @property
    def error(self) -> float:
        """(estimated - real) / real registers."""
        return (self.estimated.registers - self.assembled.registers) / self.assembled.registers


# ------------------------------------------------------------------ programs


@dataclass(frozen=True)
class Program:
    """A program on tensors without memory, and how its groups are searched.

    Those that press on registers are fused as far as is legal: `best` would cut them before they
    spill.
    """

    name: str
    make: Callable[..., Work]
    size: tuple[int, ...]
    dtype: torch.dtype = torch.bfloat16
    search: Literal["best", "max"] = "best"

    def work(self) -> Work:
        """The program and its inputs."""
        generator = torch.Generator().manual_seed(SEED)
        return self.make(Draw("meta", self.dtype, generator), *self.size)


def programs() -> Iterator[Program]:
    """All of them."""
    for row in BLOCKS:
        yield Program(row.name, row.make, SMALLER.get(row.name, row.sizes["cuda"]))
    for row in MODELS:
        size = ONE_LAYER.get(row.name.removesuffix("_training"))
        if size is not None:
            yield Program(row.name, row.make, size)
    for dtype in (torch.float32, torch.bfloat16):
        for make in (make_norm, make_centred, make_sum_of_ten):
            for width in WIDTHS:
                name = f"{make.__name__.removeprefix('make_')}_{width}_{str(dtype)[6:]}"
                yield Program(name, make, (width,), dtype, "max")


# ------------------------------------------------------------------ groups


def groups(target: Target, only: Sequence[str]) -> Iterator[Group]:
    """Every distinct generated group of the programs."""
    seen: set[Any] = set()
    for program in programs():
        if only and not any(program.name.startswith(o) for o in only):
            continue
        work, options = program.work(), Options(search=program.search)
        training = bool(work.sources)
        count = len(seen)
        for graph in analyze_model(work.fn, work.args, None, target, options, training=training):
            yield from _groups_of(program.name, graph, target, seen)
        print(f"{target.name:7} {program.name:28} {len(seen) - count:3} groups", flush=True)


def _groups_of(row: str, analyzed: Analyzed, target: Target, seen: set[Any]) -> Iterator[Group]:
    device = device_for(torch.device(target.device), target)
    dialect = dialect_of(target)
    scheduled = schedule_groups(analyzed.plan, target, device, Options())
    for group in analyzed.plan.groups:
        if group.nest is None or scheduled[group.name].kernels in seen:
            continue
        kernels = scheduled[group.name].kernels
        seen.add(kernels)
        yield _measured(row, group.name, group.kind, group.nest, target,
                        assemble_all([emit(k, dialect) for k in kernels], target))  # fmt: skip


def _measured(
    row: str, name: str, kind: str, nest: Nest, target: Target, made: Sequence[Assembled]
) -> Group:
    passes = stages(nest)
    tile = tile_of(nest, passes, target, {})
    found = estimate(nest, target)
    return Group(
        row,
        name,
        kind,
        tile,
        pressure(nest, passes, tile.held),
        found,
        Assembled.most(made),
        near_limit(found, target),
    )


# ------------------------------------------------------------------ figures


def record(found: Sequence[Group]) -> dict[str, Any]:
    """The distribution of the error, and how well spills are foreseen."""
    kinds = sorted({g.kind for g in found})
    spilled = [g for g in found if g.assembled.spill_bytes]
    return {
        "groups": len(found),
        "registers": _errors(found),
        "registers_by_kind": {k: _errors([g for g in found if g.kind == k]) for k in kinds},
        "shared_bytes_equal": _share(
            found, lambda g: g.estimated.shared_bytes == g.assembled.shared_bytes
        ),
        "near_a_limit": sum(g.near for g in found),
        "spill": len(spilled),
        "spill_and_are_asked_for": sum(g.near for g in spilled),
        "spills": [
            {
                "group": f"{g.row}/{g.name}",
                "estimated_bytes": g.estimated.spill_bytes,
                "assembled_bytes": g.assembled.spill_bytes,
            }
            for g in spilled
        ],
    }


def _errors(found: Sequence[Group]) -> dict[str, Any]:
    sizes = [abs(g.error) for g in found]
    cuts = quantiles(sizes, n=10, method="inclusive") if len(sizes) > 1 else sizes * 9
    return {
        "groups": len(found),
        "median_error": round(median(sizes), 3),
        "error_below_which_nine_tenths_lie": round(cuts[8], 3),
        "largest_error": round(max(sizes), 3),
        "median_of_signed_error": round(median(g.error for g in found), 3),
    }


def _share(found: Sequence[Group], holds: Callable[[Group], bool]) -> float:
    return round(sum(map(holds, found)) / len(found), 3)


# ------------------------------------------------------------------ the fit


def fitted(found: Sequence[Group], packed: bool, rounds: int = 60) -> Weights:
    """Weights with the least sum of absolute relative errors, by reweighted least squares.

    Groups at the chip's limit say nothing of how much they want, and are left out.
    """
    inside = [g for g in found if not g.assembled.spill_bytes]
    real = np.array([g.assembled.registers for g in inside], float)
    words = np.array([_row(g, packed) for g in inside], float) / real[:, None]
    weight = np.ones(len(inside))
    for _ in range(rounds):
        scale = np.sqrt(weight)
        factors, *_ = np.linalg.lstsq(words * scale[:, None], scale, rcond=None)
        weight = 1 / np.maximum(np.abs(words @ factors - 1), 0.02)
    base, moved, kept, state, temporaries, branch = (round(float(f), 2) for f in factors)
    return Weights(base, packed, moved, kept, state, temporaries, branch)


def _row(g: Group, packed: bool) -> tuple[float, ...]:
    p, each = g.pressure, g.tile.elements
    moved = p.packed if packed else p.moved
    crossing = moved + p.temporaries if p.branches else 0
    return (1, each * moved, each * p.kept, each * p.state, p.temporaries, each * crossing)


def main() -> int:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose names begin so, with commas")
    parser.add_argument("--chips", default=",".join(CHIPS), help="targets, with commas")
    parser.add_argument("--fit", action="store_true", help="print weights fitted to these groups")
    parser.add_argument("--out", default=str(HERE / "results"))
    args = parser.parse_args()
    only = [o for o in args.only.split(",") if o]
    path = Path(args.out) / "checks" / "registers.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    for name in args.chips.split(","):
        found = list(groups(load(name), only))
        made = {"date": date.today().isoformat(), "versions": versions(), **record(found)}
        print(json.dumps({k: v for k, v in made.items() if k != "spills"}, indent=1))
        if args.fit:
            print(name, asdict(fitted(found, load(name).vendor == "nvidia")))
        kept = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**kept, name: made}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
