"""What a model's own code asks: nothing in eager, kept in every trace, on record in plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import onetrip
from onetrip.base.errors import UsageError

X = torch.linspace(-2, 2, 64 * 32).reshape(64, 32)


def kernels(plan: Any) -> list[tuple[str, ...]]:
    return [tuple(op for op in g.ops if op not in ("view", "t")) for g in plan.groups]


def planned(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return onetrip.plan(function, args or (X,), **options)


# ------------------------------------------------------------------ barrier


def stored_between(x: Tensor) -> Tensor:
    return functional.gelu(onetrip.barrier(x * 2)) + 1


def test_a_barrier_keeps_producer_and_reader_apart() -> None:
    made = planned(stored_between)
    assert kernels(made) == [("mul",), ("gelu", "add")]
    (boundary,) = made.boundaries
    assert (boundary.verdict, boundary.code) == ("by-user", "user-cut")
    assert [(line.kind, line.by) for line in made.lines] == [("cut", "model")]
    assert kernels(planned(lambda x: functional.gelu(x * 2) + 1)) == [("mul", "gelu", "add")]


def test_barriers_behind_each_other_and_behind_views() -> None:
    def chain(x: Tensor) -> Tensor:
        y = onetrip.barrier(onetrip.barrier(x * 2).exp())
        return onetrip.barrier(y.sin().view(32, 64)).t() + 1

    assert kernels(planned(chain)) == [("mul",), ("exp",), ("sin",), ("add",)]


def test_a_barrier_on_one_of_several_results() -> None:
    def parts(x: Tensor) -> Tensor:
        value, index = (x * 2).max(dim=1)
        return onetrip.barrier(value) + 1 + index

    assert ("max",) in [k[-1:] for k in kernels(planned(parts))]


def test_a_barrier_on_an_input_asks_for_nothing() -> None:
    made = planned(lambda x: onetrip.barrier(x) + 1)
    assert (made.kernels, made.lines) == (1, ())


def test_the_user_may_take_a_barrier_back() -> None:
    made = planned(stored_between).fuse("mul", "gelu")
    assert kernels(made) == [("mul", "gelu", "add")]


# ------------------------------------------------------------------ fuse


def two_regions(x: Tensor) -> Tensor:
    for _ in range(2):
        with onetrip.fuse():
            x = (x * 2).exp() + 1
    return x


def test_a_region_is_one_kernel_also_where_it_would_be_several() -> None:
    apart = planned(two_regions, search="eager")
    assert kernels(apart) == [("mul", "exp", "add")] * 2
    assert [len(line.calls) for line in apart.lines] == [3, 3]
    assert apart.refused == ()


def test_what_may_not_share_a_kernel_is_on_record_and_the_rest_does() -> None:
    def block(x: Tensor, w: Tensor) -> Tensor:
        with onetrip.fuse():
            return (functional.gelu(x @ w) + 1).exp()

    made = planned(block, X, torch.ones(32, 32), search="eager")
    assert kernels(made) == [("mm",), ("gelu", "add", "exp")]
    (refused,) = made.refused
    assert [c.split("#")[0] for c in refused.calls] == [":mm", ":gelu"]
    assert refused.code == "compute-bound-anchor" and refused.evidence and refused.remedy
    assert "asked for in the model" in made.text()
    assert type(made)(made.document).refused == made.refused


def test_a_strict_region_is_an_error_with_the_reason() -> None:
    def block(x: Tensor, w: Tensor) -> Tensor:
        with onetrip.fuse(strict=True):
            return functional.gelu(x @ w).exp()

    with pytest.raises(UsageError, match=r"fuse\(:mm#0.*matrix product") as caught:
        planned(block, X, torch.ones(32, 32))
    assert "strict=True" in str(caught.value) and ":gelu#0" in str(caught.value)


def test_views_in_a_region_do_not_part_it() -> None:
    def block(x: Tensor) -> Tensor:
        with onetrip.fuse(strict=True):
            return (x * 2).view(32, 64).transpose(0, 1).exp().reshape(-1) + 1

    assert planned(block, search="eager").kernels == 1


def test_regions_are_nested() -> None:
    def block(x: Tensor) -> Tensor:
        with onetrip.fuse():
            y = x * 2
            with onetrip.fuse(strict=True):
                y = y.exp() + 1
            return y.sin()

    made = planned(block, search="eager")
    assert made.kernels == 1
    assert sorted(len(line.calls) for line in made.lines) == [2, 4]


def test_a_barrier_wins_over_a_region_around_it() -> None:
    def block(x: Tensor) -> Tensor:
        with onetrip.fuse():
            return onetrip.barrier(x * 2).exp()

    made = planned(block)
    assert made.kernels == 2
    assert [r.code for r in made.refused] == ["user-cut"]


def test_a_region_holds_its_backward_calls_too() -> None:
    def block(x: Tensor) -> Tensor:
        with onetrip.fuse():
            y = functional.gelu(x).sin()
        return y * 3

    made = planned(block, X.clone().requires_grad_(), training=True, search="eager")
    forward, backward = made.graphs
    assert [len(line.calls) for line in forward.lines] == [2]
    fused = [g.ops for g in backward.groups if "gelu_backward" in g.ops]
    assert [line.by for line in backward.lines] == ["model"]
    assert len(fused[0]) > 1


def test_lines_of_the_model_are_asked_again_by_the_model_alone(tmp_path: Any) -> None:
    from onetrip.api.honour import lines_for
    from onetrip.report.keys import keys_of

    made = planned(stored_between).cut("gelu", "add")
    made.save(tmp_path / "p.json")
    read = onetrip.load_plan(tmp_path / "p.json")
    assert [line.by for line in read.lines] == ["model", "user"]
    (graph,) = made.planned
    assert [line.by for line in lines_for(read, "inference", keys_of(graph.graph))] == ["user"]


# ------------------------------------------------------------------ nothing but a wish


def everything(x: Tensor) -> Tensor:
    y = onetrip.barrier(x * 2)
    with onetrip.fuse():
        z = functional.gelu(y).softmax(-1)
        with onetrip.fuse(strict=True):
            z = onetrip.barrier(z + 1) * y
    return z.sum(-1)


def plain(x: Tensor) -> Tensor:
    y = x * 2
    z = (functional.gelu(y).softmax(-1) + 1) * y
    return z.sum(-1)


def test_eager_does_nothing() -> None:
    assert onetrip.barrier(X) is X
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    everything(x).sum().backward()
    plain(y).sum().backward()
    assert x.grad is not None and y.grad is not None and torch.equal(x.grad, y.grad)


def test_a_region_lets_errors_through() -> None:
    with pytest.raises(ZeroDivisionError), onetrip.fuse():
        raise ZeroDivisionError


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "onetrip"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_every_backend_trains_through_them(backend: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    compiled = torch.compile(everything, backend=backend, fullgraph=True, dynamic=dynamic)
    out, wanted = compiled(x), plain(y)
    torch.testing.assert_close(out, wanted)
    out.sum().backward()
    wanted.sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def traced(function: Callable[..., Any], wanted: Any, context: Any = None) -> None:
    """The function is one graph for our backend, and its values are eager's."""
    torch._dynamo.reset()
    with context or torch.no_grad():
        found = torch.compile(function, backend="onetrip", fullgraph=True)(X)
        torch.testing.assert_close(found, wanted)


def test_in_inference_mode_and_under_autocast() -> None:
    traced(everything, plain(X), torch.inference_mode())
    with torch.autocast("cpu", torch.bfloat16):
        wanted = functional.gelu(X @ X.t()) + 1

    def cast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16), onetrip.fuse():
            return functional.gelu(onetrip.barrier(x @ x.t())) + 1

    traced(cast, wanted)


def test_in_transforms_checkpoints_and_branches() -> None:
    def mapped(x: Tensor) -> Tensor:
        with onetrip.fuse():
            return torch.vmap(lambda row: onetrip.barrier(row.sin()) + 1)(x)

    def gradient(x: Tensor) -> Tensor:
        made: Tensor = torch.func.grad(lambda t: onetrip.barrier(t.sin()).cos().sum())(x)
        return made

    def again(x: Tensor) -> Any:
        with onetrip.fuse():
            return checkpoint(lambda t: onetrip.barrier(t.sin()).cos(), x, use_reentrant=False)

    traced(mapped, X.sin() + 1)
    traced(gradient, -X.sin().sin() * X.cos())
    traced(again, X.sin().cos())
    made = planned(again, search="eager")
    assert {line.kind for line in made.lines} == {"cut", "fuse"}


def test_a_graph_break_inside_leaves_values_alone() -> None:
    def broken(x: Tensor) -> Tensor:
        with onetrip.fuse():
            y = x.sin()
            torch._dynamo.graph_break()
            return y.cos() + 1

    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(broken, backend="onetrip")(X), X.sin().cos() + 1)


def test_an_exported_program_has_no_trace_of_them() -> None:
    class Whole(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return everything(x)

    program = torch.export.export(Whole(), (X,))
    assert not [n for n in program.graph.nodes if "onetrip" in str(n.target)]
    torch.testing.assert_close(program.module()(X), plain(X))
