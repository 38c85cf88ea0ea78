"""What the conformance ring drives: PyTorch's own operators, their dtypes, their sample inputs.

    Entry ::= operator of `op_db`, dtype, mode (forward | gradients)
    Sample ::= arguments of one call: as they are, strided (no tensor contiguous), special (small,
               large and non-finite values), or bad (eager raises)

It knows PyTorch's table alone, nothing of onetrip.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal import common_methods_invocations as invocations
from torch.testing._internal.opinfo import core
from torch.utils._pytree import tree_map

FORWARD, GRADIENTS, ERRORS = "forward", "gradients", "errors"
MODES = (FORWARD, GRADIENTS, ERRORS)
FLOATS = ("float32", "bfloat16", "float16", "float64")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64")
DTYPES = (*FLOATS, *INTEGERS, "bool", "complex64", "complex128", "complex32")
MOST_ELEMENTS = 1 << 16
"""A sample with more elements shows nothing that a smaller one does not, and takes its time."""

# The database sets a seed of its own around random operators: that would break every graph, and
# hide that their values depend on a seed at all. The frame counts as torch's own, as theirs does.
_BARE = "def wrapper_set_seed(op, *args, **kwargs): return op(*args, **kwargs)"
exec(compile(_BARE, invocations.__file__, "exec"), vars(invocations))


@dataclass(frozen=True)
class Entry:
    """One operator in one dtype, forward or with gradients, or with arguments that eager rejects.

    Attributes:
        op: name and variant, as `OpInfo.full_name` has it.
    """

    op: str
    dtype: str
    mode: str = FORWARD

    @property
    def key(self) -> str:
        """Its name in state files."""
        return f"{self.mode} {self.op} {self.dtype}"

    @property
    def seed(self) -> int:
        """Of its sample inputs: the same on every machine."""
        return zlib.crc32(self.key.encode())


@dataclass(frozen=True)
class Sample:
    """Arguments of one call.

    Attributes:
        label: `<number> plain`, `<number> strided`, `<number> special`.
        shown: maps the call's result to what its gradients are taken of.
    """

    label: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shown: Callable[[Any], Any] = field(compare=False, default=lambda x: x)


@cache
def operators() -> dict[str, Any]:
    """Every entry of the database by name; variants that share a name are numbered."""
    found: dict[str, Any] = {}
    for op in invocations.op_db:
        name, count = op.full_name, 2
        while name in found:
            name, count = f"{op.full_name}#{count}", count + 1
        found[name] = op
    return found


INEXACT = frozenset(
    (f"special.{name}", "float64")
    for name in ("bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "airy_ai")
)
"""Entries that nothing here can judge: in float64 eager is the reference, and these of its
functions have eight digits, or five near -2.2. `tests/ops/test_series.py` holds them to
quadrature."""


def entries(dtypes: Sequence[str] = DTYPES, modes: Sequence[str] = MODES) -> Iterator[Entry]:
    """Every entry that PyTorch supports on the CPU, dtype by dtype."""
    for mode in modes:
        for dtype in dtypes if mode != ERRORS else ("float32",):
            for name, op in operators().items():
                if _supports(op, dtype, mode) and (name, dtype) not in INEXACT:
                    yield Entry(name, dtype, mode)


def _supports(op: Any, dtype: str, mode: str) -> bool:
    if mode == ERRORS:
        return op.error_inputs_func is not None
    exact = getattr(torch, dtype)
    if mode == GRADIENTS and not (op.supports_autograd and exact.is_floating_point):
        return False
    known = op.supported_backward_dtypes if mode == GRADIENTS else op.supported_dtypes
    return exact in known("cpu")


def called(entry: Entry) -> Callable[..., Any]:
    """The function that an entry calls."""
    function: Callable[..., Any] = operators()[entry.op].op
    return function


def samples(entry: Entry, most: int | None = None) -> list[Sample]:
    """The samples of an entry, at most so many of each kind, spread over what there are."""
    torch.manual_seed(entry.seed)
    op, dtype = operators()[entry.op], getattr(torch, entry.dtype)
    plain = _small(op.sample_inputs("cpu", dtype, requires_grad=entry.mode == GRADIENTS))
    chosen = _spread(list(enumerate(plain)), most)
    found = [_sample(f"{k} plain", s) for k, s in chosen]
    found += [_sample(f"{k} strided", s.noncontiguous()) for k, s in chosen if _has_rank(s)]
    if entry.mode == FORWARD:
        special = _spread(list(enumerate(_special(op, dtype))), most)
        found += [_sample(f"{k} special", s) for k, s in special]
    return found


def _sample(label: str, s: Any) -> Sample:
    return Sample(label, (s.input, *s.args), dict(s.kwargs), s.output_process_fn_grad)


def _spread(found: list[Any], most: int | None) -> list[Any]:
    if most is None or len(found) <= most:
        return found
    return [found[(k * len(found)) // most] for k in range(most)]


def tensors_of(tree: Any) -> list[Tensor]:
    """Every tensor in nested arguments."""
    found: list[Tensor] = []
    tree_map(lambda x: found.append(x) if isinstance(x, Tensor) else None, tree)
    return found


def _small(found: Iterator[Any]) -> list[Any]:
    return [
        s for s in found
        if sum(t.numel() for t in tensors_of((s.input, s.args, s.kwargs))) <= MOST_ELEMENTS
    ]  # fmt: skip


def _has_rank(s: Any) -> bool:
    """Whether its tensors can lie otherwise than densely."""
    found = tensors_of((s.input, s.args, s.kwargs))
    return any(t.dim() for t in found) and all(t.layout is torch.strided for t in found)


EDGES = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, math.inf, -math.inf, math.nan, 1e-30, -1e-30, 1e30, -1e30,
    11.1, -11.1, 15.9, -17.3, 88.6, -88.6, 89.2, -89.2, 89.5, -103.9, 127.9, -149.5, 709.5, -745.2,
)  # fmt: skip
"""Where functions leave a dtype's range, or an approximation its own."""


def _edges(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    limits = torch.finfo(dtype)
    ends = (limits.max, limits.tiny, limits.smallest_normal / 4, 1 + limits.eps, 1 - limits.eps)
    values = torch.tensor([*EDGES, *ends, *(-x for x in ends)], dtype=dtype)
    yield core.SampleInput(values, kwargs=op.sample_kwargs("cpu", dtype, values)[0])


def _special(op: Any, dtype: torch.dtype) -> list[Any]:
    """Edges, small, large and non-finite values, where the database makes such."""
    kind = {core.UnaryUfuncInfo: "unary", core.BinaryUfuncInfo: "binary"}.get(type(op))
    if kind is None or dtype is torch.bool:
        return []
    edges = kind == "unary" and dtype.is_floating_point
    found: list[Any] = list(_edges(op, dtype)) if edges else []
    for size in ("small", "large", "extremal"):
        if size == "extremal" and not dtype.is_floating_point:
            continue
        make = getattr(core, f"generate_elementwise_{kind}_{size}_value_tensors")
        try:
            found += _small(make(op, device="cpu", dtype=dtype))
        except (RuntimeError, ValueError, OverflowError):
            continue  # the database has no such values in this dtype
    return found
