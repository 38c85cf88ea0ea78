"""The short way of a compiled function's calls: taken where it may be, and never wrong."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from onetrip.api.backend import backend
from onetrip.frontend.direct import directly

X = torch.linspace(-2, 2, 12).reshape(3, 4).clone()


class Spy:
    """A compiled function and how many of its calls went through torch.compile."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        made = torch.compile(function, backend=backend, **options)
        self.long = 0

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.long += 1
            return through(*args, **kwargs)

        through = made.forward if isinstance(function, nn.Module) else made
        counted.__dict__.update(through.__dict__)
        mine = torch._TorchCompileWrapper(backend, None, None, options.get("dynamic"))
        self.call: Any = counted
        if isinstance(function, nn.Module):
            made.forward = counted
            self.call = made
        self.call = directly(self.call, mine)

    def settle(self, *args: Any, **kwargs: Any) -> None:
        """Calls until the short way is open."""
        for _ in range(3):
            before = self.long
            self.call(*args, **kwargs)
        assert self.long == before, "the short way was not taken"

    def way(self, *args: Any, **kwargs: Any) -> tuple[Any, bool]:
        """A result, and whether it came the short way."""
        before = self.long
        return self.call(*args, **kwargs), self.long == before


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def plain(x: Tensor, by: float = 2.0, *more: Tensor, shift: float = 1.0, **named: Any) -> Tensor:
    total = torch.relu(x * by + shift)
    for other in (*more, *named.values()):
        total = total + other
    return total


# ---------------------------------------------------------------- taken


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((X,), {}),
        ((X, 3.0), {}),
        ((X, 3.0, X, X), {"shift": 2.0}),
        ((), {"x": X, "by": 4.0}),
        ((X,), {"other": X}),
    ],
)
def test_arguments_come_as_the_function_itself_takes_them(args: Any, kwargs: Any) -> None:
    spy = Spy(plain)
    spy.settle(*args, **kwargs)
    assert torch.equal(spy.call(*args, **kwargs), plain(*args, **kwargs))


def test_wrong_arguments_are_the_functions_own_error() -> None:
    spy = Spy(lambda x: x + 1)
    spy.settle(X)
    with pytest.raises(TypeError, match="positional argument"):
        spy.call(X, X)


def test_several_shapes_have_a_short_way_each() -> None:
    spy = Spy(plain, dynamic=False)
    for shape in ((3, 4), (4, 3), (12,)):
        spy.settle(X.reshape(shape))
    for shape in ((3, 4), (4, 3), (12,)):
        result, short = spy.way(X.reshape(shape))
        assert short and torch.equal(result, plain(X.reshape(shape)))


def test_gradients_come_the_short_way() -> None:
    weight = nn.Parameter(torch.ones(4))
    spy = Spy(lambda x: (torch.tanh(x * weight) * 3).sum())
    spy.settle(X)
    result, short = spy.way(X)
    result.backward()
    found, weight.grad = weight.grad, None
    (torch.tanh(X * weight) * 3).sum().backward()
    assert short and found is not None and torch.allclose(found, weight.grad)


def test_dynamic_sizes_share_one_program() -> None:
    spy = Spy(lambda x: torch.relu(x) * 2, dynamic=True)
    spy.settle(X)
    result, short = spy.way(torch.ones(7, 5))
    assert short and torch.equal(result, torch.ones(7, 5) * 2)


@pytest.mark.parametrize("model", [
    nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.LayerNorm(4), nn.Linear(4, 2),
], ids=["sequential", "norm", "linear"])  # fmt: skip
def test_a_module_of_torch_keeps_its_values(model: nn.Module) -> None:
    spy = Spy(model)
    spy.settle(X)
    assert torch.allclose(spy.call(X), model(X))


# ---------------------------------------------------------------- not taken, or another program


def _tensor_kinds() -> dict[str, Tensor]:
    return {
        "shape": torch.ones(5, 4),
        "dtype": X.double(),
        "strides": X.t().contiguous().t(),
        "gradient": X.clone().requires_grad_(),
        "parameter": nn.Parameter(X.clone()),
        "subclass": X.as_subclass(type("Own", (Tensor,), {})),
        "sparse": X.to_sparse(),
    }


@pytest.mark.parametrize("kind", _tensor_kinds())
def test_another_kind_of_tensor_takes_the_long_way(kind: str) -> None:
    other = _tensor_kinds()[kind]
    spy = Spy(lambda x: x * 2 + x)
    spy.settle(X)
    result, short = spy.way(other)
    expected = other * 2 + other
    assert not short
    assert (type(result), result.dtype, result.layout) == (
        type(expected),
        expected.dtype,
        expected.layout,
    )
    assert result.requires_grad == expected.requires_grad
    assert torch.equal(result.to_dense(), expected.to_dense())


STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "grad mode": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "force_eager": lambda: torch.compiler.set_stance("force_eager"),
    "profiler": lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
    "device": lambda: torch.device("cpu"),
}


@pytest.mark.parametrize("state", STATES)
def test_another_state_takes_the_long_way(state: str) -> None:
    weight = nn.Parameter(torch.ones(4, 4))

    def function(x: Tensor) -> Tensor:
        return torch.relu(x @ weight) * 2

    spy = Spy(function)
    spy.settle(X)
    with STATES[state]():
        result, short = spy.way(X)
        expected = function(X)
    assert not short
    assert result.dtype == expected.dtype and result.requires_grad == expected.requires_grad
    assert torch.allclose(result, expected, atol=1e-5)
    _, short = spy.way(X)
    assert short


def test_inference_tensors_are_told_apart() -> None:
    spy = Spy(lambda x: x * 2 + 1)
    spy.settle(X)
    with torch.inference_mode():
        inside = spy.call(X.clone())
    assert inside.is_inference() and not spy.call(X).is_inference()


def test_a_mode_of_torch_functions_sees_what_it_would_see() -> None:
    seen: list[Any] = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    spy = Spy(lambda x: torch.relu(x) * 2)
    spy.settle(X)
    with Watch():
        _, short = spy.way(X)
    assert not short


def test_vmap_over_a_compiled_function_is_vmap() -> None:
    spy = Spy(lambda x: torch.softmax(x, 0) * 2)
    spy.settle(X[0])
    found = torch.func.vmap(spy.call)(X)
    assert torch.allclose(found, torch.softmax(X, 1) * 2)


SCALE = 2.0
TABLE = {"scale": 2.0}


def test_globals_cells_and_attributes_are_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    cell, held = 2.0, SimpleNamespace(scale=2.0)

    def function(x: Tensor) -> Tensor:
        return x * SCALE * cell * held.scale * TABLE["scale"]

    spy = Spy(function)
    spy.settle(X)
    monkeypatch.setattr(__import__(__name__, fromlist=["SCALE"]), "SCALE", 3.0)
    assert torch.equal(spy.call(X), function(X))
    cell = 5.0
    assert torch.equal(spy.call(X), function(X))
    held.scale = 7.0
    assert torch.equal(spy.call(X), function(X))
    monkeypatch.setitem(TABLE, "scale", 11.0)
    assert torch.equal(spy.call(X), function(X))


def test_defaults_and_code_that_are_replaced_take_effect() -> None:
    def function(x: Tensor, by: float = 2.0, *, shift: float = 1.0) -> Tensor:
        return x * by + shift

    def other(x: Tensor, by: float = 2.0, *, shift: float = 1.0) -> Tensor:
        return x - by - shift

    spy = Spy(function)
    spy.settle(X)
    function.__defaults__ = (3.0,)
    assert torch.equal(spy.call(X), X * 3 + 1)
    assert function.__kwdefaults__ is not None
    function.__kwdefaults__["shift"] = 4.0
    assert torch.equal(spy.call(X), X * 3 + 4)
    function.__code__ = other.__code__
    assert torch.equal(spy.call(X), X - 3 - 4)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0, 1, 4))
        self.register_buffer("seen", torch.zeros(4))
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = x + 1
        return torch.relu(x * self.weight * self.scale) + self.seen


def _hook(model: Model) -> None:
    model.register_forward_hook(lambda module, args, result: result + 100)


def _pre_hook(model: Model) -> None:
    model.register_forward_pre_hook(lambda module, args: (args[0] * 2,))


def _own_forward(model: Model) -> None:
    model.forward = lambda x: x * 0 - 1  # type: ignore[method-assign]


def _state(model: Model) -> None:
    model.load_state_dict({"weight": torch.ones(4), "seen": torch.ones(4)})


CHANGES: dict[str, Callable[[Model], Any]] = {
    "nothing": lambda m: None,
    "mode": lambda m: m.eval(),
    "attribute": lambda m: setattr(m, "scale", 5.0),
    "parameter": lambda m: setattr(m, "weight", nn.Parameter(torch.ones(4) * 3)),
    "in place": lambda m: m.weight.data.mul_(3),
    "buffer": lambda m: setattr(m, "seen", torch.ones(4)),
    "dtype": lambda m: m.double(),
    "state": _state,
    "hook": _hook,
    "hook before": _pre_hook,
    "own forward": _own_forward,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_module_is_followed(change: str) -> None:
    model = Model()
    spy = Spy(model)
    spy.settle(X)
    CHANGES[change](model)
    x = X.double() if change == "dtype" else X
    result = spy.call(x)
    expected = model(x)
    assert torch.allclose(result, expected) and result.dtype == expected.dtype
    assert result.requires_grad == expected.requires_grad


def test_inputs_that_are_one_are_not_two() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return x + y

    spy = Spy(function)
    spy.settle(X.clone(), X.clone())
    one, base = X.clone(), X.clone()
    expected = function(base, base)
    result, short = spy.way(one, one)
    assert not short and torch.equal(result, expected) and torch.equal(one, base)


def test_overlapping_inputs_are_written_as_in_eager() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return x + y

    spy = Spy(function)
    spy.settle(torch.ones(4), torch.ones(4))
    buffer, expected = torch.ones(6), torch.ones(6)
    found = spy.call(buffer[:4], buffer[2:])
    assert torch.equal(found, function(expected[:4], expected[2:]))
    assert torch.equal(buffer, expected)


def test_an_input_comes_back_as_itself() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x.add_(1)
        return x, x.view(-1), x * 2

    spy = Spy(function)
    spy.settle(X.clone())
    x = X.clone()
    same, view, double = spy.call(x)
    assert same is x and view.data_ptr() == x.data_ptr() and torch.equal(double, x * 2)


# ---------------------------------------------------------------- left to torch.compile


def test_a_graph_break_keeps_the_long_way() -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    spy = Spy(function)
    for _ in range(3):
        result, short = spy.way(X)
        assert not short and torch.equal(result, X * 2 + 1)


def test_what_is_called_after_the_graph_keeps_the_long_way() -> None:
    class Odd:
        def finish(self, x: Tensor) -> Tensor:
            torch._dynamo.graph_break()
            return x + 1

    odd = Odd()
    spy = Spy(lambda x: odd.finish(x * 2))
    for _ in range(3):
        result, short = spy.way(X)
        assert not short and torch.equal(result, X * 2 + 1)


def test_inside_another_compiled_function_it_is_part_of_it() -> None:
    spy = Spy(lambda x: torch.relu(x) * 2)
    spy.settle(X)
    outer = torch.compile(lambda x: spy.call(x) + 1, backend="eager", fullgraph=True)
    assert torch.equal(outer(X), torch.relu(X) * 2 + 1)


def test_under_an_outer_graph_break_the_long_way_is_taken() -> None:
    spy = Spy(lambda x: torch.relu(x) * 2)
    spy.settle(X)
    before = spy.long

    def outer(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return spy.call(x) + 1

    result = torch.compile(outer, backend="eager")(X)
    assert torch.equal(result, torch.relu(X) * 2 + 1) and spy.long >= before


def test_tracing_is_refused_as_torch_compile_refuses_it() -> None:
    spy = Spy(lambda x: torch.relu(x) * 2)
    spy.settle(X)
    with pytest.raises(RuntimeError, match="FX to symbolically trace"):
        torch.fx.symbolic_trace(lambda x: spy.call(x))
    with pytest.raises(RuntimeError, match=r"jit\.trace"):
        torch.jit.trace(lambda x: spy.call(x), (X,))


def test_a_mode_of_dispatch_is_torch_compiles_affair() -> None:
    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.calls += 1
            return func(*args, **(kwargs or {}))

    short, long = Spy(lambda x: x @ x.t()), torch.compile(lambda x: x @ x.t(), backend="onetrip")
    short.settle(X)
    long(X)
    with Count() as first:
        one = short.call(X)
    with Count() as second:
        two = long(X)
    assert torch.equal(one, two) and first.calls == second.calls


def test_reset_and_freed_objects_close_the_short_way() -> None:
    spy = Spy(lambda x: x * 2)
    spy.settle(X)
    torch._dynamo.reset()
    _, short = spy.way(X)
    assert not short

    model = Model()
    held = [model]
    other = Spy(lambda x: held[0](x))
    other.settle(X)
    held[0] = Model()
    held[0].scale = 9.0
    del model
    gc.collect()
    assert torch.allclose(other.call(X), held[0](X))


def test_other_backends_programs_are_not_taken() -> None:
    def function(x: Tensor) -> Tensor:
        return x * 2 + 1

    torch.compile(function, backend="eager")(X)
    spy = Spy(function)
    _, short = spy.way(X)
    assert not short
    spy.settle(X)


def test_threads_call_at_once() -> None:
    spy = Spy(plain)
    spy.settle(X)
    wrong: list[Any] = []

    def work(by: int) -> None:
        x = X * by
        wrong.extend(by for _ in range(200) if not torch.equal(spy.call(x), plain(x)))

    threads = [threading.Thread(target=work, args=(by,)) for by in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_cannot_be_served_comes_back_as_it_was() -> None:
    def generator(x: Tensor) -> Any:
        yield x

    compiled = torch.compile(generator, backend=backend)
    assert directly(compiled, object()) is compiled
    assert directly(nullcontext, object()) is nullcontext  # type: ignore[comparison-overlap]


def test_a_public_compile_has_it() -> None:
    import onetrip

    fast = onetrip.compile(plain)
    assert fast.__name__ == "plain" and fast.__wrapped__ is plain  # type: ignore[attr-defined]
    assert torch.compiler.disable(fast)(X) is not None
    for _ in range(3):
        assert torch.equal(fast(X), plain(X))
