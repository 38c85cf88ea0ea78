"""Where a node of a captured graph comes from: the module path, the source line, and what the code
around it asks of the planner.

It must not know what a node computes. The record travels in ``meta``: Dynamo writes it, tracing
copies it to the ATen nodes, and a backward node carries its forward node's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.fx

from ..ir.graph import Origin
from .annotations import asked_of

_TORCH = str(Path(torch.__file__).parent)
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_ROOT = re.compile(r"^(?:L\['args'\]\[0\]|[LG]\['\w+'\])\.?")
"""The compiled module: `L['self']`, or the first argument of a wrapper around its forward."""
_SUBMODULE = re.compile(r"_modules\['([^']+)'\]|\['?([^\]']+)'?\]")


def _module_path(stack: Mapping[str, Any] | None) -> str:
    """Dotted path of the innermost module, relative to the compiled one; empty at its top."""
    if not stack:
        return ""
    path = list(stack.values())[-1][0]
    relative = _SUBMODULE.sub(lambda m: "." + (m[1] or m[2]), _ROOT.sub("", path))
    return re.sub(r"\.{2,}", ".", relative).strip(".")


@lru_cache(maxsize=1024)
def _source_line(trace: str | None) -> str:
    """``file.py:123`` of the innermost frame that is not torch's own."""
    frames = _FRAME.findall(trace or "")
    users = [f for f in frames if not f[0].startswith(_TORCH)]
    chosen = (users or frames or [("", "")])[-1]
    return f"{Path(chosen[0]).name}:{chosen[1]}" if chosen[0] else ""


def origin_of(node: torch.fx.Node) -> tuple[str, str]:
    """Module path such as ``encoder.layer.0.attention.self.query`` and ``file.py:123``.

    Either is empty where torch recorded nothing (inputs, tangents).
    """
    meta = node.meta
    stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack")
    return _module_path(stack), _source_line(meta.get("stack_trace"))


def origin_record(node: torch.fx.Node, call: str) -> Origin:
    """The record of a node that eager calls by this name."""
    module, line = origin_of(node)
    regions, stored = asked_of(node.meta)
    return Origin(module, line, call, regions, stored)
