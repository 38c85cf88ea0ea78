"""An index outside of its dimension raises what eager raises, and changes nothing.

Also where no address depends on it: along a dimension that is repeated, of a size of one, of a
constant; and where it stands behind a guard, only inside.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from checks import compiled
from torch import Tensor
from torch.nn.functional import embedding, nll_loss, pad

import onetrip
from onetrip.base.errors import OutOfRangeError

CALLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "embedding": lambda x, i: embedding(i, x),
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i[:, None].expand(-1, 3)),
    "index": lambda x, i: x[i],
    "index of the last dimension": lambda x, i: x[:, i],
    "take": lambda x, i: x.take(i * 3),
    "index_put": lambda x, i: x.index_put((i,), x[0]),
    "index of a constant": lambda x, i: torch.full((5, 3), 2.0)[i],
    "gather from a constant": lambda x, i: torch.zeros(5).gather(0, i),
    "embedding of zeros": lambda x, i: embedding(i, torch.zeros(5, 3)),
    "targets of equal logits": lambda x, i: nll_loss(torch.ones(2, 5), i),
    "targets of repeated logits": lambda x, i: nll_loss(x[:1, :1].expand(2, 5), i),
    "repeated": lambda x, i: x[:1].expand(5, 3)[i],
    "repeated, last": lambda x, i: x[:, :1].expand(5, 5)[:, i],
    "repeated, select": lambda x, i: x[0].expand(5, 3).index_select(0, i),
    "repeated, gather": lambda x, i: x[0].expand(5, 3).gather(0, i[:, None].expand(-1, 3)),
    "repeated, embedding": lambda x, i: embedding(i, x[:1].expand(5, 3)),
    "repeated, take": lambda x, i: x[:1].expand(5, 3).take(i * 3),
    "repeated and computed": lambda x, i: torch.relu(x[:1].expand(5, 3))[i],
    "broadcast": lambda x, i: (x[:1] + torch.zeros(5, 1))[i],
    "repeated, behind views": lambda x, i: x[:1].expand(5, 3).t().unsqueeze(1).flip(0)[:, 0][:, i],
    "repeated, in front of views": lambda x, i: x[:1].expand(5, 3)[i].t().reshape(-1),
    "repeated, reduced": lambda x, i: x[:1].expand(5, 3).softmax(-1)[i].sum(-1),
    "repeated twice": lambda x, i: x[:1, :1].expand(5, 5)[i, i],
    "repeated, narrow": lambda x, i: x.bfloat16()[:1].expand(5, 3)[i].float(),
    "repeated, boolean": lambda x, i: (x > 2)[:1].expand(5, 3)[i].float(),
    "through another index": lambda x, i: x[:1].expand(5, 3)[i[(i != 0).long()]],
    "behind a guard": lambda x, i: pad(x[:1].expand(5, 3)[i], (0, 0, 1, 2)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("wrong", [5, -6])
def test_the_same_class_is_raised_and_nothing_is_written(name: str, wrong: int) -> None:
    def call(x: Tensor, i: Tensor, seen: Tensor) -> Tensor:
        y = CALLS[name](x, i) * 2
        seen.add_(y.sum())
        return y + 1

    x, seen = torch.arange(15.0).reshape(5, 3), torch.zeros(())
    with pytest.raises((IndexError, RuntimeError)) as eager:
        call(x, torch.tensor([0, wrong]), seen.clone())
    ours = compiled(call)
    torch.testing.assert_close(
        ours(x, torch.tensor([0, 1]), torch.zeros(())),
        call(x, torch.tensor([0, 1]), torch.zeros(())),
    )
    before = x.clone()
    with pytest.raises(eager.type):
        ours(x, torch.tensor([0, wrong]), seen)
    assert torch.equal(x, before)
    assert seen == 0


NAMED: dict[str, tuple[str, str]] = {
    "embedding": ("aten.embedding.default", "0 <= index < 5"),
    "index_select": ("aten.index_select.default", "0 <= index < 5"),
    "gather": ("aten.gather.default", "0 <= index < 5"),
    "index": ("aten.index.Tensor", "-5 <= index < 5"),
    "repeated": ("aten.index.Tensor", "-5 <= index < 5"),
    "behind a guard": ("aten.index.Tensor", "-5 <= index < 5"),
    "targets of equal logits": ("aten.nll_loss_forward.default", "0 <= index < 5"),
}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("wrong", [5, -6])
def test_the_call_the_index_and_the_size_are_named(name: str, wrong: int) -> None:
    called, bounds = NAMED[name]
    x, ours = torch.arange(15.0).reshape(5, 3), compiled(CALLS[name])
    with pytest.raises(OutOfRangeError) as error:
        ours(x, torch.tensor([0, wrong]))
    first, *rest = str(error.value).splitlines()
    assert first == f"index {wrong} is out of range for {called} in a dimension of size 5"
    assert f"  expected: {bounds}" in rest
    assert any(line.startswith(f"  where: {called} at test_index_faults.py:") for line in rest)


def test_the_failed_one_of_two_equal_layers_is_named() -> None:
    """They share one kernel, and each has an error of its own."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(7, 16)

        def forward(self, x: Tensor, i: Tensor) -> Tensor:
            return torch.nn.functional.linear(x + self.table(i), torch.eye(16))

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Layer(), Layer()

        def forward(self, x: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return self.second(self.first(x, i), j)

    ours, x, right = compiled(Model()), torch.zeros(4, 16), torch.arange(4)
    with torch.no_grad():
        for name, given in (("first", (right + 4, right)), ("second", (right, right + 4))):
            with pytest.raises(OutOfRangeError, match=r"index 7 .* of size 7") as error:
                ours(x, *given)
            assert f" at {name}.table " in str(error.value.where)


def test_of_several_wrong_indices_the_first_is_named_on_any_number_of_threads() -> None:
    x, i = torch.randn(1000, 64), torch.arange(5000) % 1000
    i[[1234, 2600, 4999]] = torch.tensor([2001, 2002, 2003])
    ours, before = compiled(lambda x, i: (x * 2)[i].relu()), torch.get_num_threads()
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            with pytest.raises(OutOfRangeError, match="index 2001 "):
                ours(x, i)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("wrong", [1, -2])
def test_a_dimension_of_size_one_has_one_index(wrong: int) -> None:
    def call(x: Tensor, i: Tensor) -> Tensor:
        return (x[:1] * 2)[i] + x[:1][i]

    x, ours = torch.arange(15.0).reshape(5, 3), compiled(call)
    for right in (0, -1):
        assert torch.equal(ours(x, torch.tensor([right])), call(x, torch.tensor([right])))
    with pytest.raises(IndexError):
        ours(x, torch.tensor([0, wrong]))


EMPTY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "embedding": lambda x, i: embedding(i, x * 2),
    "index": lambda x, i: x[i] * 2,
    "index_select": lambda x, i: x.index_select(0, i) + 1,
    "gather": lambda x, i: x.gather(0, i[:, None].expand(-1, 3)).exp(),
    "take": lambda x, i: x.take(i) * 2,
    "index of a repeated row": lambda x, i: torch.ones(1, 3).expand(x.shape[0], 3)[i] * 2,
}


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("unbacked", [False, True])
def test_no_row_has_an_index(name: str, unbacked: bool) -> None:
    """A table of no elements has no address that may be read."""
    call, x = EMPTY[name], torch.empty(0, 3)
    ours = compiled(call)
    if unbacked:
        torch._dynamo.decorators.mark_unbacked(x, 0)
    with pytest.raises((IndexError, RuntimeError)) as eager:
        call(x, torch.tensor([0]))
    with pytest.raises(eager.type):
        ours(x, torch.tensor([0]))
    assert torch.equal(ours(x, torch.tensor([]).long()), call(x, torch.tensor([]).long()))


GUARDED: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], list[int], list[int]]] = {
    "an index that is wrong where nothing is read": (
        lambda x, i: pad(embedding(i - 1, x), (0, 0, 2, 1)), [1, 5], [0, 5],
    ),
    "an index that is padded": (lambda x, i: embedding(pad(i - 1, (1, 1), value=4), x), [1], [6]),
    "indices side by side": (lambda x, i: torch.cat([x[i], x[:1].expand(4, 3)[i]]), [3], [4]),
    "a division behind a pad": (lambda x, i: pad(12 // i, (2, 1)), [1, 5], [0, 1]),
    "a division by what is padded": (
        lambda x, i: 12 // pad(i, (1, 0), value=3), [1, 5], [0, 5],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GUARDED)
def test_behind_a_guard_only_what_is_inside_is_looked_at(name: str) -> None:
    call, right, wrong = GUARDED[name]
    x, ours = torch.arange(15.0).reshape(5, 3), compiled(call)
    assert torch.equal(ours(x, torch.tensor(right)), call(x, torch.tensor(right)))
    with pytest.raises((IndexError, RuntimeError)) as eager:
        call(x, torch.tensor(wrong))
    with pytest.raises(eager.type):
        ours(x, torch.tensor(wrong))


@pytest.mark.parametrize("fill", [-1, 5, 0])
def test_what_an_index_or_a_divisor_is_padded_with_counts(fill: int) -> None:
    x, i = torch.arange(15.0).reshape(5, 3), torch.tensor([1, 2])

    def looked_up(x: Tensor, i: Tensor) -> Tensor:
        return embedding(pad(i, (1, 0), value=fill), x)

    def divided(x: Tensor, i: Tensor) -> Tensor:
        return 12 // pad(i, (1, 0), value=fill)

    wrong = {looked_up: fill != 0, divided: fill == 0}
    for call, raises in wrong.items():
        if not raises:
            assert torch.equal(compiled(call)(x, i), call(x, i))
            continue
        with pytest.raises((IndexError, RuntimeError)) as eager:
            call(x, i)
        with pytest.raises(eager.type):
            compiled(call)(x, i)


PLACES: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "counted": (lambda x: x[torch.arange(5)], True),
    "counted from the end": (lambda x: x[torch.arange(3) - 5] + x[torch.arange(-3, 0)], True),
    "backwards": (lambda x: x[4 - torch.arange(5)], True),
    "in steps": (lambda x: x[torch.arange(3, dtype=torch.int32) * 2], True),
    "of a repeated row": (lambda x: x[:1].expand(7, 3)[torch.arange(6)[:, None] + 1], True),
    "too far": (lambda x: x[torch.arange(6)], False),
    "too far from the end": (lambda x: x[torch.arange(3) - 6], False),
    "too far in a repeated row": (lambda x: embedding(torch.arange(8), x[:1].expand(7, 3)), False),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_place_that_is_counted_is_read_without_a_check(name: str) -> None:
    """An index that is an axis, within bounds, is no index read at run time."""
    call, inside = PLACES[name]
    x = torch.arange(15.0).reshape(5, 3)
    explained = onetrip.explain(call, (x,), target="cpu")
    assert ("ot::inside" in str(explained)) is not inside
    if inside:
        assert torch.equal(compiled(call)(x), call(x))
    else:
        with pytest.raises(IndexError):
            compiled(call)(x)


def test_a_repeated_row_of_any_length_is_checked() -> None:
    def call(x: Tensor, i: Tensor) -> Tensor:
        return torch.relu(x[:1].expand(i.shape[0] + 3, 5))[i] * 2

    x, ours = torch.arange(10.0).reshape(2, 5), compiled(call, dynamic=True)
    for n in (2, 1, 0, 3, 13, 97):
        assert torch.equal(ours(x, torch.arange(n)), call(x, torch.arange(n)))
        with pytest.raises(IndexError):
            ours(x, torch.full((max(n, 1),), max(n, 1) + 3))


def test_calls_that_fail_disturb_no_others() -> None:
    def call(x: Tensor, i: Tensor) -> Tensor:
        return (x * 2)[i].relu()

    x, right = torch.randn(1000, 16), torch.arange(3000) % 1000
    wrong = right.clone()
    wrong[-1] = 1000
    ours, eager = compiled(call), call(x, right)
    assert torch.equal(ours(x, right), eager)

    def several(fails: bool) -> bool:
        for _ in range(20):
            try:
                same = torch.equal(ours(x, wrong if fails else right), eager)
            except IndexError:
                same = fails
            if not same:
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(several, [False, True, False, True]))
