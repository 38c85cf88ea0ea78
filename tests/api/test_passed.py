"""Every pass is followed by a check, and ONETRIP_DEBUG shows what it made."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from onetrip.api.passed import passed
from onetrip.base.dtype import f32
from onetrip.base.errors import VerifyError
from onetrip.ir.graph import Graph, Node, Value
from onetrip.ir.types import TensorType

X = Value("x", TensorType.dense(f32, (4,)))
Y = Value("y", TensorType.dense(f32, (4,)))
GRAPH = Graph((X,), (Node("exp", (X,), (Y,)),), (Y,))


def test_a_broken_graph_stops_at_the_pass_that_broke_it() -> None:
    assert passed(GRAPH, "import") is GRAPH
    with pytest.raises(VerifyError, match="canonicalize"):
        passed(replace(GRAPH, nodes=()), "canonicalize")


@pytest.mark.parametrize(
    ("level", "words"),
    [(0, ()), (1, ("kernels",)), (4, ("segment_0",)), (5, ("after expand", "kernels"))],
)
def test_debug_levels(
    level: int,
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ONETRIP_DEBUG", str(level))
    torch._dynamo.reset()
    torch.compile(lambda x: torch.exp(x) + 1, backend="onetrip")(torch.ones(8))
    shown = capsys.readouterr().err
    assert all(word in shown for word in words)
    assert bool(words) == ("[onetrip]" in shown)
