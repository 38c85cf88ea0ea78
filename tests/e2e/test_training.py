"""Training: optimizers, running statistics, dropout's masks, sums of gradients, a short run."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from builds import externs, steps_of, watched
from checks import compiled
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from onetrip.api.devices import device_for
from onetrip.api.pipeline import Built, analyze, schedule_groups
from onetrip.base.options import Options
from onetrip.frontend.ahead import capture_graphs
from onetrip.ir.kernel import Kernel, Loop, Mapping, statements
from onetrip.ir.program import Alloc, Call, Launch, Update
from onetrip.runtime.accuracy import judge
from onetrip.target import load

STEPS = 5
SHAPES = ((16, 8), (5, 3), (33,))
SKIPPED = "ignore:onetrip runs a graph:RuntimeWarning"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Built]:
    """Grows by what each compilation built."""
    return watched(monkeypatch)


# ---------------------------------------------------------------- optimizers

OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {}),
    "SGD with momentum": ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "SGD, dampened, maximizing": (
        "SGD",
        {"momentum": 0.9, "dampening": 0.1, "maximize": True},
    ),
    "Adam": ("Adam", {}),
    "Adam, amsgrad": ("Adam", {"amsgrad": True, "maximize": True, "weight_decay": 0.1}),
    "AdamW": ("AdamW", {}),
    "Adamax": ("Adamax", {}),
    "NAdam": ("NAdam", {"decoupled_weight_decay": True, "weight_decay": 0.01}),
    "RAdam": ("RAdam", {}),
    "Adagrad": ("Adagrad", {}),
    "Adadelta": ("Adadelta", {}),
    "RMSprop": ("RMSprop", {"centered": True, "momentum": 0.9}),
    "Rprop": ("Rprop", {}),
    "ASGD": ("ASGD", {}),
}
FIRST_STEP_DIFFERS = {"SGD with momentum", "SGD, dampened, maximizing"}
COPIED = {"ASGD"}
"""Whose state holds numbers that become a result without being read: eta and mu of each weight."""


def trained(
    name: str, options: dict[str, Any], dtype: torch.dtype, backend: str | None, steps: int = STEPS
) -> list[Tensor]:
    """Parameters and state after some steps with the same gradients."""
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(s).to(dtype)) for s in SHAPES]
    optimizer = getattr(torch.optim, name)(weights, **options)
    step = optimizer.step if backend is None else torch.compile(optimizer.step, backend=backend)
    for k in range(steps):
        generator = torch.Generator().manual_seed(k)
        for w in weights:
            w.grad = torch.randn(w.shape, generator=generator).to(dtype)
        step()
    state = [v for w in weights for v in optimizer.state[w].values() if isinstance(v, Tensor)]
    return [w.detach() for w in weights] + state


def assert_trains(name: str, options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    ours = trained(name, options, torch.float32, "onetrip")
    eager = trained(name, options, torch.float32, None)
    exact = trained(name, options, torch.float64, None)
    verdict = judge(tuple(ours), tuple(eager), tuple(exact))
    assert verdict.ok, verdict


@pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "one by one"])
@pytest.mark.parametrize("case", OPTIMIZERS)
def test_optimizers(case: str, foreach: bool, built: list[Built]) -> None:
    """Right, compiled once whatever the step's number, in kernels of ours, in place."""
    name, options = OPTIMIZERS[case]
    assert_trains(name, {**options, "foreach": foreach})
    assert len(built) == 1 + (case in FIRST_STEP_DIFFERS)
    assert steps_of(built, Call) == []
    assert (steps_of(built[-1:], Update) != []) == (case in COPIED)


def test_an_optimizer_of_products(built: list[Built]) -> None:
    """Muon's iteration is matrix products; it takes matrices only."""
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    torch._dynamo.reset()
    results = []
    for dtype, backend in (
        (torch.float32, "onetrip"),
        (torch.float32, None),
        (torch.float64, None),
    ):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(16, 8).to(dtype))
        optimizer = torch.optim.Muon([weight])
        step = torch.compile(optimizer.step, backend=backend) if backend else optimizer.step
        for k in range(2):
            weight.grad = torch.randn(16, 8, generator=torch.Generator().manual_seed(k)).to(dtype)
            step()
        results.append((weight.detach(),))
    assert judge(*results).ok
    assert len(built) == 1 and externs(built) == []


@pytest.mark.filterwarnings(SKIPPED)
@pytest.mark.parametrize("name", ["Adafactor", "LBFGS", "SparseAdam"])
def test_optimizers_that_python_steers_run_as_before(name: str) -> None:
    """They read numbers back in every step, so Dynamo breaks the graph; values stay eager's."""
    torch._dynamo.reset()
    results = []
    for backend in (None, "onetrip"):
        torch.manual_seed(0)
        sparse = name == "SparseAdam"
        layer: Any = nn.Embedding(8, 4, sparse=True) if sparse else nn.Linear(4, 4)
        x = torch.tensor([1, 3, 3]) if sparse else torch.randn(5, 4)
        optimizer = getattr(torch.optim, name)(layer.parameters())
        step = torch.compile(optimizer.step, backend=backend) if backend else optimizer.step

        def closure(layer: Any = layer, x: Tensor = x, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = layer(x).square().sum()
            loss.backward()
            return loss

        for _ in range(2):
            closure()
            step(closure) if name == "LBFGS" else step()
        results.append([p.detach() for p in layer.parameters()])
    for ours, eager in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager)


def test_a_rate_that_changes_compiles_once(built: list[Built]) -> None:
    """As in every use of torch.compile, the rate that a scheduler changes is a tensor."""
    results = []
    for backend in (None, "onetrip"):
        torch._dynamo.reset()
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(7, 5))
        optimizer = torch.optim.SGD([weight], lr=torch.tensor(0.1), momentum=0.9)  # type: ignore[arg-type]
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        step = torch.compile(optimizer.step, backend=backend) if backend else optimizer.step
        for _ in range(STEPS):
            weight.grad = weight.detach() * 0.5
            step()
            scheduler.step()
        results.append(weight.detach())
    torch.testing.assert_close(*results)
    assert len(built) == 2, "the first step makes the momentum, the others update it"


def test_bytes_of_an_update(built: list[Built]) -> None:
    """AdamW reads p, g, m, v and writes p, m, v, each once; the step's number is 4 bytes."""
    torch._dynamo.reset()
    weight = nn.Parameter(torch.randn(256, 64))
    step = torch.compile(torch.optim.AdamW([weight]).step, backend="onetrip")
    weight.grad = torch.randn(256, 64)
    step()
    (made,) = built
    size = weight.numel() * 4
    assert steps_of(built, Update) == steps_of(built, Alloc) == []
    assert made.program.arena_bytes == 0
    large = [g for g in made.analyzed.plan.groups if g.bytes > size]
    (update,) = large
    assert sum(n for _, n in update.reads if n > 4) == 4 * size
    assert sum(n for _, n in update.writes if n > 4) == 3 * size
    assert sum(g.bytes for g in made.analyzed.plan.groups) <= 7 * size + 16


def test_a_whole_step_compiled(built: list[Built]) -> None:
    """Forward, backward and update in one compiled function; Dynamo splits it at the backward."""
    results = []
    for backend in (None, "onetrip"):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

        def step(x: Tensor, model: Any = model, optimizer: Any = optimizer) -> Tensor:
            loss: Tensor = (model(x) - x.sum(-1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        run: Any = torch.compile(step, backend=backend) if backend else step
        x = torch.randn(32, 8)
        results.append(torch.stack([run(x) for _ in range(8)]))
    eager, ours = results
    assert ours[-1] < ours[0]
    torch.testing.assert_close(ours, eager)
    assert externs(built) == []
    roles = [b.analyzed.role for b in built]
    assert {"forward", "backward", "inference"} <= set(roles)


def test_running_statistics(built: list[Built]) -> None:
    results = []
    for backend in (None, "onetrip"):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        run: Any = torch.compile(model, backend=backend) if backend else model
        for _ in range(3):
            with torch.no_grad():
                run(torch.randn(2, 3, 8, 8))
        results.append([b.float() for b in model.buffers()])
    for ours, eager in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager)
    assert externs(built) == []


# ---------------------------------------------------------------- dropout

DROPOUTS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "Dropout": (nn.Dropout(0.3), (64, 32)),
    "Dropout1d": (nn.Dropout1d(0.3), (8, 16, 8)),
    "Dropout2d": (nn.Dropout2d(0.3), (8, 16, 4, 4)),
    "Dropout3d": (nn.Dropout3d(0.3), (8, 16, 2, 2, 2)),
    "AlphaDropout": (nn.AlphaDropout(0.3), (64, 32)),
    "FeatureAlphaDropout": (nn.FeatureAlphaDropout(0.3), (8, 16, 4, 4)),
}


def saved_bytes(forward: Built) -> int:
    """Bytes that a forward graph keeps for the backward beside its inputs and first result."""
    graph = forward.analyzed.graph
    inputs = {v.name for v in graph.inputs}
    kept = [v for v in graph.outputs[1:] if v is not None and getattr(v, "name", "") not in inputs]
    return sum(int(v.type.numel) * v.type.dtype.itemsize for v in kept)  # type: ignore[union-attr]


@pytest.mark.parametrize("case", DROPOUTS)
def test_dropout_keeps_a_seed_and_no_mask(case: str, built: list[Built]) -> None:
    """The layers are linear or affine: an element's gradient tells whether it was kept."""
    layer, shape = DROPOUTS[case]
    torch._dynamo.reset()
    run = torch.compile(layer, backend="onetrip")
    results = []
    for seed in (1, 1, 2):
        x = torch.full(shape, 2.0, requires_grad=True)
        torch.manual_seed(seed)
        y = run(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        results.append((y.detach(), gradient))
    (y, g), again, other = results
    dropped = g == 0
    assert 0.05 < dropped.float().mean() < 0.6
    assert y[dropped].unique().numel() == y[~dropped].unique().numel() == 1
    assert y[dropped].unique() != y[~dropped].unique()
    assert torch.equal(y, again[0]) and torch.equal(g, again[1])
    assert not torch.equal(g, other[1])
    (forward,) = [b for b in built if b.analyzed.role == "forward"]
    assert saved_bytes(forward) <= 8
    assert externs(built) == []


def test_dropout_in_a_checkpoint(built: list[Built]) -> None:
    def region(x: Tensor) -> Tensor:
        return nn.functional.dropout(x * x, 0.5).sin()

    ours_fn = compiled(lambda x: checkpoint(region, x, use_reentrant=False))
    x = torch.rand(16, 16, requires_grad=True)
    y = ours_fn(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(y.detach() == 0, gradient == 0)
    assert 0.3 < (gradient == 0).float().mean() < 0.7
    (forward,) = [b for b in built if b.analyzed.role == "forward"]
    assert saved_bytes(forward) <= 8


def test_dropout_in_attention(built: list[Built]) -> None:
    """With values that are the identity, the result is the dropped weights themselves."""

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.4)

    q, k = torch.randn(2, 2, 8, 4), torch.randn(2, 2, 8, 4)
    v = torch.eye(8).expand(2, 2, 8, 8).clone().requires_grad_()
    torch.manual_seed(3)
    weights = compiled(fn)(q, k, v)
    marks = torch.zeros(2, 2, 8, 8)
    marks[..., 0, :] = 1  # the gradient of v is then the first row of weights
    (gradient,) = torch.autograd.grad((weights * marks).sum(), v)
    kept = weights.detach()[..., 0, :]
    assert 0 < (kept == 0).sum() < kept.numel()
    torch.testing.assert_close(gradient[..., 0], kept)
    assert externs(built) == []


def test_two_models_draw_their_own_masks() -> None:
    torch._dynamo.reset()
    models = [nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)) for _ in range(2)]
    for m in models:
        m.load_state_dict(models[0].state_dict())
    runs = [torch.compile(m, backend="onetrip") for m in models]
    x = torch.randn(8, 64)

    def both() -> list[Tensor]:
        torch.manual_seed(7)
        return [run(x).detach() for run in runs]

    first, second = both()
    assert not torch.equal(first, second)
    assert all(torch.equal(a, b) for a, b in zip((first, second), both(), strict=True))


# ---------------------------------------------------------------- a short run


@pytest.fixture(scope="module")
def training() -> Iterator[Any]:
    """The script benchmarks/training.py as a module."""
    path = Path(__file__).parents[2] / "benchmarks" / "training.py"
    spec = importlib.util.spec_from_file_location("training_benchmark", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_a_short_run_learns_and_repeats(name: str, training: Any, built: list[Built]) -> None:
    (task,) = [t for t in training.TASKS if t.name == name]
    eager = training.losses(task, 0, 20)
    ours, again = (training.losses(task, 0, 20, "onetrip") for _ in range(2))
    assert ours == again
    start, end, reached = (sum(x) / 5 for x in (ours[:5], ours[-5:], eager[-5:]))
    assert end < start
    assert abs(end - reached) < start - end, "compiled and eager learn about as much"
    assert steps_of(built, Launch)


# ---------------------------------------------------------------- gradients of small operands


class Biased(nn.Module):
    """gelu(x + bias)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.gelu(x + self.bias)


LONG_SUMS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "bias": (Biased(768), (4096, 768)),
    "layer norm": (nn.LayerNorm(768), (4096, 768)),
    "rms norm": (nn.RMSNorm(768), (4096, 768)),
    "batch norm": (nn.BatchNorm2d(64), (32, 64, 56, 56)),
}


@pytest.mark.parametrize("name", ["h200", "cpu:2"])
@pytest.mark.parametrize("case", LONG_SUMS)
def test_long_column_sums_are_made_in_parts(case: str, name: str) -> None:
    """Each weight's gradient is a sum over rows: parts side by side, then the sum of the parts."""
    layer, shape = LONG_SUMS[case]
    torch._dynamo.reset()
    target = load(name)
    device = torch.device("cuda" if target.device == "cuda" else "cpu")
    x = torch.randn(shape, requires_grad=True)
    graphs = capture_graphs(layer, x, device=device, training=True)
    (backward,) = [g for g in graphs if g.role == "backward"]
    plan = analyze(backward, target, Options()).plan
    made = schedule_groups(plan, target, device_for(device, target), Options())
    sums = [s for g, s in made.items() if plan.by_name[g].kind == "reduction"]
    assert any(_in_parts(s.kernels) for s in sums)


def _in_parts(kernels: tuple[Kernel, ...]) -> bool:
    """A kernel for the parts, one that joins them, perhaps one that reads the sums; on a CPU loops
    of one kernel."""
    if len(kernels) > 1:
        over_parts = [any(x.axis.name == "part" for x in _loops(k, Mapping.GRID)) for k in kernels]
        return over_parts in ([True, False], [True, False, False])
    (kernel,) = kernels
    return len(_loops(kernel, Mapping.THREADS)) > 1


def _loops(kernel: Kernel, mapping: Mapping) -> list[Loop]:
    return [s for s in statements(kernel.body) if isinstance(s, Loop) and s.mapping is mapping]
