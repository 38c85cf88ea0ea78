"""torch.func over modules and functions, hooks of every kind and copies, as with any backend."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from onetrip.api.backend import builds
from onetrip.runtime.accuracy import judge


def compiled(fn: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(fn, backend="onetrip")


def agree(fn: Callable[..., Any], *args: Any) -> None:
    """Compiled, twice, with no graph left to eager, `fn` gives what it gives in eager."""
    ours = compiled(fn)
    for _ in range(2):
        torch.testing.assert_close(ours(*args), fn(*args))
    assert builds["eager"] == 0 and builds["compiled"] > 0


def rows(x: Tensor) -> Tensor:
    return torch.softmax(torch.sigmoid(x) * x, -1) + x.cumsum(-1)


def gated(x: Tensor) -> Tensor:
    return torch.sigmoid(x) * x + x.flip(-1)


def total(x: Tensor) -> Tensor:
    return (F.gelu(x) * x.exp()).sum()


def mlp() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 2))


TRANSFORMS: dict[str, Callable[[Tensor], Any]] = {
    "jacrev": torch.func.jacrev(gated),
    "jacfwd": torch.func.jacfwd(rows),
    "hessian": torch.func.hessian(total),
    "grad of grad": torch.func.grad(lambda x: torch.func.grad(total)(x).pow(2).sum()),
    "vjp": lambda x: torch.func.vjp(rows, x)[1](torch.ones_like(x)),
    "gradient beside its value": torch.func.grad_and_value(total),
    "vmap of jacrev": torch.func.vmap(torch.func.jacrev(gated)),
    "vmap over the last axis": torch.func.vmap(rows, in_dims=-1, out_dims=1),
    "vmap in chunks": torch.func.vmap(rows, chunk_size=2),
    "linear map": lambda x: torch.func.linearize(rows, x)[0],
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_function_transforms(name: str) -> None:
    torch.manual_seed(1)
    agree(TRANSFORMS[name], torch.randn(3, 4))


def test_the_jacobian_of_a_scan_is_planned_with_few_whole_solutions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its relaxations are weak, and each whole solution is a search."""
    solver = import_module("onetrip.plan.cover")._Solver
    whole: list[bool] = []
    real = solver.solve

    def counted(self: Any) -> Any:
        whole.append(self._whole)
        return real(self)

    monkeypatch.setattr(solver, "solve", counted)
    agree(torch.func.jacrev(rows), torch.randn(3, 4))
    assert 0 < sum(whole) <= 16


def test_gradients_of_each_sample_of_a_module() -> None:
    model, x, y = mlp(), torch.randn(5, 4), torch.tensor([0, 1, 1, 0, 1])
    weights = dict(model.named_parameters())

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        made = torch.func.functional_call(model, weights, (x[None],))
        return F.cross_entropy(made, y[None])

    agree(torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0)), weights, x, y)


def test_an_ensemble_of_modules() -> None:
    models = [mlp() for _ in range(3)]
    weights, buffers = torch.func.stack_module_state(models)  # type: ignore[arg-type]
    base = copy.deepcopy(models[0]).to("meta")

    def call(weights: Any, buffers: Any, x: Tensor) -> Any:
        return torch.func.functional_call(base, (weights, buffers), (x,))

    agree(torch.func.vmap(call, in_dims=(0, 0, None)), weights, buffers, torch.randn(5, 4))


# ------------------------------------------------------------------ hooks


def leaves_of(model: nn.Module, run: Any, x: Tensor) -> list[Tensor]:
    """The result of a call and the gradients that it leaves."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    made = run(x)
    made.square().sum().backward()
    return [made.detach(), x.grad, *(p.grad for p in model.parameters())]  # type: ignore[list-item]


def hook_forward(model: Any) -> Any:
    return model[1].register_forward_hook(lambda m, given, made: made * 2)


def hook_before(model: Any) -> Any:
    return model[2].register_forward_pre_hook(lambda m, given: (given[0] + 1,))


def hook_backward(model: Any) -> Any:
    return model[1].register_full_backward_hook(lambda m, inner, outer: (inner[0] * 3,))


def hook_before_backward(model: Any) -> Any:
    return model[3].register_full_backward_pre_hook(lambda m, outer: (outer[0] * 0.5,))


def hook_parameter(model: Any) -> Any:
    return model[0].weight.register_hook(lambda g: g * 2)


HOOKS = (hook_forward, hook_before, hook_backward, hook_before_backward, hook_parameter)


@pytest.mark.parametrize("register", HOOKS, ids=lambda f: f.__name__)
def test_hooks_from_before_the_first_call(register: Callable[[Any], Any]) -> None:
    model, x = mlp(), torch.randn(3, 4)
    register(model)
    ours = compiled(model)
    for _ in range(2):
        torch.testing.assert_close(leaves_of(model, ours, x), leaves_of(model, model, x))


@pytest.mark.parametrize("register", [hook_forward, hook_before, hook_parameter],
                         ids=lambda f: f.__name__)  # fmt: skip
def test_hooks_that_come_and_go_between_calls(register: Callable[[Any], Any]) -> None:
    """Dynamo looks for hooks of modules again where it is told to; those of tensors it sees."""
    model, x = mlp(), torch.randn(3, 4)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):
        ours = torch.compile(model, backend="onetrip")
        torch.testing.assert_close(leaves_of(model, ours, x), leaves_of(model, model, x))
        added = register(model)
        torch.testing.assert_close(leaves_of(model, ours, x), leaves_of(model, model, x))
        added.remove()
        torch.testing.assert_close(leaves_of(model, ours, x), leaves_of(model, model, x))


# ------------------------------------------------------------------ copies, files, threads


def test_a_compiled_module_is_saved_and_loaded() -> None:
    model, x = mlp(), torch.randn(3, 4)
    ours = compiled(model)
    expected = ours(x)
    file = io.BytesIO()
    torch.save(ours.state_dict(), file)
    file.seek(0)
    other = compiled(nn.Sequential(*(copy.deepcopy(m) for m in mlp().children())))  # type: ignore[arg-type]
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    assert not torch.equal(other(x), expected)
    other.load_state_dict(torch.load(file))
    torch.testing.assert_close(other(x), expected)


def test_a_module_with_a_compiled_part_is_pickled() -> None:
    """What was compiled is not part of the file; it is compiled again where it is loaded."""
    model, x = mlp(), torch.randn(3, 4)
    model.compile(backend="onetrip")
    expected = model(x)
    twin = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(twin(x), expected)
    with torch.no_grad():
        twin[0].weight.zero_()
    torch.testing.assert_close(model(x), expected)


def test_a_copy_in_the_middle_of_training_goes_its_own_way() -> None:
    model, x = mlp(), torch.randn(3, 4)
    ours = compiled(model)
    leaves_of(model, ours, x)
    twin = copy.deepcopy(model)
    again = torch.compile(twin, backend="onetrip")
    with torch.no_grad():
        for p in twin.parameters():
            p.add_(0.5)
    for own, run in ((twin, again), (model, ours)):
        exact = copy.deepcopy(own).double()
        three = (
            leaves_of(own, run, x),
            leaves_of(own, own, x),
            leaves_of(exact, exact, x.double()),
        )
        verdict = judge(*map(tuple, three))
        assert verdict.ok, verdict


def test_threads_train_modules_of_their_own_at_once() -> None:
    torch._dynamo.reset()
    models = [mlp() for _ in range(4)]
    ours = [torch.compile(m, backend="onetrip") for m in models]
    inputs = [torch.randn(3, 4) for _ in models]
    expected = [leaves_of(m, m, x) for m, x in zip(models, inputs, strict=True)]

    def work(k: int) -> list[Tensor]:
        return leaves_of(models[k], ours[k], inputs[k])

    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            torch.testing.assert_close(list(pool.map(work, range(4))), expected)
