"""Plans of real programs: figures, wishes, files, and a compilation under a plan."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import onetrip
from onetrip.api import backend, honour
from onetrip.base.errors import CaptureError, OnetripError, UsageError
from onetrip.frontend.capture import CapturedGraph, make_backend
from onetrip.plan.choose import Problem, plan_problem
from onetrip.plan.plan import GraphPlan


class BiasDropoutNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))
        self.dropout = nn.Dropout(0.1)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.dropout(x + self.bias))
        return out


class Chain(nn.Module):
    """gelu(linear(x)) + x, then a norm."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(nn.functional.gelu(self.dense(x)) + x)
        return out


def norm_plan(rows: int, search: str) -> onetrip.api.plans.Plan:
    with torch.device("meta"):
        model = BiasDropoutNorm(1024).train().requires_grad_(False)
        x = torch.empty(rows, 1024)
    return onetrip.plan(model, x, search=search, training=True)


@pytest.mark.parametrize("target", ["a100", "h200", "b200", "mi300x", "cpu:4"])
def test_chain_is_planned_for_every_target(target: str) -> None:
    made = onetrip.plan(Chain(), torch.randn(8, 32), target=target)
    assert made.target == target
    assert [g.kind for g in made.groups] == ["contraction", "reduction"]


def test_norm_of_dropout_of_sum_is_one_trip() -> None:
    rows = 4096
    size = rows * 1024 * 4
    eager, best = norm_plan(rows, "eager"), norm_plan(rows, "best")
    assert (eager.kernels, best.kernels) == (3, 1)
    # Beside x and the result only rows of 1024 elements and the seed are moved.
    small = 8 * 1024 * 4
    assert 0 <= eager.traffic_bytes - 6 * size <= small
    assert 0 <= best.traffic_bytes - 2 * size <= small
    assert best.bound_us <= best.estimated_us < eager.estimated_us


def test_twice_the_rows_are_twice_the_bytes_in_as_many_kernels() -> None:
    for search in ("eager", "best"):
        one, two = norm_plan(4096, search), norm_plan(8192, search)
        assert one.kernels == two.kernels
        assert two.traffic_bytes / one.traffic_bytes == pytest.approx(2, rel=1e-3)


def test_training_adds_a_backward_graph_and_figures_are_sums() -> None:
    made = onetrip.plan(Chain(), torch.randn(8, 32), training=True)
    assert [g.name for g in made.graphs] == ["forward", "backward"]
    assert made.kernels == sum(g.kernels for g in made.graphs)
    assert made.traffic_bytes == sum(g.traffic_bytes for g in made.graphs)
    assert made.estimated_us == sum(g.estimated_us for g in made.graphs)
    assert max(g.peak_bytes for g in made.graphs) <= made.peak_bytes
    assert len(made.groups) == sum(len(g.groups) for g in made.graphs)


def test_groups_add_up_to_the_plan() -> None:
    made = onetrip.plan(Chain(), torch.randn(8, 32))
    assert sum(g.bytes for g in made.groups) == made.traffic_bytes
    assert sum(g.estimated_us for g in made.groups) == pytest.approx(made.estimated_us)
    names = {g.name for g in made.groups}
    assert all({b.producer, b.consumer} <= names for b in made.boundaries if b.kept == "stored")
    assert made.memory and all(b.first <= b.last for b in made.memory)
    assert made.generated_share == 1.0


def test_a_plan_is_the_same_each_time() -> None:
    x = torch.randn(8, 32)
    assert onetrip.plan(Chain(), x).json() == onetrip.plan(Chain(), (x,)).json()


# ------------------------------------------------------------------ cut, fuse, pin


def test_cut_is_costed_again_and_fuse_takes_it_back() -> None:
    made = onetrip.plan(Chain(), torch.randn(64, 32))
    cut = made.cut("gelu", "layer_norm")
    assert cut.kernels == made.kernels + 1
    assert cut.traffic_bytes > made.traffic_bytes
    assert cut.estimated_us > made.estimated_us
    assert "user-cut" in {b.code for b in cut.boundaries}
    again = cut.fuse("gelu", "layer_norm")
    assert (again.kernels, again.traffic_bytes) == (made.kernels, made.traffic_bytes)
    assert [line.kind for line in again.lines] == ["fuse"]
    assert not made.lines


def test_fuse_forces_what_eager_keeps_apart() -> None:
    apart = onetrip.plan(Chain(), torch.randn(64, 32), search="eager")
    made = apart.fuse("gelu", "add")
    assert made.kernels == apart.kernels - 1
    assert made.traffic_bytes < apart.traffic_bytes


def test_pin_is_one_group_and_holds_nothing_else() -> None:
    made = onetrip.plan(Chain(), torch.randn(64, 32)).pin("gelu", "add")
    ops = [tuple(op for op in g.ops if op != "view") for g in made.groups]
    assert ("gelu", "add") in ops
    assert ("layer_norm",) in ops


def test_fuse_with_a_library_call_is_refused_with_the_reason() -> None:
    made = onetrip.plan(Chain(), torch.randn(64, 32))
    with pytest.raises(UsageError, match=r"fuse\(dense:addmm#0.*matrix products"):
        made.fuse("linear", "gelu")


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.GELU(), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x) * 2)
        return out


def test_an_ambiguous_or_unknown_name_lists_what_there_is() -> None:
    made = onetrip.plan(Twice(), torch.randn(8))
    with pytest.raises(UsageError, match="2 calls") as caught:
        made.cut("gelu", "mul")
    assert "first:gelu#0@" in str(caught.value) and "second:gelu#0@" in str(caught.value)
    with pytest.raises(UsageError, match="no call is named 'relu'"):
        made.cut("relu", "mul")
    assert made.cut("first:gelu", "mul").kernels == 2


@pytest.mark.parametrize(
    "wrong", [{"target": "h201"}, {"search": "fastest"}, {"numerics": "sloppy"}]
)
def test_wrong_settings_are_wrong_use(wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong.values()))):
        onetrip.plan(torch.relu, torch.randn(3), **wrong)  # type: ignore[arg-type]


# ------------------------------------------------------------------ files


def test_save_and_load(tmp_path: Path) -> None:
    made = onetrip.plan(Chain(), torch.randn(64, 32), training=True).cut("gelu", "layer_norm")
    made.save(tmp_path / "p.json")
    read = onetrip.load_plan(tmp_path / "p.json")
    assert read == made
    assert (read.kernels, read.groups, read.lines) == (made.kernels, made.groups, made.lines)
    assert read.text() == made.text()
    with pytest.raises(UsageError, match="read from a file"):
        read.cut("gelu", "add")


def test_a_file_names_no_traced_node(tmp_path: Path) -> None:
    made = onetrip.plan(Chain(), torch.randn(64, 32))
    nodes = {n.name for p in made.planned for n in p.graph.nodes if "_" in n.name}
    text = made.json()
    names = {f'"{n}"' for n in nodes}
    assert nodes and not any(name in text for name in names)


def test_load_plan_of_another_file(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"a": 1}')
    with pytest.raises(OnetripError, match="not a plan"):
        onetrip.load_plan(tmp_path / "p.json")


# ------------------------------------------------------------------ compile


def compiled_graphs(model: Any, x: Tensor) -> list[CapturedGraph]:
    """The graphs that a compilation of the model sees on this machine."""
    seen: list[CapturedGraph] = []

    def keep(captured: CapturedGraph) -> Any:
        seen.append(captured)
        return captured.module

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=make_backend(keep))(x)
    return seen


def test_the_planned_graph_is_the_compiled_graph() -> None:
    from onetrip.frontend.torch_fx import import_graph
    from onetrip.passes.canonicalize import canonicalize
    from onetrip.passes.expand import expand

    model, x = Chain().eval().requires_grad_(False), torch.randn(8, 32)
    planned = onetrip.plan(model, x, target="h200").planned
    compiled = [
        canonicalize(expand(canonicalize(import_graph(g.module).graph)))
        for g in compiled_graphs(model, x)
    ]
    assert [p.graph for p in planned] == compiled


def cut_plan(model: Any, x: Tensor, tmp_path: Path) -> Path:
    path = tmp_path / "p.json"
    onetrip.plan(model, x, target="cpu:2").cut("gelu", "layer_norm").save(path)
    return path


def test_compile_honours_a_plan_from_a_file(tmp_path: Path, monkeypatch: Any) -> None:
    from onetrip.api import pipeline

    kernels: list[int] = []
    real = pipeline.schedule_groups

    def counting(plan: Any, *rest: Any) -> Any:
        kernels.append(plan.kernels)
        return real(plan, *rest)

    monkeypatch.setattr(pipeline, "schedule_groups", counting)
    model, x = Chain().eval().requires_grad_(False), torch.randn(64, 32)
    path = cut_plan(model, x, tmp_path)
    torch._dynamo.reset()
    out = onetrip.compile(model, plan=path)(x)
    torch._dynamo.reset()
    onetrip.compile(model)(x)
    assert kernels == [3, 2]
    assert (out - model(x)).abs().max() < 1e-4


def usage_error(error: BaseException | None) -> UsageError:
    while error is not None and not isinstance(error, UsageError):
        error = error.__cause__ or getattr(error, "inner_exception", None)
    assert isinstance(error, UsageError)
    return error


def test_compile_names_the_line_that_it_cannot_honour(tmp_path: Path) -> None:
    path = cut_plan(Chain(), torch.randn(64, 32), tmp_path)
    torch._dynamo.reset()
    with torch.no_grad(), pytest.raises(Exception) as caught:
        onetrip.compile(Chain(16), plan=path)(torch.randn(64, 16))
    error = str(usage_error(caught.value))
    assert "line cut(:gelu#0" in error and "shapes differ" in error


def test_a_plan_of_an_inference_is_not_one_of_a_training_step(tmp_path: Path) -> None:
    path = cut_plan(Chain(), torch.randn(64, 32), tmp_path)
    torch._dynamo.reset()
    with pytest.raises(Exception) as caught:
        onetrip.compile(Chain(), plan=path)(torch.randn(64, 32))
    assert "training=True" in str(usage_error(caught.value))


def test_a_plan_sets_search_and_numerics_unless_they_are_given() -> None:
    from onetrip.api.honour import with_plan

    made = onetrip.plan(torch.relu, torch.randn(3), search="max", numerics="fast")
    assert with_plan({"plan": made}) == {"plan": made, "search": "max", "numerics": "fast"}
    assert with_plan({"plan": made, "search": "best"})["search"] == "best"
    assert with_plan(None) == {}
    with pytest.raises(UsageError, match="plan"):
        with_plan({"plan": 3})


@pytest.mark.parametrize(
    ("arguments", "word"), [({"numeric": "fast"}, "numerics"), ({"mode": "fastest"}, "default")]
)
def test_compile_refuses_unknown_words_at_once(arguments: dict[str, str], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        onetrip.compile(torch.relu, **arguments)  # type: ignore[arg-type]


def test_the_function_is_what_the_name_plan_means() -> None:
    import onetrip.plan.search

    assert callable(onetrip.plan)
    assert onetrip.plan is onetrip.api.plan
    assert callable(backend)
    assert onetrip.plan(torch.relu, torch.randn(3)).lines == ()


def test_batch_norm_in_evaluation_saves_its_statistics_on_a_gpu() -> None:
    """A GPU's kernel returns both for the backward pass where a CPU's returns empty tensors."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    plan = onetrip.plan(model, torch.randn(2, 3, 8, 8), target="h200", training=True)
    assert len(plan.graphs) == 2
    assert not [b for b in plan.boundaries if "batch_norm" in b.reason and b.code == "extern"]


def test_the_collector_rests_while_a_graph_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[bool] = []

    def watched(problem: Problem, *given: Any) -> GraphPlan:
        rests.append(not gc.isenabled())
        return plan_problem(problem, *given)

    monkeypatch.setattr(honour, "plan_problem", watched)
    onetrip.plan(Chain(), torch.zeros(4, 32))
    assert rests == [True] and gc.isenabled()


def test_a_tensor_that_is_no_argument_and_lies_elsewhere_is_named() -> None:
    with pytest.raises(CaptureError, match="two devices") as error:
        onetrip.plan(_reads_a_global, torch.randn(4, 8), target="h200")
    assert "target='cpu'" in str(error.value)


def test_a_target_of_another_kind_of_device_gives_way_to_the_one_at_hand() -> None:
    fast = torch.compile(_chain, backend="onetrip", options={"target": "h200"})
    x = torch.randn(64)
    with pytest.warns(RuntimeWarning, match="computes on cpu, and target h200 has figures for"):
        assert torch.equal(fast(x), _chain(x))


ELSEWHERE = torch.ones(8)


def _reads_a_global(x: torch.Tensor) -> torch.Tensor:
    return (x + ELSEWHERE).relu()


def _chain(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2 + 1
