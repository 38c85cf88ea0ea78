"""An index outside of its dimension raises what eager raises, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

CALLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i[:, None].expand(-1, 3)),
    "index": lambda x, i: x[i],
    "index of the last dimension": lambda x, i: x[:, i],
    "take": lambda x, i: x.take(i * 3),
    "index_put": lambda x, i: x.index_put((i,), x[0]),
    "index of a constant": lambda x, i: torch.full((5, 3), 2.0)[i],
    "gather from a constant": lambda x, i: torch.zeros(5).gather(0, i),
    "embedding of zeros": lambda x, i: torch.nn.functional.embedding(i, torch.zeros(5, 3)),
    "targets of equal logits": lambda x, i: torch.nn.functional.nll_loss(torch.ones(2, 5), i),
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
    torch._dynamo.reset()
    compiled = torch.compile(call, backend="onetrip")
    torch.testing.assert_close(
        compiled(x, torch.tensor([0, 1]), torch.zeros(())),
        call(x, torch.tensor([0, 1]), torch.zeros(())),
    )
    before = x.clone()
    with pytest.raises(eager.type):
        compiled(x, torch.tensor([0, wrong]), seen)
    assert torch.equal(x, before)
    assert seen == 0
