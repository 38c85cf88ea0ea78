"""Bad input gets a clear error or a correct slow path, and loses nothing."""

from __future__ import annotations

import importlib
import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checks import check, compiled
from torch import Tensor

from onetrip.api.backend import FaultWarning, builds
from onetrip.base.errors import ToolchainError, UsageError, VerifyError

backend_module = importlib.import_module("onetrip.api.backend")


def chain(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x * 2 + 1) * x


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"options": {"numeric": "fast"}}, ("numeric", "numerics", "cache_dir")),
        ({"options": {"numerics": "sloppy"}}, ("sloppy", "eager", "fast")),
        ({"options": {"strict": "yes"}}, ("strict", "True or False")),
        ({"options": {"cache_dir": 5}}, ("cache_dir", "a path")),
        ({"options": {"target": 5}}, ("target", "a name")),
        ({"mode": "fastest"}, ("fastest", "reduce-overhead")),
    ],
)
def test_unknown_option_or_mode_lists_the_known_ones(
    arguments: dict[str, object], words: tuple[str, ...]
) -> None:
    torch._dynamo.reset()
    with pytest.raises(Exception) as caught:
        torch.compile(chain, backend="onetrip", **arguments)(torch.randn(4))
    error = caught.value
    while error is not None and not isinstance(error, UsageError):
        error = error.__cause__ or getattr(error, "inner_exception", None)
    assert isinstance(error, UsageError)
    assert all(word in str(error) for word in words)


def test_a_mode_without_effect_says_so() -> None:
    torch._dynamo.reset()
    with pytest.warns(RuntimeWarning, match="cuda_graphs has no effect"):
        out = torch.compile(chain, backend="onetrip", mode="reduce-overhead")(torch.ones(3))
    torch.testing.assert_close(out, chain(torch.ones(3)))


def test_no_compiler_runs_eager_with_a_warning_and_strict_raises(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ONETRIP_CXX", str(tmp_path / "no-such-compiler"))
    x = torch.randn(9)
    with pytest.warns(RuntimeWarning, match="eager"):
        out = compiled(chain, strict=False, cache_dir=str(tmp_path / "cache"))(x)
    assert torch.equal(out, chain(x))
    with pytest.raises(Exception) as caught:
        compiled(chain, strict=True, cache_dir=str(tmp_path / "cache"))(x)
    error: BaseException | None = caught.value
    while error is not None and not isinstance(error, ToolchainError):
        error = error.__cause__ or getattr(error, "inner_exception", None)
    assert isinstance(error, ToolchainError)


def test_corrupt_cache_entries_are_rebuilt(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import sys, torch
        fn = lambda x: torch.sigmoid(x * 2 + 1) * x
        options = {"cache_dir": sys.argv[1], "strict": True}
        x = torch.linspace(-3, 3, 70)
        out = torch.compile(fn, backend="onetrip", options=options)(x)
        torch.testing.assert_close(out, fn(x))
        """
    )
    run = [sys.executable, "-c", program, str(tmp_path)]
    subprocess.run(run, check=True, timeout=200)
    libraries = list(tmp_path.rglob("*.so"))
    assert libraries
    for library in libraries:
        library.write_bytes(library.read_bytes()[:100])
    subprocess.run(run, check=True, timeout=200)
    assert all(path.stat().st_size > 100 for path in tmp_path.rglob("kernel.so"))


@pytest.mark.skipif(os.name != "posix", reason="permission bits of a POSIX file system")
def test_unusable_cache_folder_is_replaced_by_a_private_one(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file where a folder is wanted")
    blocked.chmod(stat.S_IRUSR)
    x = torch.randn(31)
    with pytest.warns(Warning):
        out = compiled(chain, cache_dir=str(blocked / "cache"))(x)
    torch.testing.assert_close(out, chain(x))


def test_two_processes_compile_the_same_model_at_once(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import sys, torch
        fn = lambda x, w: torch.softmax(torch.nn.functional.gelu(x @ w) + 1, -1)
        options = {"cache_dir": sys.argv[1], "strict": True}
        x, w = torch.linspace(-1, 1, 64).view(8, 8), torch.eye(8)
        out = torch.compile(fn, backend="onetrip", options=options)(x, w)
        torch.testing.assert_close(out, fn(x, w))
        """
    )
    runs = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    for run in runs:
        _, errors = run.communicate(timeout=250)
        assert run.returncode == 0, errors.decode()


def test_complex_runs_as_extern() -> None:
    x = torch.randn(5, dtype=torch.complex64)
    out = compiled(lambda z: (z * 2).abs() + 1, strict=False)(x)
    torch.testing.assert_close(out, (x * 2).abs() + 1)


def test_quantized_input_takes_the_slow_path() -> None:
    q = torch.quantize_per_tensor(torch.randn(7), 0.1, 3, torch.qint8)
    fn = lambda t: t.dequantize() * 2  # noqa: E731
    assert torch.equal(compiled(fn, strict=False)(q), fn(q))


def test_division_by_zero_raises_as_eager_does() -> None:
    fn = compiled(lambda a, b: torch.floor_divide(a + 1, b))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            fn(torch.arange(20), torch.arange(20))
    out = fn(torch.arange(20), torch.arange(20) + 1)
    assert torch.equal(out, torch.ones(20, dtype=torch.int64))


def test_index_out_of_range_raises_as_eager_does() -> None:
    fn = compiled(lambda w, i: torch.nn.functional.embedding(i, w) * 2)
    table = torch.randn(5, 8)
    with pytest.raises((IndexError, RuntimeError)):
        fn(table, torch.tensor([1, 7]))
    assert torch.equal(fn(table, torch.tensor([1, 4])), table[[1, 4]] * 2)


BAD_INDICES: dict[str, tuple[Any, torch.Tensor]] = {
    "embedding": (lambda w, i: torch.nn.functional.embedding(i, w) * 2, torch.tensor([1, 7])),
    "index": (lambda w, i: w.mul_(w[i].sum()), torch.tensor([-6])),
    "gather": (lambda w, i: w.gather(0, i) * 2, torch.tensor([[5, 0, 0, 0]])),
    "scatter": (lambda w, i: w.scatter_(0, i, 1.0), torch.tensor([[5, 0, 0, 0]])),
    "index_put": (lambda w, i: w.index_put_((i,), torch.tensor(1.0)), torch.tensor([9])),
    "class": (torch.nn.functional.cross_entropy, torch.tensor([0, 1, 2, 3, 9])),
}


@pytest.mark.parametrize("case", BAD_INDICES)
def test_a_bad_index_raises_eagers_class_and_nothing_is_written(case: str) -> None:
    fn, index = BAD_INDICES[case]
    table = torch.randn(5, 4)
    with pytest.raises((IndexError, RuntimeError)) as eager:
        fn(table.clone(), index)
    ours_fn, kept = compiled(fn, strict=False), table.clone()
    for _ in range(2):
        with pytest.raises(eager.type):
            ours_fn(table, index)
        assert torch.equal(table, kept)


def test_an_input_changed_twice_and_its_views() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.add_(1)
        y = x * 2
        x.mul_(3)
        return x[1:], y, x

    mine, theirs = torch.ones(4), torch.ones(4)
    ours_fn = compiled(fn)
    for _ in range(2):
        ours, eager = ours_fn(mine), fn(theirs)
        assert all(map(torch.equal, (*ours, mine), (*eager, theirs)))
        assert ours[2] is mine
        assert ours[0].data_ptr() == mine.data_ptr() + 4


@pytest.mark.parametrize("fill", [float("nan"), -float("inf")])
def test_a_mask_that_is_nan_or_hides_a_whole_row(fill: float) -> None:
    def fn(q: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        attended = torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        return attended, (q[0, 0] @ q[0, 0].t()).masked_fill(mask > 0, 0.0).softmax(-1) + mask

    q, mask = torch.randn(1, 1, 4, 8), torch.zeros(4, 4)
    mask[1] = fill
    for a, b in zip(compiled(fn)(q, mask), fn(q, mask), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "int32", "int64"])
def test_integers_wrap_around_as_eagers_do(name: str) -> None:
    dtype = getattr(torch, name)
    ends = torch.iinfo(dtype)
    x = torch.tensor([ends.min, ends.max, 1, 3, ends.max - 1, ends.min // 2] * 4, dtype=dtype)

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * x + x, x.sum(), x << 3, x.abs(), -x, x.prod(), x // 2

    assert all(map(torch.equal, compiled(fn)(x), fn(x)))


EXTREMES: dict[str, Callable[[Tensor], Any]] = {
    "max": lambda x: x.max() * 2,
    "min": lambda x: x.min() * 2,
    "max of a dimension": lambda x: x.max(0),
    "min of a dimension": lambda x: x.min(0),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_no_elements_have_no_extreme(name: str) -> None:
    x = torch.empty(0, 3)
    with pytest.raises((IndexError, RuntimeError)) as eager:
        EXTREMES[name](x)
    with pytest.raises(eager.type):
        compiled(EXTREMES[name], strict=False)(x)


def test_no_elements_have_eager_s_sums() -> None:
    check(
        lambda x: (x.sum(), x.mean(0), x.prod(), x.logsumexp(0), x.max(1)[0], x.norm(), x.all()),
        torch.empty(0, 3),
    )


def test_wrong_shapes_raise_and_right_ones_still_run() -> None:
    ours_fn = compiled(lambda a, b: a @ b + 1)
    good = torch.ones(3, 4), torch.ones(4, 5)
    for bad in ((torch.ones(3, 4), torch.ones(3, 5)), (torch.ones(3, 4), good[1].long())):
        assert torch.equal(ours_fn(*good), torch.full((3, 5), 5.0))
        with pytest.raises(RuntimeError):
            ours_fn(*bad)
    assert torch.equal(ours_fn(*good), torch.full((3, 5), 5.0))


def test_reset_clears_what_was_compiled() -> None:
    check(chain, torch.randn(100))
    assert builds["compiled"] == 1
    torch._dynamo.reset()
    assert not builds
    check(chain, torch.randn(50))
    assert builds["compiled"] == 1


@pytest.mark.parametrize("count", [40, 300])
def test_any_number_of_tensors_can_be_joined(count: int) -> None:
    """One operator larger than a fused group may be; and one that no kernel takes in."""
    xs = [torch.randn(8, 5, 7)[:, ::2, 1:] for _ in range(count)]

    def joined(*xs: Tensor) -> tuple[Tensor, Tensor]:
        return torch.stack([x * 2 for x in xs], 1).relu() + 1, torch.cat(xs, 1).sum(1)

    torch._dynamo.reset()
    found = torch.compile(joined, backend="onetrip")(*xs)
    for mine, theirs in zip(found, joined(*xs), strict=True):
        torch.testing.assert_close(mine, theirs)
        assert mine.stride() == theirs.stride()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (VerifyError("a Nest breaks the invariant: names are unique"), "names are unique"),
        (KeyError("p0"), r"KeyError: 'p0'\n  where: .*test_bad_input.py:\d+"),
    ],
    ids=["verifier", "exception"],
)
def test_a_fault_of_ours_stops_no_model(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    """What a verifier finds before anything ran is said aloud, and the model runs in eager."""

    def faulty(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(backend_module, "analyze", faulty)
    torch._dynamo.reset()
    x = torch.randn(5)
    with pytest.warns(FaultWarning, match=said):
        found = torch.compile(lambda x: x.exp() + 1, backend="onetrip")(x)
    assert torch.equal(found, x.exp() + 1)
    assert builds["eager"] == 1
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        torch.compile(lambda x: x.exp() + 1, backend="onetrip", options={"strict": True})(x)


def test_attention_lies_in_memory_as_eager_s_does() -> None:
    """So that a view of it, inside the program or outside, is as valid as in eager."""
    q = torch.randn(1, 2, 16, 8)
    attend = torch.nn.functional.scaled_dot_product_attention
    torch._dynamo.reset()
    compiled = torch.compile(lambda q: attend(q, q, q).view(2, -1) * 2, backend="onetrip")
    torch.testing.assert_close(compiled(q), attend(q, q, q).view(2, -1) * 2)


@pytest.mark.parametrize("name", ["hardswish", "hardsigmoid", "hardtanh", "relu6", "relu", "elu"])
def test_gradients_at_the_corners_are_eager_s(name: str) -> None:
    """Where a piece ends; random numbers never lie there."""
    program = getattr(torch.nn.functional, name)
    x = torch.tensor([-6.0, -3.0, -1.0, -0.0, 0.0, 1.0, 3.0, 6.0] * 8, requires_grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="onetrip")
    found, wanted = (torch.autograd.grad(f(x).sum(), x)[0] for f in (compiled, program))
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_a_softmax_of_one_number_compiles(name: str) -> None:
    """It has no dimension, and its one element is dimension 0 and -1 alike."""
    for dim in (0, -1):
        compiled_ = torch.compile(
            lambda x, d=dim: getattr(torch, name)(x + 1, d),
            backend="onetrip",
            options={"strict": True},
        )
        x = torch.tensor(2.0)
        assert torch.equal(compiled_(x), getattr(torch, name)(x + 1, dim))
