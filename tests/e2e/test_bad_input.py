"""Bad input gets a clear error or a correct slow path, and loses nothing."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from checks import check, compiled

from onetrip.base.errors import ToolchainError, UsageError


def chain(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x * 2 + 1) * x


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"options": {"numeric": "fast"}}, ("numeric", "numerics", "cache_dir")),
        ({"options": {"numerics": "sloppy"}}, ("sloppy", "eager", "fast")),
        ({"options": {"strict": "yes"}}, ("strict", "True or False")),
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


def test_reset_clears_what_was_compiled() -> None:
    check(chain, torch.randn(100))
    torch._dynamo.reset()
    check(chain, torch.randn(50))
