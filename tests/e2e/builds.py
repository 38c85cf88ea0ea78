"""What compilations build: a list that grows with each, and what stands in their programs."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from onetrip.api.pipeline import Built
from onetrip.ir.program import Call


def watched(monkeypatch: pytest.MonkeyPatch) -> list[Built]:
    """Grows by what each compilation from here on builds."""
    module = importlib.import_module("onetrip.api.backend")
    found: list[Built] = []
    build = module.build_captured

    def spy(captured: Any, options: Any) -> Built:
        found.append(build(captured, options))
        return found[-1]

    monkeypatch.setattr(module, "build_captured", spy)
    return found


def steps_of(built: list[Built], kind: type) -> list[Any]:
    """All steps of a kind, in order."""
    return [s for b in built for s in b.program.steps if isinstance(s, kind)]


def externs(built: list[Built]) -> list[str]:
    """Calls that have no entry in the operator table."""
    return [s.target for s in steps_of(built, Call) if s.reason]
