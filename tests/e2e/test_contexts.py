"""What surrounds a compiled call: graph breaks, autocast, modes, threads, transforms, copies, and
tensors or operators that are no plain ones.
"""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from checks import compiled
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import onetrip
from onetrip.api.backend import builds


def chain(x: Tensor) -> Tensor:
    return torch.softmax(torch.sigmoid(x * 2 + 1) * x, -1)


def agree(fn: Callable[..., Any], *args: Any, calls: int = 2, **near: float) -> None:
    """Compiled, and with no graph left to eager, `fn` gives what it gives in eager."""
    ours_fn = compiled(fn, strict=False)
    for _ in range(calls):
        given = [a.clone() if type(a) is Tensor else a for a in args]
        ours, eager = pytree.tree_leaves(ours_fn(*args)), pytree.tree_leaves(fn(*given))
        for a, b in zip(ours, eager, strict=True):
            torch.testing.assert_close(a, b, **near)
        for a, b in zip(args, given, strict=True):
            assert type(a) is not Tensor or torch.equal(a, b)
    assert builds["eager"] == 0


# ------------------------------------------------------------------ modes


def test_graph_break() -> None:
    def fn(x: Tensor) -> Tensor:
        y = x.sin() * 2
        torch._dynamo.graph_break()
        return y.cos() + x

    agree(fn, torch.randn(7, 9))


def test_autocast_inside_and_switched_off_again() -> None:
    layer = nn.Linear(8, 8)

    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x).relu()
            with torch.autocast("cpu", enabled=False):
                return y, F.linear(y.float(), layer.weight) * 2

    agree(fn, torch.randn(4, 8), rtol=2e-2, atol=2e-2)


def test_autocast_outside_is_part_of_what_was_compiled() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4))
    ours, x = compiled(model), torch.randn(4, 8)
    for dtype in (None, torch.bfloat16, None):
        with torch.autocast("cpu", dtype) if dtype else nullcontext():
            found, eager = ours(x), model(x)
        assert found.dtype == eager.dtype == (dtype or torch.float32)
        near = 3e-2 if dtype else 1e-5
        torch.testing.assert_close(found, eager, rtol=near, atol=near)


def test_inference_mode_and_no_grad() -> None:
    def fn(x: Tensor) -> Tensor:
        return x.mul_(2) + 1

    ours, outside = compiled(fn), torch.ones(5)
    with torch.inference_mode():
        inside = torch.ones(5)
        assert torch.equal(ours(inside), torch.full((5,), 3.0))
        assert ours(inside).is_inference()
    assert torch.equal(inside, torch.full((5,), 4.0))
    assert torch.equal(ours(outside), torch.full((5,), 3.0))
    layer = compiled(nn.Linear(5, 5))
    with torch.no_grad():
        assert not layer(outside).requires_grad
    assert layer(outside).requires_grad


def test_threads_share_several_models_from_the_first_call() -> None:
    torch._dynamo.reset()
    programs = [lambda x, k=k: torch.softmax(x * k, -1) @ x.t() + k for k in (1, 2)]
    ours = [torch.compile(f, backend="onetrip") for f in programs]
    inputs = [torch.randn(17, 17) for _ in range(4)]

    def call(number: int) -> bool:
        fn, x = number % 2, inputs[number // 2 % 4]
        found = ours[fn](x)
        return torch.allclose(found, programs[fn](x), atol=1e-5)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(32)))


def test_reentry_through_hooks_of_both_directions() -> None:
    inner = compiled(lambda x: torch.sigmoid(x) * x + 1)

    @torch._dynamo.disable
    def between(x: Tensor) -> Tensor:
        made: Tensor = inner(x)
        return made

    outer = torch.compile(lambda x: between(x * 2) * x, backend="onetrip")
    x = torch.randn(5, requires_grad=True)
    twin = x.detach().clone().requires_grad_()
    x.register_hook(lambda g: inner(g))
    outer(x).sum().backward()
    y = twin * 2
    ((torch.sigmoid(y) * y + 1) * twin).sum().backward()
    torch.testing.assert_close(x.grad, torch.sigmoid(twin.grad) * twin.grad + 1)


def test_module_hooks() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[0].register_forward_hook(lambda m, i, o: o * 2)
    model[1].register_forward_pre_hook(lambda m, i: (i[0] + 1,))
    agree(model, torch.randn(3, 4))


def squares(x: Tensor) -> Tensor:
    return (torch.sigmoid(x) * x).sum()


@pytest.mark.parametrize(
    "transform",
    [
        torch.func.grad(squares),
        torch.func.vmap(squares),
        torch.func.vmap(torch.func.grad(squares)),
        lambda x: torch.func.jvp(squares, (x,), (torch.ones_like(x),)),
    ],
)
def test_function_transforms(transform: Any) -> None:
    agree(transform, torch.randn(3, 4))


def test_copies_are_independent() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.GELU()), torch.randn(3, 4)
    ours = compiled(model)
    torch.testing.assert_close(ours(x), model(x))
    twin = copy.deepcopy(ours)
    with torch.no_grad():
        twin._orig_mod[0].weight.mul_(2)
    torch.testing.assert_close(twin(x), twin._orig_mod(x))
    assert not torch.equal(twin(x), ours(x))
    model.compile(backend="onetrip")
    expected = model(x)
    torch.testing.assert_close(pickle.loads(pickle.dumps(model))(x), expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system that forks")
def test_a_forked_child_computes_on_pages_of_its_own() -> None:
    """On one thread: the threads of OpenMP do not live on in a child, in eager neither."""
    ours, x = compiled(chain), torch.randn(300, 300)
    expected = ours(x)
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        os._exit(0 if torch.equal(ours(x), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(ours(x), expected)


# ------------------------------------------------------------------ tensors and operators


def jagged() -> Tensor:
    rows = [torch.ones(2, 4), torch.ones(3, 4)]
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


TENSORS: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "complex": (lambda z: torch.view_as_real(z * 2 + z.conj()) + 1,
                lambda: torch.randn(5, dtype=torch.complex64)),
    "sparse": (lambda s: torch.sparse.mm(s, torch.ones(4, 4)) * 2,
               lambda: torch.eye(4).to_sparse()),
    "made sparse": (lambda x: x.to_sparse().to_dense() * 2, lambda: torch.eye(4)),
    "jagged": (lambda n: (n * 2).sin().values(), jagged),
    "spectrum": (lambda x: torch.fft.fft(x).abs() * 2, lambda: torch.randn(8)),
}  # fmt: skip


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_that_are_no_plain_ones(case: str) -> None:
    fn, make = TENSORS[case]
    x = make()
    torch.testing.assert_close(compiled(fn, strict=False)(x), fn(x))


@torch.library.custom_op("onetriptest::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@torch.library.custom_op("onetriptest::increment", mutates_args=("x",))
def increment(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 3


twice.register_fake(torch.empty_like)
increment.register_fake(torch.empty_like)


def custom_on_input(x: Tensor) -> Tensor:
    return increment(x) + x


def custom_on_view(x: Tensor) -> Tensor:
    y = x * 2
    return increment(y[1:3]).sum() + y


def branches(x: Tensor) -> Tensor:
    made = torch.cond(x.sum() > 0, lambda t: t.sin() * 2, lambda t: t.cos() + 1, (x * 2,))
    return made + 1


def loop(x: Tensor) -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    start = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, t * 2 + 1), (start, x * 2))


def scanned(x: Tensor) -> Any:
    from torch._higher_order_ops.scan import scan

    return scan(lambda c, t: (c + t, c * 2 + t), torch.zeros(3), x * 2)


def flexible(x: Tensor) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    q = x.view(1, 1, 4, 3)
    made: Tensor = flex_attention(q * 1, q, q, score_mod=lambda s, b, h, i, j: s * 0.5 + i)
    return made * 2


def checkpointed(x: Tensor) -> Tensor:
    from torch.utils.checkpoint import checkpoint

    made: Tensor = checkpoint(lambda t: F.gelu(t) * 2, x * 1, use_reentrant=False)
    return made + 1


PROGRAMS = (custom_on_input, custom_on_view, branches, loop, scanned, flexible, checkpointed)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_operators_over_programs_are_one_library_call(program: Any) -> None:
    x = torch.linspace(0.1, 1, 12).view(4, 3)
    agree(program, x)


def test_a_custom_operator() -> None:
    agree(lambda x: twice(x.sin() * 2) + x, torch.randn(5))


class Moves(nn.Module):
    def __init__(self, move: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.move = nn.Linear(8, 8), move

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.layer(x)) * self.move(torch.ones(8))


@pytest.mark.parametrize(
    "move", [lambda t: t.cuda(), lambda t: t.cuda(0), lambda t: t.to("cuda")], ids=range(3)
)
def test_planning_for_a_gpu_that_is_not_there_knows_the_current_device(move: Any) -> None:
    assert onetrip.plan(Moves(move), torch.randn(4, 8), target="h200").kernels >= 2
