"""A plan given to a compilation: each line is honoured, or named with the reason; what differs."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import onetrip
from onetrip.api import pipeline
from onetrip.api.honour import PlanWarning
from onetrip.base.errors import OnetripError, UsageError
from onetrip.report.view import Plan

X = torch.linspace(-1, 1, 64 * 32).reshape(64, 32)


class Broken(nn.Module):
    """Two graphs: a product with its activation, and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(32, 32)
        self.norm = nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.gelu(self.dense(x)).sin()
        torch._dynamo.graph_break()
        out: Tensor = self.norm(y + x)
        return out


def root(error: BaseException | None) -> OnetripError:
    while error is not None and not isinstance(error, OnetripError):
        error = error.__cause__ or getattr(error, "inner_exception", None)
    assert isinstance(error, OnetripError)
    return error


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Role and kernels of each graph that is built."""
    found: list[tuple[str, int]] = []
    compiling = importlib.import_module("onetrip.api.backend")  # the name is a function's as well
    real = pipeline.build

    def counting(analyzed: Any, *rest: Any) -> Any:
        found.append((analyzed.role, analyzed.plan.kernels))
        return real(analyzed, *rest)

    monkeypatch.setattr(compiling, "build", counting)
    torch._dynamo.reset()
    return found


def refused(model: Any, plan: Any, x: Tensor = X) -> str:
    torch._dynamo.reset()
    with torch.no_grad(), pytest.raises(Exception) as caught:
        onetrip.compile(model, plan=plan)(x)
    return str(root(caught.value))


# ------------------------------------------------------------------ several graphs


def test_lines_reach_the_graphs_they_are_about(
    tmp_path: Path, kernels: list[tuple[str, int]]
) -> None:
    model = Broken()
    x, y = (X.clone().requires_grad_() for _ in range(2))
    free = onetrip.plan(model, x, target="cpu:2", training=True)
    assert [g.name for g in free.graphs] == ["forward", "backward", "forward2", "backward2"]
    steered = free.cut("forward/gelu", "forward/sin").cut("add", "forward2/layer_norm")
    steered.save(tmp_path / "p.json")
    out = onetrip.compile(model, plan=tmp_path / "p.json")(x)
    (out * X.sin().t().reshape(64, 32)).sum().backward()
    assert sorted(kernels) == sorted((g.role, g.kernels) for g in steered.graphs)
    assert [g.kernels for g in steered.graphs] != [g.kernels for g in free.graphs]
    (model(y) * X.sin().t().reshape(64, 32)).sum().backward()
    torch.testing.assert_close(out, model(X))
    torch.testing.assert_close(x.grad, y.grad)


def test_a_name_of_two_graphs_says_which_there_are() -> None:
    free = onetrip.plan(Broken(), X, training=True)
    with pytest.raises(UsageError, match="2 calls") as caught:
        free.cut("dense:linear", "gelu")
    assert "forward/dense:addmm" in str(caught.value)
    assert "backward/dense:mm" in str(caught.value)


# ------------------------------------------------------------------ what cannot be honoured


def chain(x: Tensor) -> Tensor:
    return functional.gelu(x * 2).sin()


def other(x: Tensor) -> Tensor:
    return functional.gelu(x * 2).cos()


def test_a_plan_for_another_graph_says_how_much_of_it_is_there(tmp_path: Path) -> None:
    plan = onetrip.plan(chain, X, target="cpu:2").cut("gelu", "sin")
    error = refused(other, plan)
    assert "line cut(:gelu#0" in error and "the model has no such call" in error
    assert "2 of the plan's 3 calls are in this graph of 3 calls" in error


def test_a_plan_for_another_chip_and_torch_says_so(tmp_path: Path) -> None:
    onetrip.plan(chain, X, target="h200").cut("gelu", "sin").save(tmp_path / "p.json")
    made = json.loads((tmp_path / "p.json").read_text())
    (tmp_path / "p.json").write_text(json.dumps({**made, "torch": "1.0"}))
    error = refused(other, tmp_path / "p.json")
    assert "the plan is for h200, this is cpu:" in error
    assert f"made with torch 1.0, this is {torch.__version__}" in error


def test_lines_of_a_plan_for_another_chip_are_honoured(kernels: list[tuple[str, int]]) -> None:
    plan = onetrip.plan(chain, X, target="h200").cut("gelu", "sin")
    with torch.no_grad():
        torch.testing.assert_close(onetrip.compile(chain, plan=plan)(X), chain(X))
    assert kernels == [("inference", 2)]


def test_a_plan_without_lines_for_another_graph_is_a_warning() -> None:
    plan = onetrip.plan(chain, X, target="cpu:2")
    torch._dynamo.reset()
    with torch.no_grad(), pytest.warns(PlanWarning, match="2 of the plan's 3 calls"):
        onetrip.compile(other, plan=plan)(X)


def fingerprints(plan: Any, function: Any) -> tuple[str, str]:
    """Of the plan's graph, and of what the function is now."""
    (now,) = onetrip.plan(function, X, target="cpu:2").graphs
    return plan.graphs[0].key, now.key


def test_both_fingerprints_are_named() -> None:
    plan = onetrip.plan(chain, X, target="cpu:2")
    planned, now = fingerprints(plan, other)
    assert planned != now
    told = f"the plan's fingerprints are {planned}, this graph's is {now}"
    torch._dynamo.reset()
    with torch.no_grad(), pytest.warns(PlanWarning, match=told):
        onetrip.compile(other, plan=plan)(X)
    assert told in refused(other, plan.cut("gelu", "sin"))


def without_lines_of(graph: str, plan: Any) -> Plan:
    """The plan as it is in a file where only other graphs have lines."""
    document = plan.document
    graphs = tuple(
        msgspec.structs.replace(g, lines=() if g.name == graph else g.lines)
        for g in document.graphs
    )
    return Plan(msgspec.structs.replace(document, graphs=graphs))


def test_a_plan_with_lines_for_other_graphs_alone_says_so() -> None:
    """Of the same model as it was: a warning. Of one that shares no call with it: an error."""
    steered = onetrip.plan(chain, X.clone().requires_grad_(), target="cpu:2", training=True)
    plan = without_lines_of("forward", steered.pin("backward/gelu_backward"))
    assert [bool(g.lines) for g in plan.graphs] == [False, True]

    def unlike(x: Tensor) -> Tensor:
        return functional.softmax(x.tanh(), -1)

    torch._dynamo.reset()
    with pytest.warns(PlanWarning, match="no lines for this one"):
        onetrip.compile(other, plan=plan)(X.clone().requires_grad_())
    torch._dynamo.reset()
    with pytest.raises(Exception) as caught:
        onetrip.compile(unlike, plan=plan)(X.clone().requires_grad_())
    assert "the plan is of another model" in str(root(caught.value))
    assert "this graph's is" in str(root(caught.value))


OTHER_PURPOSE: dict[bool, tuple[str, ...]] = {
    False: ("is of a training step, and the model is compiled for inference", "gradients"),
    True: ("is of inference, and the model is compiled for a training step", "training=True",
           "torch.no_grad()"),
}  # fmt: skip


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("steered", [False, True])
def test_a_plan_of_the_other_purpose_says_which_and_how_to_get_one(
    training: bool, steered: bool
) -> None:
    x = X.clone().requires_grad_()
    plan = onetrip.plan(chain, x, target="cpu:2", training=not training)
    if steered:
        plan = plan.cut("gelu", "sin") if training else plan.cut("forward/gelu", "forward/sin")
    torch._dynamo.reset()
    told = OTHER_PURPOSE[training]
    with torch.set_grad_enabled(training):
        if steered:
            with pytest.raises(Exception) as caught:
                onetrip.compile(chain, plan=plan)(x)
            text = str(root(caught.value))
            assert "cut(" in text
        else:
            with pytest.warns(PlanWarning) as warned:
                onetrip.compile(chain, plan=plan)(x)
            text = str(warned[0].message)
    assert all(words in text for words in told), text


def test_a_line_that_the_chip_or_the_library_refuses_has_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    model = Broken()
    onetrip.plan(model, X, target="cpu:2").cut("gelu", "sin").save(path)
    made = json.loads(path.read_text())
    graph = made["graphs"][0]
    graph["lines"] = [{"kind": "fuse", "calls": [_key(graph, "addmm"), _key(graph, "gelu")]}]
    path.write_text(json.dumps(made))
    error = refused(model, path)
    assert "fuse(dense:addmm#0" in error and "matrix products" in error and "next step" in error


def test_lines_that_contradict_each_other(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    onetrip.plan(chain, X, target="cpu:2").cut("gelu", "sin").save(path)
    made = json.loads(path.read_text())
    (line,) = made["graphs"][0]["lines"]
    made["graphs"][0]["lines"].append({"kind": "fuse", "calls": line["calls"]})
    path.write_text(json.dumps(made))
    error = refused(chain, path)
    assert "fuse(:gelu#0" in error and "cut(:gelu, :sin) was asked for" in error


def _key(graph: dict[str, Any], op: str) -> str:
    keys = (k for g in graph["groups"] for k in g["nodes"] if f":{op}#0" in k)
    return next(keys).split("[")[0]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"kind": "onetrip.plan", "format": 1}'])
def test_a_file_that_is_no_plan_is_refused_before_anything_is_compiled(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(OnetripError, match="plan") as caught:
        onetrip.compile(chain, plan=tmp_path / "p.json")
    assert str(tmp_path / "p.json") in str(caught.value)


# ------------------------------------------------------------------ illegal wishes


def test_an_illegal_fuse_gives_the_reason() -> None:
    def through(x: Tensor, w: Tensor) -> Tensor:
        a = x.exp()
        return a + torch.sort(a @ w, dim=1).values

    def rows(x: Tensor) -> Tensor:
        return (x + x.sum()).sum(1)

    made = onetrip.plan(through, (X, torch.ones(32, 32)))
    with pytest.raises(UsageError, match=r"fuse\(:exp.*cannot be honoured") as caught:
        made.fuse("exp", "add")
    assert "mm" in str(caught.value) or "sort" in str(caught.value)
    with pytest.raises(UsageError, match="no iteration space in common"):
        onetrip.plan(rows, X).fuse("sum#0", "sum#1")


def test_a_view_or_a_group_is_no_call() -> None:
    def viewed(x: Tensor) -> Tensor:
        return x.exp().view(32, 64).t().contiguous().sum(0)

    made = onetrip.plan(viewed, X)
    with pytest.raises(UsageError, match="is a view") as caught:
        made.cut("view", "sum")
    assert ":exp" in str(caught.value)
    group = made.groups[0].name
    with pytest.raises(UsageError, match=f"'{group}' is a group") as caught:
        made.pin(group)
    assert ":exp" in str(caught.value)
