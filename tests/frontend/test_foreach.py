"""Calls over lists become calls of single tensors, with the library's own bits."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from onetrip.frontend.foreach import RULES, split_foreach

NUMBERS = (0.5, 1.25)
OWN: dict[str, Any] = {
    "alpha": 2,
    "value": 0.75,
    "scalar": 1.5,
    "weight": 0.25,
    "ord": 2,
    "dtype": None,
    "non_blocking": False,
}


def argument(name: str, kind: str) -> Any:
    """Lists of two tensors in (0, 1), where every function is defined; numbers for the others."""
    if kind == "List[Tensor]":
        return [torch.rand(5) * 0.9 + 0.05, torch.rand(2, 3) * 0.9 + 0.05]
    if kind == "Tensor":
        return torch.tensor(0.7)
    return list(NUMBERS) if kind.startswith("List") else OWN.get(name, 1.5)


def written(target: Any, given: dict[str, Any]) -> tuple[fx.GraphModule, list[Tensor]]:
    """A graph of one call, as the capture writes it, and its inputs."""
    graph, tensors = fx.Graph(), []

    def placed(x: Any) -> Any:
        if isinstance(x, list):
            return [placed(y) for y in x]
        if not isinstance(x, Tensor):
            return x
        tensors.append(x)
        node = graph.placeholder(f"x{len(tensors)}")
        node.meta["val"] = x
        return node

    arguments = {a.name: (a.kwarg_only, placed(given[a.name])) for a in target._schema.arguments}
    positional = tuple(v for named, v in arguments.values() if not named)
    call = graph.call_function(
        target, positional, {k: v for k, (named, v) in arguments.items() if named}
    )
    call.meta["val"] = target(**given)
    parts = [graph.call_function(operator.getitem, (call, k)) for k in range(len(call.meta["val"]))]
    graph.output(tuple(parts))
    return fx.GraphModule({}, graph), tensors


@pytest.mark.parametrize("name", RULES)
def test_one_tensor_at_a_time_has_the_bits_of_the_list(name: str) -> None:
    call, _, overload = name.partition(".")
    target = getattr(getattr(torch.ops.aten, f"_foreach_{call}"), overload)
    given = {a.name: argument(a.name, str(a.type)) for a in target._schema.arguments}
    module, tensors = written(target, given)
    expected = module(*tensors)
    split_foreach(module)
    calls = [n for n in module.graph.nodes if n.op == "call_function"]
    assert len(calls) == len(expected) == 2
    assert all("_foreach_" not in str(n.target) for n in calls)
    assert all(n.meta["val"].shape == e.shape for n, e in zip(calls, expected, strict=True))
    for found, wanted in zip(module(*tensors), expected, strict=True):
        assert torch.equal(found, wanted)


def test_a_call_without_a_rule_stays() -> None:
    target = torch.ops.aten._foreach_addcmul.Tensor
    given = {a.name: argument(a.name, str(a.type)) for a in target._schema.arguments}
    given["scalars"] = torch.tensor(NUMBERS)
    module, _ = written(target, given)
    split_foreach(module)
    assert [str(n.target) for n in module.graph.nodes if "aten" in str(n.target)] == [str(target)]
