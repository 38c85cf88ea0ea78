"""Linear recurrences written as torch's associative scan: values and gradients on both backends."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from builds import externs, steps_of, watched
from checks import compiled
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan_op
from zoo import build as model_of
from zoo_triton import check, texts

from onetrip.api.backend import runner
from onetrip.api.devices import interpreted
from onetrip.api.pipeline import Built, analyze, build
from onetrip.base.options import Options
from onetrip.frontend.ahead import capture_graphs
from onetrip.frontend.capture import CapturedGraph, make_backend
from onetrip.ir.program import Launch
from onetrip.runtime.accuracy import judge, wide
from onetrip.runtime.triton_assemble import assemble_all
from onetrip.target import load

OPTIONS = Options(strict=True)
Scan = Callable[[Tensor, Tensor], Sequence[Tensor]]
Combine = Callable[..., list[Tensor]]
Backend = Callable[[Callable[..., Any]], Any]


def affine(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> list[Tensor]:
    """As state-space models write it."""
    return [a * c, c * b + d]


def scanned(combine: Combine, dim: int, reverse: bool) -> Scan:
    """What torch's ``associative_scan`` of two tensors is to Dynamo in its pointwise mode.

    That function takes this way on a GPU only; on a CPU it is slices and calls under vmap.
    """

    def scan(a: Tensor, b: Tensor) -> list[Tensor]:
        leaves = [torch.movedim(x, dim, 0) for x in (a, b)]
        if reverse:
            leaves = [torch.flip(x, [0]) for x in leaves]
        found = associative_scan_op(combine, leaves, additional_inputs=())
        if reverse:
            found = [x.flip([0]) for x in found]
        return [torch.movedim(x, 0, dim) for x in found]

    return scan


def stepwise(dim: int, reverse: bool) -> Scan:
    """The recurrence by its definition: what eager computes step by step."""

    def scan(a: Tensor, b: Tensor) -> list[Tensor]:
        pairs = list(zip(a.unbind(dim), b.unbind(dim), strict=True))
        products, states = [], []
        for x, y in reversed(pairs) if reverse else pairs:
            products.append(products[-1] * x if products else x)
            states.append(states[-1] * x + y if states else y)
        order = slice(None, None, -1 if reverse else 1)
        return [torch.stack(v[order] if not reverse else v[::-1], dim) for v in (products, states)]

    return scan


def on_cpu(fn: Callable[..., Any]) -> Any:
    return compiled(fn)


def in_interpreter(fn: Callable[..., Any]) -> Any:
    """`fn` with its kernels as Triton in the interpreter."""
    torch._dynamo.reset()

    def compile_graph(captured: CapturedGraph) -> Callable[..., Any]:
        return runner(build(analyze(captured, load("h100"), OPTIONS), interpreted(), OPTIONS))

    return torch.compile(fn, backend=make_backend(compile_graph))


BACKENDS: dict[str, Backend] = {"cpp": on_cpu, "triton": in_interpreter}


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Built]:
    """Grows by what each compilation built."""
    return watched(monkeypatch)


def layer(scan: Scan) -> Callable[[Tensor, Tensor], Tensor]:
    """A scan between its neighbours in a state-space model."""
    return lambda rate, x: torch.tanh(scan(torch.exp(-rate * rate), x * rate)[1]) * 2 + x


def run(fn: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    """The value and the gradients of a weighted sum of it."""
    value = fn(*inputs)
    weights = torch.linspace(-1, 2, value.numel(), dtype=value.dtype).reshape(value.shape)
    return (value.detach(), *torch.autograd.grad((value * weights).sum(), inputs))


def operands(shape: Sequence[int], dtype: torch.dtype, transposed: bool) -> list[Tensor]:
    sizes = tuple(reversed(shape)) if transposed else tuple(shape)
    made = [torch.randn(sizes).to(dtype) for _ in range(2)]
    return [(x.permute(*range(x.dim())[::-1]) if transposed else x).requires_grad_() for x in made]


CASES: dict[str, tuple[tuple[int, ...], int, bool, torch.dtype, bool]] = {
    "inner": ((3, 9), 1, False, torch.float32, False),
    "middle": ((2, 11, 5), 1, False, torch.float32, False),
    "outer, from the end": ((13, 4), 0, True, torch.float32, False),
    "inner, from the end": ((2, 3, 21), 2, True, torch.float32, False),
    "transposed": ((4, 6, 7), 1, False, torch.float32, True),
    "bf16": ((3, 17), 1, False, torch.bfloat16, False),
    "bf16, from the end": ((17, 3), 0, True, torch.bfloat16, False),
    "one step": ((3, 1), 1, False, torch.float32, False),
    "one row": ((10,), 0, True, torch.float32, False),
    "long": ((2, 5000), 1, False, torch.float32, False),
    "long columns": ((700, 33), 0, True, torch.float32, False),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str, backend: str) -> None:
    shape, dim, reverse, dtype, transposed = CASES[name]
    inputs = operands(shape, dtype, transposed)
    ours = run(BACKENDS[backend](layer(scanned(affine, dim, reverse))), *inputs)
    eager = run(layer(stepwise(dim, reverse)), *inputs)
    exact = run(layer(stepwise(dim, reverse)), *map(wide, inputs))
    verdict = judge(ours, eager, exact)
    assert verdict.ok, verdict


@pytest.mark.parametrize("reverse", [False, True])
def test_products_and_states_together(reverse: bool) -> None:
    """The first component too, where a factor of 0 lets no gradient be a quotient."""

    def both(scan: Scan) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda a, b: torch.cat(list(scan(a, b)))

    a, b = operands((4, 8), torch.float32, False)
    with torch.no_grad():
        a[1, 3] = 0
    ours = run(on_cpu(both(scanned(affine, 1, reverse))), a, b)
    eager = run(both(stepwise(1, reverse)), a, b)
    exact = run(both(stepwise(1, reverse)), wide(a), wide(b))
    verdict = judge(ours, eager, exact)
    assert verdict.ok, verdict


def test_a_walk_on_a_cpu_has_the_bits_of_the_definition() -> None:
    a, b = torch.rand(3, 50, 7), torch.randn(3, 50, 7)
    for dim, reverse in ((0, False), (1, True), (2, False), (2, True)):
        found = on_cpu(scanned(affine, dim, reverse))(a, b)[1]
        assert torch.equal(found, stepwise(dim, reverse)(a, b)[1]), (dim, reverse)


def test_nothing_is_multiplied_by_the_first_factor() -> None:
    a = torch.tensor([[torch.inf, 0.5], [torch.nan, 0.5]])
    b = torch.tensor([[1.0, 1.0], [-0.0, -0.0]])
    for backend in BACKENDS.values():
        found = backend(scanned(affine, 1, False))(a, b)[1]
        assert torch.equal(found, torch.tensor([[1.0, 1.5], [-0.0, -0.0]]))
        assert torch.equal(found.signbit(), b.signbit())


def test_lengths_that_change() -> None:
    """Torch has no gradient of its operator over programs where a length is a symbol; ours has."""
    scan = scanned(affine, 1, True)
    fn = compiled(lambda a, b: scan(torch.exp(a), b * 2)[1] + 1, dynamic=True)
    own = torch.ops.onetrip.affine_scan
    differentiated = compiled(layer(lambda a, b: (a, own(a, b, 1, True))), dynamic=True)
    for length in (5, 12, 300):
        a, b = operands((2, length, 3), torch.float32, False)
        with torch.no_grad():
            found, theirs = fn(a - 2, b), stepwise(1, True)(torch.exp(a - 2), b * 2)[1] + 1
            exact = stepwise(1, True)(torch.exp(wide(a - 2)), wide(b) * 2)[1] + 1
        assert judge((found,), (theirs,), (exact,)).ok
        eager, truth = (run(layer(stepwise(1, True)), *x) for x in ((a, b), (wide(a), wide(b))))
        verdict = judge(run(differentiated, a, b), eager, truth)
        assert verdict.ok, verdict


SPELLINGS: dict[str, tuple[Combine, int]] = {
    "as in models": (affine, 1),
    "other orders": (lambda a, b, c, d: [torch.mul(c, a), torch.add(d, b * c)], 1),
    "methods": (lambda a, b, c, d: [a.mul(c), d.add(b.mul(c))], 1),
    "states first": (lambda b, a, d, c: [c * b + d, a * c], 0),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_become_one_kernel(name: str, built: list[Built]) -> None:
    combine, place = SPELLINGS[name]
    a, b = torch.rand(3, 6), torch.randn(3, 6)
    given = (a, b) if place == 1 else (b, a)
    found = on_cpu(lambda x, y: scanned(combine, 1, False)(x * 1, y * 1)[place] + 1)(*given)
    assert torch.equal(found, stepwise(1, False)(a, b)[1] + 1)
    assert len(steps_of(built, Launch)) == 1 and not externs(built)


OTHERS: dict[str, Combine] = {
    "maxima": lambda a, b, c, d: [torch.maximum(a, c), torch.maximum(b, d)],
    "the later decay twice": lambda a, b, c, d: [a * c, c * b + c * d],
    "a scaled sum": lambda a, b, c, d: [a * c, torch.add(d, c * b, alpha=1.0)],
    "a decay of its own": lambda a, b, c, d: [a * c, a * d + b],
    "swapped": lambda a, b, c, d: [c * b + d, a * c],
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_combinations_stay_with_the_library(name: str, built: list[Built]) -> None:
    a, b = torch.rand(3, 6), torch.randn(3, 6)
    fn = scanned(OTHERS[name], 1, False)
    found = compiled(lambda x, y: fn(x, y)[1], strict=False)(a, b)
    torch.testing.assert_close(found, fn(a, b)[1])
    assert externs(built)


def test_a_state_space_model_has_no_call_of_its_own_on_a_gpu() -> None:
    model, inputs = model_of("mamba", torch.bfloat16)
    model.config.use_associative_scan = True
    target = load("h200")
    graphs = capture_graphs(model.train(), (), inputs, device=torch.device("cuda"), training=True)
    analyzed = [analyze(g, target, OPTIONS) for g in graphs]
    scans = [n for a in analyzed for n in a.plan.graph.nodes if n.op == "affine_scan"]
    assert len(scans) == 2
    made = texts(analyzed, target)
    assembled = assemble_all([t for t, _ in made.values()], target)
    assert not any(a.spill_bytes for a in assembled)


@pytest.mark.parametrize("training", [False, True])
def test_a_state_space_model_is_right(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's own call, on the way that it takes on a GPU."""

    def pointwise(combine: Callable[..., Any], leaves: Any, dim: int, **how: Any) -> Any:
        def flat(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> list[Tensor]:
            return list(combine((a, b), (c, d)))

        return scanned(flat, dim, False)(*leaves)

    # The package exports the function under the name of its module.
    module = importlib.import_module("torch._higher_order_ops.associative_scan")
    monkeypatch.setattr(module, "associative_scan", pointwise)
    ours, found = check("mamba", torch.float32, training)
    assert found.by_name and not found.wrong, found.wrong
    nodes = [n.op for a in ours.analyzed for n in a.plan.graph.nodes]
    assert nodes.count("affine_scan") == 1 + training
