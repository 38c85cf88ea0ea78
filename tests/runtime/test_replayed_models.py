"""Whole models compiled to be replayed, beside the same compiled to be launched: bit for bit."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from taped import TapedBackend, TapedGraphs
from torch import Tensor, nn
from torch.nn import functional

from onetrip.api import replays
from onetrip.api.devices import device_for
from onetrip.base.errors import Unsupported
from onetrip.runtime import replay
from onetrip.runtime.replay import Replayed

STEPS = 12


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Replayed]]:
    """Grows by the programs that are replayed: the CPU is a device that records."""
    module = importlib.import_module("onetrip.api.backend")
    graphs = TapedGraphs()

    def taped(device: torch.device, target: Any) -> Any:
        found = device_for(device, target)
        return replace(found, backend=lambda options: TapedBackend(found.backend(options), graphs))

    found: list[Replayed] = []
    start = replays.Replayed

    def watched(*args: Any, **facts: Any) -> Replayed:
        found.append(start(*args, **facts))
        return found[-1]

    monkeypatch.setattr(module, "device_for", taped)
    monkeypatch.setattr(replays, "GRAPHS", {"cpu": lambda _: graphs})
    monkeypatch.setattr(replays, "Replayed", watched)
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


def launched(fn: Callable[..., Any], **how: Any) -> Any:
    return torch.compile(fn, backend="onetrip", **how)


def recorded(fn: Callable[..., Any], **how: Any) -> Any:
    return torch.compile(fn, backend="onetrip", mode="reduce-overhead", **how)


def _tapes(program: Replayed) -> list[Any]:
    return [r._graph for shelf in program._shelves._values.values() for r in shelf]


class Block(nn.Module):
    """Norms, products, dropout, running statistics: what a training step has."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(24)
        self.first, self.second = nn.Linear(24, 48), nn.Linear(48, 24)
        self.batch = nn.BatchNorm1d(24)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.second(functional.gelu(self.first(self.norm(x))))
        return self.batch(x + self.drop(h))


def trained(compile: Callable[..., Any], model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Losses and final state of a short training."""
    torch.manual_seed(5)
    step = compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(16, 24)
        optimizer.zero_grad()
        loss = (step(x) - x.roll(1)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, [t.clone() for t in model.state_dict().values()]


def test_training_is_that_of_launches_bit_for_bit(made: list[Replayed]) -> None:
    model = Block()
    twin = copy.deepcopy(model)
    losses, state = trained(launched, model)
    torch._dynamo.reset()
    replayed_losses, replayed_state = trained(recorded, twin)
    assert all(map(torch.equal, losses, replayed_losses))
    assert all(map(torch.equal, state, replayed_state))
    assert len({x.item() for x in losses}) == STEPS
    assert len(made) == 2
    for program in made:
        assert program.reason is None
        assert sum(t.replays for t in _tapes(program)) >= STEPS - 6


def test_gradients_that_accumulate_are_right(made: list[Replayed]) -> None:
    model = Block()
    model.drop.p = 0.0
    twin = copy.deepcopy(model)
    ours, theirs = recorded(model), twin
    for k in range(STEPS):
        x = torch.randn(16, 24)
        for step in (ours, theirs):
            step(x).square().sum().backward()
        for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-3)
        if k % 4 == 3:
            model.zero_grad(set_to_none=k % 8 == 3)
            twin.zero_grad(set_to_none=k % 8 == 3)


def test_several_forward_passes_before_their_backward_ones(made: list[Replayed]) -> None:
    model = Block()
    model.drop.p = 0.0
    plain = copy.deepcopy(model)
    fast, slow = recorded(model), launched(plain)
    for _ in range(6):
        inputs = [torch.randn(16, 24) for _ in range(4)]
        for step in (fast, slow):
            losses = [step(x).square().sum() for x in inputs]
            for loss in reversed(losses):
                loss.backward()
        for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(mine.grad, other.grad)


def test_models_take_turns(made: list[Replayed]) -> None:
    models = [Block().eval() for _ in range(2)]
    fast = [recorded(m) for m in models]
    slow = [launched(m) for m in models]
    with torch.no_grad():
        for k in range(12):
            x = torch.randn(16, 24)
            for ours, theirs in zip(fast, slow, strict=True):
                y = ours(x)
                assert torch.equal(y, theirs(x))
                x = y
            if k == 6:
                recordings = sum(p.recorded for p in made)
                replayed = sum(t.replays for p in made for t in _tapes(p))
    assert sum(p.recorded for p in made) == recordings
    assert sum(t.replays for p in made for t in _tapes(p)) == replayed + 5 * len(models)


def test_layers_that_share_a_graph_have_recordings_of_their_own(made: list[Replayed]) -> None:
    layers = nn.Sequential(*[Block() for _ in range(5)]).eval()
    plain = copy.deepcopy(layers)
    for layer in layers:
        layer.compile(backend="onetrip", mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(8):
            x = torch.randn(16, 24)
            torch.testing.assert_close(layers(x), plain(x), rtol=1e-4, atol=1e-4)
    assert made
    assert sum(t.replays for p in made for t in _tapes(p)) >= 5


def test_symbolic_sizes_are_recorded_one_by_one(made: list[Replayed]) -> None:
    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x @ y).softmax(-1), x.sum(0) * x.shape[0]

    fast, slow = recorded(fn, dynamic=True), launched(fn, dynamic=True)
    y = torch.randn(8, 8)
    for inputs in [[torch.randn(n, 8) for n in (3, 7, 11)] for _ in range(5)]:
        for x in inputs:
            for mine, other in zip(fast(x, y), slow(x, y), strict=True):
                assert torch.equal(mine, other)
    assert sum(t.replays for p in made for t in _tapes(p)) >= 6


def test_a_cache_that_is_written_in_place(made: list[Replayed]) -> None:
    def append(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
        cache.index_copy_(0, at, x @ x.t())
        return cache.sum(0)

    fast, slow = recorded(append), launched(append)
    caches = [torch.zeros(8, 4) for _ in range(2)]
    for k in range(8):
        x, at = torch.randn(4, 4), torch.tensor([k % 8, (k + 1) % 8, (k + 2) % 8, (k + 3) % 8])
        assert torch.equal(fast(caches[0], x, at), slow(caches[1], x, at))
        assert torch.equal(*caches)


def test_every_call_draws_new_numbers(made: list[Replayed]) -> None:
    fast = recorded(lambda x: functional.dropout(x @ x, 0.5).sum(0))
    torch.manual_seed(1)
    drawn = [fast(torch.ones(16, 16)) for _ in range(8)]
    assert len({tuple(t.tolist()) for t in drawn}) == 8


def test_options_and_mode_are_one_spelling(made: list[Replayed]) -> None:
    import onetrip

    def fn(x: Tensor) -> Tensor:
        return (x @ x).softmax(-1).cumsum(0)

    x = torch.randn(6, 6)
    for compiled in (
        recorded(fn),
        torch.compile(fn, backend="onetrip", options={"cuda_graphs": True}),
        onetrip.compile(fn, mode="reduce-overhead"),
        onetrip.compile(fn, cuda_graphs=True),
    ):
        torch._dynamo.reset()
        before = len(made)
        torch.testing.assert_close(compiled(x), fn(x))
        assert len(made) == before + 1


def test_a_call_that_cannot_be_recorded_is_named(
    made: list[Replayed], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.linalg.inv(x + torch.eye(4)) @ x

    fast = recorded(fn)
    x = torch.randn(4, 4)
    torch.testing.assert_close(fast(x), fn(x))
    (program,) = made
    capture = program._graphs.capture

    def waiting(run: Any, arguments: list[Any]) -> Any:
        def waits(given: list[Any]) -> list[Any]:
            with _Waiting():
                return run(given)

        return capture(waits, arguments)

    monkeypatch.setattr(program._graphs, "capture", waiting)
    with pytest.warns(RuntimeWarning, match=r"aten\.linalg_inv_ex\.default cannot be recorded: R"):
        torch.testing.assert_close(fast(x), fn(x))
    torch.testing.assert_close(fast(x), fn(x))
    assert [r.reason for r in replay.refused] == [program.reason]


class _Waiting(torch.utils._python_dispatch.TorchDispatchMode):
    """A device on which an inverse waits for the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.linalg_inv_ex.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        return func(*args, **(kwargs or {}))


def test_one_launch_is_not_recorded(made: list[Replayed]) -> None:
    recorded(lambda x: x * 2 + 1)(torch.ones(4))
    assert not made
    assert [r.reason for r in replay.refused] == ["1 launches: nothing to gain"]


def test_inputs_of_another_device_are_refused(
    made: list[Replayed], monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(captured: Any, program: Any) -> Iterator[str]:
        moved = replace(captured, device=torch.device("meta"))
        return obstacles(moved, program)

    obstacles = replays._obstacles
    monkeypatch.setattr(replays, "_obstacles", elsewhere)
    words = "input 0 lies on cpu"
    with pytest.warns(RuntimeWarning, match=words):
        recorded(lambda x: (x @ x).softmax(-1))(torch.randn(4, 4))
    assert words in replay.refused[0].reason
    torch._dynamo.reset()
    strict = {"cuda_graphs": True, "strict": True}
    with pytest.raises(Exception, match=words) as caught:
        torch.compile(lambda x: (x @ x).relu(), backend="onetrip", options=strict)(torch.ones(4, 4))
    error: BaseException | None = caught.value
    while error is not None and not isinstance(error, Unsupported):
        error = error.__cause__ or getattr(error, "inner_exception", None)
    assert isinstance(error, Unsupported)


def test_a_cpu_has_nothing_to_gain_and_says_so() -> None:
    torch._dynamo.reset()
    with pytest.warns(RuntimeWarning, match="cuda_graphs has no effect on a cpu"):
        y = recorded(lambda x: (x @ x).softmax(-1))(torch.ones(4, 4))
    assert y.shape == (4, 4)
    assert "no effect on a cpu" in replay.refused[-1].reason
    torch._dynamo.reset()
    assert not replay.refused
