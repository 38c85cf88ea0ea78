"""Graphs with tensors of two devices: numbers come over once, all else is left to the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from onetrip.frontend.devices import bring_numbers, main_device
from onetrip.frontend.torch_fx import import_graph
from onetrip.ir.graph import Graph

OTHER = torch.device("meta")
"""Stands for a GPU: nothing is run."""


def imported(program: Callable[..., Any], *devices: torch.device | str) -> Graph:
    """A program of one (4, 4) tensor on the other device and numbers on those given."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        args = [torch.empty(4, 4, device=OTHER), *(torch.empty((), device=d) for d in devices)]
        module = make_fx(program)(*args)
    bring_numbers(module)
    assert main_device(module.graph) == OTHER
    return import_graph(module).graph


def externs(graph: Graph) -> list[str]:
    return [str(n.attr["target"]) for n in graph.nodes if n.op == "extern"]


def test_a_number_on_the_cpu_is_copied_once_for_all_that_read_it() -> None:
    graph = imported(lambda x, s: (torch.softmax(x, -1) * s, x + s), "cpu")
    assert externs(graph) == ["aten._to_copy.default"]
    (copy,) = (n for n in graph.nodes if n.op == "extern")
    readers = [n.op for n in graph.nodes if copy.output in n.values]
    assert readers == ["mul", "add"]


def test_a_number_on_the_graphs_own_device_is_not_copied() -> None:
    assert externs(imported(lambda x, s: (x * s,), OTHER)) == []


def test_what_computes_on_the_cpu_beside_the_graph_runs_there() -> None:
    graph = imported(lambda x, s: (x.relu(), s + 1, (s * 2) * x), "cpu")
    assert externs(graph) == ["aten.add.Tensor", "aten.mul.Tensor", "aten._to_copy.default"]
    reasons = [str(n.attr["reason"]) for n in graph.nodes if n.op == "extern"]
    assert "computes on cpu, the graph on meta" in reasons[0]
    assert "moves data between devices" in reasons[2]


@pytest.mark.parametrize("device", ["cpu", OTHER])
def test_a_graph_of_one_device_is_left_alone(device: torch.device | str) -> None:
    def program(x: Tensor, s: Tensor) -> Tensor:
        return x * s

    with FakeTensorMode():
        args = torch.empty(4, device=device), torch.empty((), device=device)
        module = make_fx(program)(*args)
    before = str(module.graph)
    bring_numbers(module)
    assert str(module.graph) == before
