"""The house stands: imports go down, heavy libraries stay where they belong, files stay short.

Reads the source with `ast`, so that relative, function-local, TYPE_CHECKING and importlib imports
count like any other. Each rule is tried on an example that breaks it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "onetrip"
MAX_LINES = 500

FLOORS = {
    "base": 0,
    "target": 1,
    "ir": 2,
    "ops": 3,
    "passes": 4,
    "frontend": 4,
    "interp": 4,
    "cost": 5,
    "plan": 6,
    "codegen": 7,
    "runtime": 7,
    "report": 8,
    "explore": 9,
    "api": 10,
    "bench": 10,
    "cli": 11,
    "testing": 11,
    # The package itself: `import onetrip` hands out what api composes.
    "__init__": 12,
    "__main__": 12,
}
RESTRICTED = {
    "torch": {"frontend", "runtime", "api", "bench"},
    "triton": {"runtime"},
    "transformers": {"bench"},
}


class Import(NamedTuple):
    """One imported module, absolute, and the line that imports it."""

    line: int
    module: str


def floor_of(module: str) -> str | None:
    """The floor's name of an absolute module path: onetrip.ir.graph -> ir; None outside onetrip."""
    parts = module.split(".")
    if parts[0] != "onetrip":
        return None
    return parts[1] if len(parts) > 1 else "__init__"


def imports(source: str, module: str, is_package: bool) -> Iterator[Import]:
    """Every import statement and literal importlib call in `source`, wherever it stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from _from_import(node, module, is_package)
        elif isinstance(node, ast.Call):
            yield from _import_call(node)


def _from_import(node: ast.ImportFrom, module: str, is_package: bool) -> Iterator[Import]:
    base = node.module or ""
    if node.level:
        here = module.split(".")
        up = node.level - 1 if is_package else node.level
        anchor = here[: len(here) - up]
        base = ".".join([*anchor, *([node.module] if node.module else [])])
    if base == "onetrip":  # `from onetrip import ir` names floors, not contents of the package
        known = (alias.name for alias in node.names)
        yield from (
            Import(node.lineno, f"onetrip.{name}" if name in FLOORS else "onetrip")
            for name in known
        )
    else:
        yield Import(node.lineno, base)


def _import_call(node: ast.Call) -> Iterator[Import]:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    called = node.func.id if isinstance(node.func, ast.Name) else called
    first = node.args[0] if node.args else None
    if called in {"import_module", "__import__"} and isinstance(first, ast.Constant):
        yield Import(node.lineno, str(first.value))


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """What is wrong with the imports of one file, one sentence each."""
    here = floor_of(module)
    assert here is not None
    if here not in FLOORS:
        return [f"{module}: {here!r} has no floor; add it to FLOORS and to ARCHITECTURE.md"]
    found = (fault(here, item) for item in imports(source, module, is_package))
    return [f"{module}:{item}" for item in found if item]


def fault(here: str, item: Import) -> str | None:
    there = floor_of(item.module)
    if there is None:
        root = item.module.split(".")[0]
        allowed = RESTRICTED.get(root)
        if allowed is None or here in allowed:
            return None
        return f"{item.line}: imports {root}, which only {', '.join(sorted(allowed))} may"
    if there == here or FLOORS.get(there, 99) < FLOORS[here]:
        return None
    way = "upward" if FLOORS.get(there, 99) > FLOORS[here] else "sideways"
    return f"{item.line}: {here} (floor {FLOORS[here]}) imports {way}: {item.module}"


def source_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> tuple[str, bool]:
    """The dotted name of a file and whether it is a package's own file."""
    parts = list(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    if parts[-1] == "__init__" and len(parts) > 2:
        return ".".join(parts[:-1]), True
    return ".".join(parts), parts[-1] == "__init__"


def too_long(text: str) -> bool:
    return text.count("\n") > MAX_LINES


def test_imports_go_down() -> None:
    files = source_files()
    assert files
    found = [
        line
        for path in files
        for line in violations(path.read_text(encoding="utf-8"), *module_of(path))
    ]
    assert not found, "\n".join(found)


def test_files_stay_short() -> None:
    long = [str(p) for p in source_files() if too_long(p.read_text(encoding="utf-8"))]
    assert not long, f"above {MAX_LINES} lines: {long}"


def test_every_folder_has_a_floor() -> None:
    names = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert names <= set(FLOORS), f"no floor is set for {sorted(names - set(FLOORS))}"


BAD = {
    "upward": ("onetrip.ir.graph", "import onetrip.ops"),
    "upward from": ("onetrip.ir.graph", "from onetrip.ops.table import TABLE"),
    "upward from the package": ("onetrip.ir.graph", "from onetrip import ops"),
    "the package itself": ("onetrip.ir.graph", "import onetrip"),
    "the package's api": ("onetrip.plan.search", "from onetrip import compile"),
    "sideways": ("onetrip.codegen.triton", "from onetrip.runtime import build"),
    "relative": ("onetrip.ir.graph", "from ..plan import search"),
    "relative bare": ("onetrip.ir.graph", "from .. import plan"),
    "function-local": ("onetrip.ir.graph", "def f():\n    from onetrip.api import plan"),
    "type checking": (
        "onetrip.ir.graph",
        "import typing\nif typing.TYPE_CHECKING:\n    from onetrip.cost import roofline",
    ),
    "importlib": ("onetrip.ir.graph", "import importlib\nimportlib.import_module('onetrip.api')"),
    "dunder import": ("onetrip.ir.graph", "__import__('onetrip.api')"),
    "torch": ("onetrip.plan.search", "import torch.nn"),
    "torch local": ("onetrip.cli.demo", "def f():\n    import torch"),
    "torch on floor 0": ("onetrip.base.dtype", "from torch import float32"),
    "triton": ("onetrip.codegen.triton", "import triton.language as tl"),
    "transformers": ("onetrip.api", "import transformers"),
    "no floor": ("onetrip.misc.thing", "import os"),
}
GOOD = {
    "down": ("onetrip.ops.table", "from onetrip.ir.graph import Node"),
    "same folder": ("onetrip.ir.graph", "from . import types\nfrom .types import TensorType"),
    "relative down": ("onetrip.ops.table", "from ..ir import graph"),
    "torch": ("onetrip.runtime.launch", "import torch"),
    "triton": ("onetrip.runtime.build", "import triton"),
    "a name that only begins alike": ("onetrip.ir.graph", "import torchless"),
    "cli uses both of floor 10": ("onetrip.cli.bench", "from onetrip import api, bench"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_import_is_found(name: str) -> None:
    module, source = BAD[name]
    assert len(violations(source, module)) == 1


@pytest.mark.parametrize("name", GOOD)
def test_good_import_passes(name: str) -> None:
    module, source = GOOD[name]
    assert violations(source, module) == []


def test_relative_import_in_a_package_file() -> None:
    assert violations("from .types import X", "onetrip.ir", is_package=True) == []
    assert violations("from ..plan import X", "onetrip.ir", is_package=True)


def test_long_file_is_found() -> None:
    assert too_long("\n" * (MAX_LINES + 1))
    assert not too_long("\n" * MAX_LINES)
