"""Sizes that vary: one build serves all from 2 up, one more each 0 and 1, one if unbacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from checks import compiled, tensors, wide
from torch import Tensor
from torch._dynamo.decorators import mark_unbacked

from onetrip.api.backend import builds, runner
from onetrip.api.devices import interpreted
from onetrip.api.pipeline import analyze, build
from onetrip.base.options import Options
from onetrip.frontend.capture import CapturedGraph, make_backend
from onetrip.runtime.accuracy import judge
from onetrip.target import load

SIZES = ((3, 5), (7, 33), (16, 64), (2, 2), (13, 17), (8, 15), (31, 16))
"""Primes, and vector widths with their neighbours."""


def agree(fn: Any, ours_fn: Any, *args: Any) -> None:
    with torch.no_grad():
        eager, exact = tensors(fn(*args)), tensors(wide(fn)(*map(wide, args)))
        ours = tensors(ours_fn(*args))
    verdict = judge(ours, eager, exact)
    assert verdict.ok, (verdict, [tuple(a.shape) for a in args if isinstance(a, Tensor)])
    assert [t.shape for t in ours] == [t.shape for t in eager]


def serve(
    fn: Any, calls: Sequence[Sequence[Any]], dynamic: bool | None = None, strict: bool = True
) -> int:
    """Runs all calls through one compiled function; how many graphs that built."""
    ours_fn = compiled(fn, dynamic=dynamic, strict=strict)
    for args in calls:
        agree(fn, ours_fn, *args)
    assert builds["eager"] == 0
    return builds["compiled"]


def matrices(sizes: Sequence[tuple[int, ...]] = SIZES) -> list[tuple[Tensor]]:
    return [(torch.randn(s),) for s in sizes]


def cut(x: Tensor) -> Tensor:
    a, b = torch.cat([x, x.sin()], 1).chunk(2, 1)
    return torch.cat([a * 2 + b, x[: x.shape[0] // 2 + 1]], 0)


CASES: dict[str, Callable[[Tensor], Any]] = {
    "pointwise": lambda x: torch.sigmoid(x * 2 + 1) * x,
    "rows": lambda x: F.layer_norm(torch.softmax(x * 0.5, -1), (x.shape[-1],)) * 2,
    "columns": lambda x: (x * 2).sum(0) + x.mean(0) + x.var(0) + x.argmax(0),
    "transpose": lambda x: (x.t() * 2).contiguous() + torch.arange(x.shape[0]),
    "join and split": cut,
    "matmuls": lambda x: torch.relu(x @ x.t()) @ x + x.sum(),
    "cross entropy": lambda x: F.cross_entropy(x, torch.arange(x.shape[0]) % x.shape[1]),
    "scans and masks": lambda x: torch.cumsum(torch.tril(x), 1) + F.pad(x, (2, 0))[:, :-2],
    "numbers from sizes": lambda x: x * (x.shape[0] / x.shape[1]) + x.shape[1] ** -0.5,
}


@pytest.mark.parametrize("case", CASES)
def test_one_build_serves_every_size(case: str) -> None:
    assert serve(CASES[case], matrices(), dynamic=True) == 1


def test_attention() -> None:
    def fn(q: Tensor, k: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, k * 2, is_causal=True) + 1

    shapes = (((3, 2, 5, 8), (3, 2, 9, 8)), ((5, 4, 7, 16), (5, 4, 17, 16)))
    calls = [tuple(torch.randn(s) for s in pair) for pair in shapes]
    assert serve(fn, calls, dynamic=True) == 1


def test_zero_and_one_are_built_once_each() -> None:
    sizes = ((3, 5), (1, 6), (0, 15), (2, 2), (2, 7), (1, 9), (0, 3))
    assert serve(lambda x: torch.softmax(x, -1) + x.sum(0), matrices(sizes), dynamic=True) == 3


def test_the_second_size_makes_a_dimension_symbolic() -> None:
    sizes = ((3, 5), (7, 5), (9, 5), (2, 5))
    assert serve(lambda x: torch.softmax(x, -1) * 2, matrices(sizes)) == 2


def test_a_marked_dimension_is_built_once() -> None:
    calls = matrices(((3, 5), (7, 5), (2, 5)))
    for (x,) in calls:
        torch._dynamo.mark_dynamic(x, 0)
    assert serve(lambda x: torch.softmax(x, -1) * 2, calls) == 1


UNBACKED = ("pointwise", "rows", "columns", "matmuls")


@pytest.mark.parametrize("case", UNBACKED)
def test_an_unbacked_dimension_is_built_once_zero_and_one_included(case: str) -> None:
    fn = CASES[case]
    if case == "columns":
        fn = lambda x: (x * 2).sum(0) + x.mean(0) + x.var(0)  # noqa: E731
    calls = matrices(((3, 6), (1, 6), (0, 6), (17, 6), (2, 6)))
    for (x,) in calls:
        mark_unbacked(x, 0)
    assert serve(fn, calls) == 1


def test_a_check_that_sizes_do_not_prove_is_made_at_each_call() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        torch._check(x.shape[0] <= 2 * y.shape[0])
        return x.sum(0) + y.sum(0)

    def call(*rows: int) -> tuple[Tensor, ...]:
        given = tuple(torch.randn(n, 4) for n in rows)
        for t in given:
            mark_unbacked(t, 0)
        return given

    ours_fn = compiled(fn)
    agree(fn, ours_fn, *call(5, 3))
    with pytest.raises(RuntimeError):
        ours_fn(*call(7, 3))
    agree(fn, ours_fn, *call(2, 9))
    assert builds["eager"] == 0


def test_a_python_float_is_no_constant_once_it_changed() -> None:
    x = torch.randn(9)
    calls = [(x, s) for s in (0.5, 1.5, 2.5, -3.25, 1e30)]
    assert serve(lambda x, s: x * s + s, calls) == 2


def test_a_captured_item_is_a_tensor() -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        calls = [(torch.randn(9) + k,) for k in range(3)]
        assert serve(lambda x: x * x.sum().item() + 1, calls) == 1


@pytest.mark.filterwarnings("ignore:onetrip runs a graph:RuntimeWarning")
def test_sizes_that_depend_on_data_run_in_eager() -> None:
    def fn(x: Tensor) -> Tensor:
        return x[x > 0] * 2 + 1

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        ours_fn = compiled(fn, strict=False)
        for x in (torch.randn(9), torch.randn(9).relu(), -torch.ones(9)):
            assert torch.equal(ours_fn(x), fn(x))


def test_training_with_symbolic_sizes() -> None:
    def fn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        hidden = F.gelu(x @ w + b)
        return F.cross_entropy(hidden.flatten(0, 1), torch.arange(hidden[..., 0].numel()) % 5)

    ours_fn = compiled(fn, dynamic=True)
    w, b = torch.randn(6, 5, requires_grad=True), torch.randn(5, requires_grad=True)
    for batch, length in ((2, 3), (5, 7), (3, 16)):
        x = torch.randn(batch, length, 6, requires_grad=True)
        wanted = (x, w, b)
        twins = [t.detach().double().requires_grad_() for t in wanted]
        exact = torch.autograd.grad(fn(*twins), twins)
        eager = torch.autograd.grad(fn(*wanted), wanted)
        ours = torch.autograd.grad(ours_fn(*wanted), wanted)
        verdict = judge(ours, eager, exact)
        assert verdict.ok, verdict
    assert builds == {"compiled": 2}


def test_triton_with_symbolic_sizes() -> None:
    """Masks of the last tile, and sizes as arguments, in Triton's interpreter."""
    pytest.importorskip("triton")
    made = []

    def compile_graph(captured: CapturedGraph) -> Any:
        made.append(captured)
        analyzed = analyze(captured, load("h100"), Options(strict=True))
        return runner(build(analyzed, interpreted(), Options(strict=True)))

    def fn(x: Tensor) -> Tensor:
        return torch.softmax(x * 2, -1) + x.mean(0) + (x.t() * 3).sum(1)

    torch._dynamo.reset()
    ours_fn = torch.compile(fn, backend=make_backend(compile_graph), dynamic=True)
    for (x,) in matrices(((3, 5), (7, 33), (2, 2))):
        agree(fn, ours_fn, x)
    assert len(made) == 1


# ------------------------------------------------------------------ models


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=31, n_positions=64,
                        bos_token_id=0, eos_token_id=0)  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
                         hidden_size=16, intermediate_size=32, vocab_size=31,
                         max_position_embeddings=64)  # fmt: skip
    return LlamaForCausalLM(config).eval()


def t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(num_layers=1, num_heads=2, d_model=16, d_kv=8, d_ff=32, vocab_size=31,
                      decoder_start_token_id=0)  # fmt: skip
    return T5ForConditionalGeneration(config).eval()


def bert() -> Any:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                        intermediate_size=32, vocab_size=31, max_position_embeddings=64,
                        return_dict=False)  # fmt: skip
    return BertModel(config).eval()


@pytest.mark.parametrize("make", [bert, gpt2])
def test_a_whole_model_with_any_batch_and_sequence(make: Any) -> None:
    model = make()
    model.config.use_cache = False
    shapes = ((2, 5), (3, 17), (5, 2))
    calls = [(torch.randint(1, 31, shape),) for shape in shapes]
    assert serve(model, calls, dynamic=True, strict=False) == 1


@pytest.mark.parametrize(
    ("make", "cache", "most"),
    [(gpt2, None, 3), (gpt2, "static", 2), (llama, None, 3), (t5, None, 3)],
)
def test_generation_with_a_growing_cache(make: Any, cache: str | None, most: int) -> None:
    """One build for the prompt, and for a step one with the first length and one with any."""
    model = make()
    model.generation_config.disable_compile = True
    prompt = torch.randint(1, 31, (2, 5))
    options = {
        "max_new_tokens": 6,
        "do_sample": False,
        "pad_token_id": 0,
        "attention_mask": torch.ones_like(prompt),
        "cache_implementation": cache,
    }
    eager = model.generate(prompt, **options)
    model.forward = compiled(model.forward, strict=False)
    assert torch.equal(model.generate(prompt, **options), eager)
    assert builds["eager"] == 0
    assert 2 <= builds["compiled"] <= most
