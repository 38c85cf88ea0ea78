"""What is planned is what is compiled, and results, writes and aliases come out as in eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from onetrip.base.errors import CaptureError
from onetrip.frontend.ahead import capture_graphs
from onetrip.frontend.capture import CapturedGraph, make_backend, on_reset
from onetrip.frontend.origin import origin_of

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def collecting() -> tuple[list[CapturedGraph], Callable[..., Any]]:
    graphs: list[CapturedGraph] = []

    def compile_graph(graph: CapturedGraph) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.module.forward

    return graphs, make_backend(compile_graph)


def compiled_graphs(model: Any, args: tuple[Any, ...], training: bool) -> list[CapturedGraph]:
    graphs, backend = collecting()
    with torch.set_grad_enabled(training):
        result = torch.compile(model, backend=backend)(*args)
        if training:
            first = result if isinstance(result, Tensor) else result[0]
            first.sum().backward()
    return graphs


def described(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(described, value))
    if isinstance(value, Tensor):
        return value.dtype, tuple(value.shape), value.stride(), value.device.type
    return str(value)


def listing(graph: CapturedGraph) -> tuple[Any, ...]:
    """Everything of a captured graph that a plan could depend on."""
    nodes = [
        (node.format_node(), described(node.meta.get("val")), origin_of(node))
        for node in graph.module.graph.nodes
    ]
    facts = graph.role, graph.writes, graph.parameters, graph.results, graph.device
    return (*facts, described(graph.inputs), nodes)


def targets(graph: CapturedGraph) -> list[str]:
    return [str(n.target) for n in graph.module.graph.nodes if n.op == "call_function"]


def small_conv() -> tuple[nn.Module, tuple[Any, ...]]:
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 5)), (torch.randn(2, 3, 4, 4),)


def small_bert() -> tuple[nn.Module, tuple[Any, ...]]:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        vocab_size=100,
    )
    return BertModel(config), (torch.randint(0, 100, (2, 8)),)


MODELS = {"conv": small_conv, "bert": small_bert}


# ---------------------------------------------------------------- one capture


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_planned_graphs_are_the_compiled_graphs(name: str, training: bool) -> None:
    model, args = MODELS[name]()
    model.train(training)
    planned = capture_graphs(model, args, device=CPU, training=training)
    compiled = compiled_graphs(model, args, training)
    assert [g.role for g in planned] == (["forward", "backward"] if training else ["inference"])
    assert [listing(g) for g in planned] == [listing(g) for g in compiled]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_device_that_is_not_there_gives_the_same_graphs(name: str, training: bool) -> None:
    """Also the order of autograd's nodes, which on an absent device no engine decides."""
    model, args = MODELS[name]()
    model.train(training)
    here = capture_graphs(model, args, device=CPU, training=training)
    there = capture_graphs(model, args, device=CUDA, training=training)
    assert all(g.device == torch.device("cuda", 0) for g in there)

    def neutral(graph: CapturedGraph) -> list[Any]:
        nodes = graph.module.graph.nodes
        return [(n.format_node().replace("cuda:0", "cpu"), origin_of(n)) for n in nodes]

    for ours, other in zip(here, there, strict=True):
        mine = [(t.replace("cuda:0", "cpu"), o) for t, o in neutral(other)]
        assert [(t.replace("type='cuda', index=0", "type='cpu'"), o) for t, o in mine] == neutral(
            ours
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_convolutions_keep_channels_last_on_an_absent_gpu(dtype: torch.dtype) -> None:
    model = nn.Conv2d(3, 8, 3).to(dtype)
    x = torch.randn(2, 3, 8, 8, dtype=dtype).to(memory_format=torch.channels_last)
    forward, backward = capture_graphs(model, x.requires_grad_(), device=CUDA, training=True)
    call = torch.ops.aten.convolution.default
    (node,) = forward.module.graph.find_nodes(op="call_function", target=call)
    # cuDNN takes float64 in contiguous form only.
    expected = torch.contiguous_format if dtype == torch.float64 else torch.channels_last
    assert node.meta["val"].is_contiguous(memory_format=expected)
    call = torch.ops.aten.convolution_backward.default
    (node,) = backward.module.graph.find_nodes(op="call_function", target=call)
    assert node.meta["val"][0].is_contiguous(memory_format=expected)


def test_meta_tensors_and_meta_models_are_welcome() -> None:
    with torch.device("meta"):
        model, x = nn.Linear(1 << 16, 1 << 16), torch.empty(8, 1 << 16)
    (graph,) = capture_graphs(model, x, device=CUDA, training=False)
    assert graph.inputs[0].shape == (1 << 16, 1 << 16)
    assert graph.inputs[0].device.type == "cuda"


def test_tied_weights_stay_one_input() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    (graph,) = capture_graphs(model, torch.randn(2, 4), device=CPU, training=False)
    assert len(graph.inputs) == 2


def test_closed_over_modules_move_to_the_device() -> None:
    model = nn.Linear(4, 4)
    (graph,) = capture_graphs(
        lambda x: model(x) + 1, torch.randn(2, 4), device=CUDA, training=False
    )
    assert {t.device.type for t in graph.inputs} == {"cuda"}
    assert model.weight.device.type == "cpu"


def test_a_graph_break_yields_two_graphs() -> None:
    def fn(x: Tensor) -> Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y + torch.zeros(4, device=x.device)

    first, second = capture_graphs(fn, torch.randn(4), device=CUDA, training=False)
    assert targets(first) == ["aten.mul.Tensor"]
    assert targets(second) == ["aten.zeros.default", "aten.add.Tensor"]


def test_a_value_that_python_needs_is_an_error_that_names_the_line() -> None:
    def fn(x: Tensor) -> Tensor:
        if x.sum() > 0:  # the line
            return x + 1
        return x - 1

    with pytest.raises(CaptureError) as caught:
        capture_graphs(fn, torch.randn(4), device=CUDA, training=False)
    assert caught.value.where is not None
    assert "test_capture.py" in caught.value.where
    assert "the line" in caught.value.where


def test_an_error_of_the_model_is_told_with_its_line() -> None:
    def fn(x: Tensor) -> Tensor:
        return x @ torch.ones(3, 3, device=x.device)

    with pytest.raises(CaptureError, match=r"torch\.ones"):
        capture_graphs(fn, torch.randn(4, 4), device=CPU, training=False)


def test_planning_many_shapes_leaves_a_later_compilation_alone() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * 2).sum()

    model = Model()
    for n in range(2, 14):
        (graph,) = capture_graphs(model, torch.randn(n, n), device=CPU, training=False)
        assert graph.inputs[0].shape == (n, n)
        assert all(type(s) is int for s in graph.inputs[0].shape)
    graphs, backend = collecting()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        torch.compile(model, backend=backend)(torch.randn(20, 20))
    assert graphs[0].inputs[0].shape == (20, 20)


# ---------------------------------------------------------------- autocast


class Cast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            y = self.linear(x)[None]
            y = functional.scaled_dot_product_attention(y, y, y.float())
            return functional.softmax(y, -1)


@pytest.mark.parametrize("device", [CPU, CUDA])
@pytest.mark.parametrize("training", [False, True])
def test_autocast_shows_its_casts(device: torch.device, training: bool) -> None:
    graph = capture_graphs(Cast(), torch.randn(4, 8), device=device, training=training)[0]
    (product,) = graph.module.graph.find_nodes(
        op="call_function", target=torch.ops.aten.addmm.default
    )
    (softmax,) = graph.module.graph.find_nodes(
        op="call_function", target=torch.ops.aten._softmax.default
    )
    kind = torch.ops.onetrip.attention_saving if training else torch.ops.onetrip.attention
    (attention,) = graph.module.graph.find_nodes(op="call_function", target=kind.default)
    assert product.meta["val"].dtype == torch.bfloat16
    assert [a.meta["val"].dtype for a in attention.args[:3]] == [torch.bfloat16] * 3
    # Each device has its own list: a GPU computes softmax in float32, a CPU does not.
    assert softmax.meta["val"].dtype == (torch.float32 if device is CUDA else torch.bfloat16)


def test_a_region_around_the_call_counts_too() -> None:
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        (planned,) = capture_graphs(model, x, device=CPU, training=False)
        (compiled,) = compiled_graphs(model, (x,), False)
    assert "aten._to_copy.default" in targets(planned)
    assert listing(planned) == listing(compiled)


# ---------------------------------------------------------------- writes, views, aliases


def in_place(x: Tensor) -> Tensor:
    x.mul_(2)
    return x + 1


def view_of_input(x: Tensor) -> Tensor:
    return x.view(-1)[2:]


def view_of_intermediate(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y, y.t()


def input_returned(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x + 1


def written_and_returned(x: Tensor) -> Tensor:
    return x.add_(1)


def written_through_a_view(x: Tensor) -> Tensor:
    x[0].mul_(3)
    return x.sum()


def transposed_in_place(x: Tensor) -> Tensor:
    x.t_()
    return x * 2


ALIASING = [
    in_place,
    view_of_input,
    view_of_intermediate,
    input_returned,
    written_and_returned,
    written_through_a_view,
    transposed_in_place,
]


def aliases(tensors: list[Tensor]) -> list[tuple[int, int]]:
    """Pairs that share a storage."""
    cells = [t.untyped_storage().data_ptr() for t in tensors]
    pairs = [(i, j) for j in range(len(cells)) for i in range(j)]
    return [(i, j) for i, j in pairs if cells[i] == cells[j]]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", ALIASING)
def test_writes_and_aliases_come_out_as_in_eager(fn: Callable[..., Any], grad: bool) -> None:
    def outcome(run: Callable[..., Any]) -> tuple[list[Tensor], list[tuple[int, int]]]:
        leaf = torch.arange(12.0).view(3, 4).requires_grad_(grad)
        x = leaf * 1 if grad else leaf
        results = run(x)
        results = [results] if isinstance(results, Tensor) else list(results)
        identical = [r is x for r in results]
        if grad:
            sum((r * r).sum() for r in results).backward()
        gradients = [leaf.grad] if grad else []
        layout = [torch.tensor([*t.shape, *t.stride()]) for t in (x, *results)]
        values = [x, *results, *gradients, *layout, torch.tensor(identical)]
        return [v.detach() for v in values], aliases([x, *results])

    _, backend = collecting()
    expected, expected_aliases = outcome(fn)
    found, found_aliases = outcome(torch.compile(fn, backend=backend))
    assert found_aliases == expected_aliases
    assert all(map(torch.equal, found, expected))


def test_one_tensor_given_twice() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x * y

    _, backend = collecting()
    x, same = torch.arange(4.0), torch.arange(4.0)
    assert torch.equal(torch.compile(fn, backend=backend)(x, x), fn(same, same))
    assert torch.equal(x, same)


def test_writes_are_listed_by_input_and_value() -> None:
    model = nn.BatchNorm1d(3)
    (graph,) = capture_graphs(model, torch.randn(4, 3), device=CPU, training=False)
    names = [n.name for n in graph.module.graph.find_nodes(op="placeholder")]
    assert len(graph.writes) == 3  # running mean, running variance, count
    assert {position for position, _ in graph.writes} <= graph.parameters
    known = {n.name for n in graph.module.graph.nodes}
    assert all(value in known and value not in names for _, value in graph.writes)


# ---------------------------------------------------------------- odd tensors, symbols, hooks


def test_dtypes_and_layouts_that_are_not_ours_still_run() -> None:
    _, backend = collecting()
    inputs: list[tuple[Callable[..., Any], Tensor]] = [
        (lambda z: (z * 2).abs(), torch.randn(3, dtype=torch.complex64)),
        (lambda s: (s * 2).to_dense(), torch.eye(3).to_sparse()),
    ]
    with warnings.catch_warnings(action="ignore"):
        quantized = torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.quint8)
    inputs.append((lambda q: q.dequantize() + 1, quantized))
    for fn, value in inputs:
        torch._dynamo.reset()
        assert torch.equal(torch.compile(fn, backend=backend)(value), fn(value))


def test_complex_and_sparse_models_can_be_planned() -> None:
    graphs = capture_graphs(
        lambda z: (z * 2).abs(), torch.randn(3, dtype=torch.complex64), device=CUDA, training=False
    )
    assert targets(graphs[0]) == ["aten.mul.Tensor", "aten.abs.default"]
    sparse = torch.eye(3).to_sparse()
    capture_graphs(lambda s: (s * 2).to_dense(), sparse, device=CPU, training=False)


def fixed_and_free(shape: Any) -> list[str]:
    return ["free" if isinstance(n, torch.SymInt) else str(n) for n in shape]


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (None, ["4", "6"]),
        (False, ["4", "6"]),
        (True, ["free", "free"]),
        ({"x": {0: torch.export.Dim("batch", min=2, max=64)}}, ["free", "6"]),
        ({"x": {1: torch.export.Dim.DYNAMIC}}, ["4", "free"]),
        (({0: torch.export.Dim.DYNAMIC},), ["free", "6"]),
    ],
)
def test_dynamic_shapes(shapes: Any, expected: list[str]) -> None:
    def fn(x: Tensor) -> Tensor:
        return (x * 2).sum(0)

    (graph,) = capture_graphs(
        fn, torch.randn(4, 6), device=CUDA, training=False, dynamic_shapes=shapes
    )
    (x,) = [v for v in graph.inputs if isinstance(v, Tensor)]
    assert fixed_and_free(x.shape) == expected


def test_dynamic_shapes_of_an_unknown_argument() -> None:
    with pytest.raises(CaptureError, match="one of x"):
        capture_graphs(
            lambda x: x, torch.randn(2), device=CPU, training=False, dynamic_shapes={"y": {0: 2}}
        )


def test_symbols_pass_through_the_backend() -> None:
    graphs, backend = collecting()
    compiled = torch.compile(lambda x: x.reshape(-1) * x.shape[0], backend=backend, dynamic=True)
    for n in (3, 5):
        x = torch.randn(n, 4)
        assert torch.equal(compiled(x), x.reshape(-1) * n)
    assert len(graphs) == 1
    assert any(isinstance(v, torch.SymInt) for v in graphs[0].inputs)


def test_reset_runs_the_hooks() -> None:
    calls: list[int] = []
    on_reset(lambda: calls.append(1))
    _, backend = collecting()
    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    torch._dynamo.reset()
    assert calls


def test_origins_name_module_and_line() -> None:
    model, args = small_bert()
    forward, backward = capture_graphs(model, args, device=CUDA, training=True)
    for graph, target in (
        (forward, torch.ops.aten.addmm.default),
        (backward, torch.ops.aten.mm.default),
    ):
        nodes = graph.module.graph.find_nodes(op="call_function", target=target)
        origins = [origin_of(n) for n in nodes]
        assert "encoder.layer.0.attention.self.query" in {path for path, _ in origins}
        assert all(line.startswith("modeling_bert.py:") for _, line in origins)
