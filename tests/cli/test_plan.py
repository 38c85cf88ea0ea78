"""`onetrip plan`, `explain` and `demo`: models by name, what is printed, exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

from onetrip.cli import main
from onetrip.report import schema

MODEL = """
import torch
from torch import nn

def norm():
    return nn.Sequential(nn.GELU(), nn.LayerNorm(32)).eval(), (torch.randn(8, 32),)

def keywords():
    return (lambda x, scale: x * scale), (torch.randn(4),), {"scale": torch.randn(4)}

def lone():
    return torch.relu, torch.randn(4)

def broken():
    raise RuntimeError("no weights here")

def nothing():
    return 3
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    return str(path)


def run(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


@pytest.mark.parametrize("factory", ["norm", "keywords", "lone"])
def test_plan_prints_groups_and_totals(model: str, factory: str) -> None:
    found = run("plan", f"{model}:{factory}")
    assert found.exit_code == 0, found.output
    for word in ("inference: 1 group", "1 kernel", "Plan for h200", "lower bound", "100.0%"):
        assert word in found.output


def saved(model: str, path: Path, *flags: str) -> schema.Document:
    """A plan in which gelu and layer_norm are pinned apart, as a page saves it."""
    from onetrip import api

    net = api.load_model(f"{model}:norm")
    made = api.plan(net.model, net.args, target="a100", numerics="fast").pin("gelu")
    made.save(path)
    return made.document


def test_a_saved_plan_is_planned_again(model: str, tmp_path: Path) -> None:
    path, out = tmp_path / "saved.json", tmp_path / "again.json"
    document = saved(model, path)
    assert document.totals.kernels == 2
    found = run("plan", f"{model}:norm", "--plan", str(path), "--out", str(out))
    assert found.exit_code == 0, found.output
    assert schema.read(out) == document
    other = run("plan", f"{model}:norm", "--plan", str(path), "--target", "h100", "--json")
    again = schema.decode(other.output)
    assert (again.target, again.numerics, again.totals.kernels) == ("h100", "fast", 2)


def test_every_line_that_is_not_honoured_is_named_with_its_reason(
    model: str, tmp_path: Path
) -> None:
    path = tmp_path / "saved.json"
    saved(model, path)
    text = path.read_text()
    (line,) = json.loads(text)["graphs"][0]["lines"]
    known = json.loads(text)
    known["graphs"][0]["lines"] = [
        {**line, "calls": [c.replace("gelu", name) for c in line["calls"]]}
        for name in ("tanh", "gelu", "relu")
    ]
    path.write_text(json.dumps(known))
    found = run("plan", f"{model}:norm", "--plan", str(path))
    assert found.exit_code != 0
    for word in ("2 lines cannot be honoured", "tanh", "relu", "no such call"):
        assert word in found.output


def test_plan_json_is_the_plan_file(model: str, tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    args = ("--target", "a100", "--search", "eager", "--out", str(out), "--json")
    found = run("plan", f"{model}:norm", *args)
    assert found.exit_code == 0, found.output
    document = schema.decode(found.stdout)
    assert document == schema.read(out)
    assert (document.target, document.search, document.totals.kernels) == ("a100", "eager", 2)
    assert set(json.loads(found.stdout)) == set(schema.Document.__struct_fields__)


def test_plan_of_a_training_step(model: str) -> None:
    found = run("plan", f"{model}:norm", "--training", "--boundaries")
    assert found.exit_code == 0, found.output
    assert "forward: " in found.output and "backward: " in found.output


def test_plan_of_an_exported_program(tmp_path: Path) -> None:
    net = nn.Sequential(nn.GELU(), nn.LayerNorm(32)).eval()
    path = str(tmp_path / "net.pt2")
    torch.export.save(torch.export.export(net, (torch.randn(8, 32),)), path)
    found = run("plan", path)
    assert found.exit_code == 0, found.output
    assert "gelu, layer_norm" in found.output


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("{}", 2, ("names no model", "file.py:factory")),
        ("{}:none", 2, ("no function 'none'", "norm, keywords, lone")),
        ("nowhere.py:f", 2, ("does not exist", "nowhere.py")),
        ("nowhere.pt2", 2, ("does not exist", "nowhere.pt2")),
        ("{}:nothing", 2, ("(model, args)", "int")),
        ("{}:broken", 2, ("factory raises", "no weights here")),
    ],
)
def test_a_wrong_model_says_what_is_expected(
    model: str, name: str, status: int, words: tuple[str, ...]
) -> None:
    found = run("plan", name.format(model))
    assert found.exit_code == status
    assert all(word in found.output for word in words), found.output
    assert "Traceback" not in found.output


def test_a_file_that_is_no_exported_program(tmp_path: Path) -> None:
    path = tmp_path / "bad.pt2"
    path.write_text("nothing")
    found = run("plan", str(path))
    assert found.exit_code == 2
    assert "cannot be read" in found.output


@pytest.mark.parametrize("args", [("--target", "h201"), ("--search", "fastest")])
def test_wrong_options_are_wrong_use(model: str, args: tuple[str, str]) -> None:
    found = run("plan", f"{model}:norm", *args)
    assert found.exit_code == 2
    assert args[1] in found.output


@pytest.mark.parametrize(
    ("target", "word"), [("h200", "@triton.jit"), ("mi300x", "@triton.jit"), ("cpu:2", "ot::store")]
)
def test_explain_shows_the_source_of_every_group(model: str, target: str, word: str) -> None:
    found = run("explain", f"{model}:norm", "--target", target)
    assert found.exit_code == 0, found.output
    assert word in found.output
    assert "=== inference/g0_gelu_native_layer_norm" in found.output


def test_explain_one_group(model: str) -> None:
    found = run("explain", f"{model}:norm", "--group", "g0_gelu_native_layer_norm")
    assert found.exit_code == 0, found.output
    assert found.output.startswith(("import", "#", '"""'))
    wrong = run("explain", f"{model}:norm", "--group", "g7")
    assert wrong.exit_code == 2
    assert "inference/g0_gelu_native_layer_norm" in wrong.output


def test_demo_plans_verifies_and_times() -> None:
    found = run("demo", "--size", "tiny")
    assert found.exit_code == 0, found.output
    words = ("6.00", "2.00", "transformer block", "0 drift", "within the rule", "torch.compile")
    assert all(word in found.output for word in words), found.output


def test_demo_without_a_gpu_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    found = run("demo", "--device", "cuda")
    assert found.exit_code == 2
    assert "no CUDA device" in found.output
