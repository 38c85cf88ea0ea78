"""A run of the bench on tiny sizes: every rival is recorded, wrong and failing ones too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from onetrip.base.errors import OnetripError, UsageError
from onetrip.bench import engine, record, variants

FAST = {"size": "tiny", "rounds": 3, "seconds": 0.01, "against": ("eager", "onetrip")}


def refuses(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    raise RuntimeError("this backend\nrefuses")


def runs_out(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    def run(*args: torch.Tensor) -> Any:
        raise torch.OutOfMemoryError("no memory")

    return run


def is_off(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    def run(*args: torch.Tensor) -> Any:
        return [out * 1.0001 for out in graph(*args)]

    return run


def is_nan(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    def run(*args: torch.Tensor) -> Any:
        return [out * float("nan") for out in graph(*args)]

    return run


def measure(row: str, backend: Any, suite: str = "blocks") -> record.RowResult:
    options = engine.Options("cpu", only=row, backend=backend, **FAST)
    return engine.run_suite(suite, options).rows[0]


def test_a_right_rival_is_timed_and_judged() -> None:
    found = measure("chain8", "eager")
    ours = found.variants["onetrip"]
    assert ours.status == "ok"
    assert ours.median_us is not None and ours.median_us > 0
    assert ours.low_us is not None and ours.high_us is not None
    assert ours.low_us <= ours.median_us <= ours.high_us
    assert ours.worst_ulp == ours.eager_ulp
    assert ours.rounds >= 3
    assert found.floor_us is not None
    assert ours.times_floor == pytest.approx(ours.median_us / found.floor_us)
    # 3 x 40 elements in and out, and two vectors of 40, of 4 bytes.
    assert found.bytes == 4 * (2 * 3 * 40 + 2 * 40)


@pytest.mark.parametrize(
    ("backend", "status", "note"),
    [
        (refuses, "failed", "refuses"),
        (runs_out, "failed", "OutOfMemoryError: no memory"),
        (is_off, "wrong", "ulp, allowed"),
        (is_nan, "wrong", "NaN"),
    ],
)
def test_a_bad_rival_is_recorded(backend: Any, status: str, note: str) -> None:
    found = measure("softmax_bigrow", backend)
    assert found.variants["eager"].status == "ok"
    ours = found.variants["onetrip"]
    assert ours.status == status
    assert note in ours.note
    assert "\n" not in ours.note
    assert (ours.median_us is None) == (status == "failed")


@pytest.mark.parametrize(
    "row", ["bias_dropout_norm", "rmsnorm_fp8_quant", "gelu_glu_training", "adamw_small"]
)
def test_random_narrow_training_and_mutating_rows(row: str) -> None:
    found = measure(row, "eager")
    assert {name: v.status for name, v in found.variants.items()} == {
        "eager": "ok",
        "onetrip": "ok",
    }


def test_a_wrong_update_in_place_is_seen() -> None:
    def forgets(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        return lambda *args: graph(*(a.clone() for a in args))

    assert measure("adamw_small", forgets).variants["onetrip"].status == "wrong"


def test_a_wrong_gradient_is_seen() -> None:
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    def identity(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        return make_boxed_func(graph.forward)

    def doubled(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        return make_boxed_func(lambda *args: [2 * g for g in graph(*args)])

    backend = aot_autograd(fw_compiler=identity, bw_compiler=doubled)
    found = measure("gelu_glu_training", backend)
    assert found.variants["onetrip"].status == "wrong"
    assert "result 1" in found.variants["onetrip"].note


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "resnet"])
def test_models_run_both_ways(name: str) -> None:
    options = engine.Options("cpu", only=name, backend="eager", **FAST)
    rows = engine.run_suite("models", options).rows
    assert [row.name for row in rows] == [name, f"{name}_training"]
    assert all(v.status == "ok" for row in rows for v in row.variants.values())
    assert rows[0].floor_us is None


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (engine.Options("cpu", only="no such row"), "chain8"),
        (engine.Options("tpu"), "cpu or cuda"),
        (engine.Options("cpu", against=("max",)), "default"),
    ],
)
def test_wrong_use_names_what_there_is(options: engine.Options, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        engine.run_suite("blocks", options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_gpu_is_said() -> None:
    with pytest.raises(UsageError, match="no CUDA device"):
        engine.run_suite("blocks", engine.Options("cuda"))


def test_variants_of_each_device() -> None:
    assert [v.name for v in variants.on_device("cpu")] == ["eager", "default", "onetrip"]
    assert {v.name for v in variants.on_device("cuda") if v.graph} == {
        "default+graph",
        "max+graph",
        "onetrip+graph",
    }


def test_results_survive_the_file_and_another_format_is_refused(tmp_path: Any) -> None:
    options = engine.Options("cpu", only="tiny", backend="eager", **FAST)
    results = engine.run_suite("blocks", options)
    path = record.write(results, tmp_path / "new")
    assert record.decode(path.read_bytes(), path.name) == results
    assert "| tiny | f32 |" in record.markdown(results)
    with pytest.raises(OnetripError, match="cannot be read"):
        record.decode(b'{"format": 1}', "x.json")
