"""Numbers that a program is given count from the end where they are negative, in one build or
another: what their sign is, is known or asked of the library."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own spelling
from torch import Tensor

CALLS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "the last": lambda x, n: x[:, -n:] * 2,
    "a view of the last": lambda x, n: x[:, -n:],
    "all but the last": lambda x, n: x[:, :-n] + 1,
    "one less than the last": lambda x, n: (x + 1)[:, -n + 1 :],
    "from": lambda x, n: x[n:] * 2,
    "up to": lambda x, n: x[:, :n] + 1,
    "one": lambda x, n: x[n] + 1,
    "one from the end": lambda x, n: x[-n] + 1,
    "narrow": lambda x, n: torch.narrow(x, 0, -n, 1) + 1,
    "narrow_copy": lambda x, n: torch.narrow_copy(x, 0, -n, 1) + 1,
    "select_scatter": lambda x, n: torch.select_scatter(x, x[0] * 2, 0, -n),
    "slice_scatter": lambda x, n: torch.slice_scatter(x, x[:2] * 2, 0, -n - 2, -n),
    "roll": lambda x, n: torch.roll(x, -n, 1) + 1,
    "pad": lambda x, n: F.pad(x, (-n, n)) + 1,
    "tril": lambda x, n: torch.tril(x, -n),
}


@pytest.mark.parametrize("first", [3, -3])
@pytest.mark.parametrize("name", CALLS)
def test_a_number_of_any_sign_means_what_it_means_in_eager(name: str, first: int) -> None:
    call = CALLS[name]
    torch._dynamo.reset()
    compiled = torch.compile(call, backend="onetrip", dynamic=True)
    for n in (first, 4, -5, 2, 7):
        for shape in ((9, 11), (13, 12)):
            x = torch.randn(shape)
            found, want = compiled(x, n), call(x, n)
            assert torch.equal(found, want), (n, shape)
            assert found.storage_offset() == want.storage_offset(), (n, shape)


def test_a_cache_that_keeps_a_window_of_its_last_tokens_generates_as_eager_does() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.MistralConfig(
        vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, sliding_window=8, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.MistralForCausalLM(config).eval()
    ids = torch.randint(0, 99, (2, 5))
    settings = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        want = model.generate(ids, **settings)
        torch._dynamo.reset()
        model.forward = torch.compile(model.forward, backend="onetrip", dynamic=True)
        assert torch.equal(model.generate(ids, **settings), want)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_pad_that_cuts_more_than_there_is_is_an_error_as_in_eager(dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: F.pad(x, (-12, 12)) + 1, backend="onetrip", dynamic=dynamic)
    with pytest.raises(RuntimeError):
        F.pad(torch.randn(9, 11), (-12, 12))
    with pytest.raises(RuntimeError):
        compiled(torch.randn(9, 11))
