"""Images lie channels-last between convolutions, and the program sees nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from onetrip.frontend import layout
from onetrip.frontend.ahead import capture_graphs
from onetrip.frontend.capture import CapturedGraph
from onetrip.runtime.accuracy import InFloat64, judge, wide

CUDA = torch.device("cuda")
CONVOLUTION = torch.ops.aten.convolution.default
CLONE = torch.ops.aten.clone.default


class Net(nn.Module):
    """Convolutions, norm, pooling, a residual, and a flattening that no image lies right for."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8 * 16, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = functional.relu(self.norm(self.first(x)))
        y = functional.max_pool2d(y, 2)
        z = y + self.second(y)
        return z, self.head(z.flatten(1))


def calls(graph: CapturedGraph, target: Any) -> list[torch.fx.Node]:
    return list(graph.module.graph.find_nodes(op="call_function", target=target))


def is_turned(node: torch.fx.Node) -> bool:
    value: Tensor = node.meta["val"]
    return value.is_contiguous(memory_format=torch.channels_last)


def captured(module: nn.Module, x: Tensor, *, training: bool = False) -> list[CapturedGraph]:
    return list(capture_graphs(module, x, device=CUDA, training=training))


def images(dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(2, 3, 8, 8, dtype=dtype)


def test_one_copy_in_and_one_out() -> None:
    (graph,) = captured(Net().bfloat16().eval(), images())
    first, second = calls(graph, CONVOLUTION)
    assert all(map(is_turned, (first, second, first.args[0], second.args[0])))
    z, _ = graph.module.graph.output_node().args[0]
    assert z.meta["val"].stride() == (128, 16, 4, 1)
    # The image, the result, and what the flattening reads: it cannot view channels-last rows.
    assert len(calls(graph, CLONE)) == 3


def test_a_backward_graph_reads_what_the_forward_saved_as_it_lies() -> None:
    forward, backward = captured(Net().bfloat16(), images(), training=True)
    for node in calls(backward, torch.ops.aten.convolution_backward.default):
        assert all(map(is_turned, node.args[:2]))
    saved = {n.name: n.meta["val"].stride() for n in forward.module.graph.output_node().args[0]}
    given = {n.name: n.meta["val"].stride() for n in backward.module.graph.find_nodes(
        op="placeholder")}  # fmt: skip
    shared = saved.keys() & given.keys()
    assert any(len(saved[name]) == 4 for name in shared)
    assert all(saved[name] == given[name] for name in shared)


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (nn.Conv2d(3, 8, 3), images(torch.float32)),
        (nn.Conv2d(4, 8, 3, groups=2).bfloat16(), torch.randn(2, 4, 8, 8).bfloat16()),
        (nn.ConvTranspose2d(3, 8, 3).bfloat16(), images()),
        (nn.Conv1d(3, 8, 3).bfloat16(), torch.randn(2, 3, 8).bfloat16()),
        (nn.Conv2d(3, 8, 1).bfloat16(), torch.randn(2, 3, 1, 1).bfloat16()),
    ],
    ids=["float32", "groups", "transposed", "one axis", "one place"],
)
def test_what_gains_nothing_stays(module: nn.Module, x: Tensor) -> None:
    (graph,) = captured(module.eval(), x)
    assert not calls(graph, CLONE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_cpu_turns_weights_too_and_no_lone_convolution(dtype: torch.dtype) -> None:
    cpu = torch.device("cpu")
    (graph,) = capture_graphs(Net().eval().to(dtype), images(dtype), device=cpu, training=False)
    first, second = calls(graph, CONVOLUTION)
    operands = [a for call in (first, second) for a in call.args[:2]]
    assert all(isinstance(a, torch.fx.Node) and is_turned(a) for a in operands)
    lone = nn.Conv2d(3, 8, 3).eval()
    (graph,) = capture_graphs(lone, images(torch.float32), device=cpu, training=False)
    assert not calls(graph, CLONE)


@pytest.mark.parametrize(("channels", "turned"), [(16, True), (160, False)])
def test_wide_gradients_on_a_cpu_stay_as_they_are(channels: int, turned: bool) -> None:
    """And so does the forward pass that they belong to; without gradients it is turned."""
    net = nn.Sequential(nn.Conv2d(3, channels, 3), nn.ReLU(), nn.Conv2d(channels, channels, 3))
    for training in (True, False):
        graphs = capture_graphs(
            net.train(training), images(torch.float32), device=torch.device("cpu"),
            training=training,
        )  # fmt: skip
        convolutions = calls(next(iter(graphs)), CONVOLUTION)
        assert len(convolutions) == 2
        assert all(is_turned(c) for c in convolutions) == (turned or not training)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    dtypes = frozenset({torch.float32, torch.bfloat16})
    monkeypatch.setattr(layout, "_FASTER", {"cpu": dtypes})
    monkeypatch.setattr(layout, "_LEAST", {})
    torch._dynamo.reset()


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("training", [False, True])
def test_values_gradients_and_strides_are_eager_s(
    memory_format: torch.memory_format, training: bool
) -> None:
    torch.manual_seed(0)
    model, x = Net().train(training), images(torch.float32).to(memory_format=memory_format)
    weights = [torch.randn(2, 8, 4, 4), torch.randn(2, 5)]

    def step(run: Callable[..., Any], x: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
        outputs = run(x)
        loss = sum((o * w.to(o.dtype)).sum() for o, w in zip(outputs, weights, strict=True))
        return (*outputs, *torch.autograd.grad(loss, leaves)) if training else outputs

    ours = step(torch.compile(model, backend="onetrip"), x, *model.parameters())
    eager = step(model, x, *model.parameters())
    twin = Net().train(training).double()
    twin.load_state_dict(model.state_dict())
    with InFloat64():
        exact = step(twin, wide(x), *twin.parameters())
    assert [t.stride() for t in ours] == [t.stride() for t in eager]
    verdict = judge(ours, eager, exact)
    assert verdict.ok, verdict.note


@pytest.mark.usefixtures("on_cpu")
def test_a_reader_of_the_storage_reads_it_as_eager_lays_it() -> None:
    conv = nn.Conv2d(3, 4, 3)

    def program(x: Tensor) -> Tensor:
        return conv(x).as_strided((5, 7), (7, 1), 3) + 1

    x = images(torch.float32)
    with torch.no_grad():
        right = program(x)
        found = torch.compile(program, backend="onetrip")(x)
    assert torch.allclose(found, right, rtol=1e-5, atol=1e-6)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "slice": lambda y: y[:, 1:],
    "slice of a slice": lambda y: y[:, 1:, ::2].transpose(2, 3),
    "part": lambda y: y.chunk(2, 1)[1],
    "expanded": lambda y: y[:, :1].expand(-1, 3, -1, -1),
    "storage of a slice": lambda y: y[:, 1:].as_strided((5, 7), (11, 1)) + 1,
}


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_with_gaps_lies_as_eager_lays_it(name: str) -> None:
    conv = nn.Conv2d(3, 4, 3)

    def program(x: Tensor) -> Tensor:
        return VIEWS[name](conv(x) * 2)

    x = images(torch.float32)
    with torch.no_grad():
        right = program(x)
        found = torch.compile(program, backend="onetrip")(x)
    assert found.stride() == right.stride()
    assert torch.allclose(found, right, rtol=1e-5, atol=1e-6)
