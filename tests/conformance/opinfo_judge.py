"""Whether what a compiled call left is what eager leaves: the criteria, in the order asked.

    structure  type and number of results      dtype, shape, strides
    inputs     arguments end as eager's do     values, NaN, infinity and sign of zero

Values are judged by `onetrip.runtime.accuracy`, the rule of the whole project.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from opinfo_batch import Left
from torch import Tensor

from onetrip.runtime.accuracy import ALLOWED_ULP, FACTOR, distance_ulp, judge

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Run = Callable[[], list[Any] | None]


@dataclass(frozen=True)
class Others:
    """The same call made otherwise; each gives results and arguments after them, or None.

    Attributes:
        exact: in double precision.
        narrow: in single precision: there is no truth beside double precision, but how far single
            precision is from it tells how much a call enlarges the error of a rounding.
        inner: by eager's vector loop alone. Eager computes the elements that are too few for a
            vector by other functions, and the two overflow at different arguments.
    """

    exact: Run = lambda: None
    narrow: Run = lambda: None
    inner: Run = lambda: None


def judged(ours: Left, eager: Left, before: Sequence[Tensor], others: Others, random: bool) -> str:
    """What is wrong, beginning with the criterion's name; empty where all is right.

    Args:
        before: the arguments before the call.
        random: values depend on a seed, or nobody wrote them: only their form is compared.
    """
    if ours.kind != eager.kind or len(ours.leaves) != len(eager.leaves):
        return f"structure: {ours.kind} of {len(ours.leaves)}, eager {eager.kind} of " + str(
            len(eager.leaves)
        )
    pairs = list(zip(ours.leaves, eager.leaves, strict=True))
    for k, (mine, theirs) in enumerate(pairs):
        if wrong := _form(mine, theirs):
            return f"{wrong} (result {k})"
    arguments = list(zip(ours.inputs, eager.inputs, strict=True))
    for k, ((mine, theirs), first) in enumerate(zip(arguments, before, strict=True)):
        kept = _same_bits(theirs, first)
        if wrong := _form(mine, theirs) or (kept and not _same_bits(mine, first)):
            return f"inputs: argument {k} does not end as eager leaves it {wrong}"
    return "" if random else _values(pairs + arguments, others)


def _form(mine: Any, theirs: Any) -> str:
    if not isinstance(theirs, Tensor):
        same = type(mine) is type(theirs) and (mine == theirs or mine != mine)
        return "" if same else f"structure: {mine!r}, eager {theirs!r}"
    if not isinstance(mine, Tensor):
        return f"structure: {type(mine).__name__}, eager a tensor"
    facts: tuple[tuple[str, Any, Any], ...] = (
        ("dtype", mine.dtype, theirs.dtype),
        ("shape", tuple(mine.shape), tuple(theirs.shape)),
        ("layout", mine.layout, theirs.layout),
    )
    if mine.layout is torch.strided and theirs.layout is torch.strided:
        facts += (("strides", _strides(mine), _strides(theirs)),)
    return next((f"{name}: {a}, eager {b}" for name, a, b in facts if a != b), "")


def _strides(t: Tensor) -> tuple[int, ...]:
    """Those that say where an element lies."""
    if not t.numel():
        return ()
    return tuple(s for n, s in zip(t.shape, t.stride(), strict=True) if n > 1)


def _plain(t: Tensor) -> Tensor:
    """Dense, real, without lazy bits."""
    t = t.detach().to_dense() if t.layout is not torch.strided else t
    t = t.resolve_conj().resolve_neg().contiguous()
    if t.dtype is torch.complex32:
        t = t.to(torch.complex64)
    return torch.view_as_real(t) if t.is_complex() else t


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    a, b = (t.view(_BITS[t.itemsize]) for t in (_plain(a), _plain(b)))
    return torch.equal(a, b)


def _values(pairs: list[tuple[Any, Any]], others: Others) -> str:
    differing = [
        k for k, (a, b) in enumerate(pairs) if isinstance(b, Tensor) and not _same_bits(a, b)
    ]
    if not differing:
        return ""
    truth = others.exact()
    for k in differing:
        mine, theirs = map(_plain, pairs[k])
        true = _truth(truth, k, theirs)
        wrong = _wrong(mine, theirs, true)
        if wrong and true is not None and _within_noise(mine, theirs, others.narrow, k):
            wrong = ""
        if wrong and not _is_inner(mine, true, others.inner, k):
            return f"values: {wrong} (result {k})"
        if mine.is_floating_point() and _other_zero(mine, theirs):
            return f"sign of zero (result {k})"
    return ""


def _wrong(mine: Tensor, theirs: Tensor, true: Tensor | None) -> str:
    if true is None and _equal(mine, theirs):
        return ""
    verdict = judge((mine,), (theirs,), None if true is None else (true,))
    return "" if verdict.ok else verdict.note.removeprefix("result 0: ")


def _is_inner(mine: Tensor, true: Tensor | None, inner: Run, k: int) -> bool:
    """Whether the result is right beside eager's vector loop."""
    found = inner()
    if found is None or len(found) <= k:
        return False
    theirs = _plain(found[k])
    return theirs.shape == mine.shape and not _wrong(mine, theirs, true)


def _within_noise(mine: Tensor, theirs: Tensor, narrow: Run, k: int) -> bool:
    """Whether double precision is no more units in the last place off than single precision is."""
    found = _truth(narrow(), k, theirs) if theirs.dtype is torch.float64 else None
    finite = theirs.isfinite()
    if found is None or found.dtype is torch.float64 or not bool(finite.any()):
        return False
    if not torch.equal(mine.isfinite(), finite):
        return False
    worst, own = (distance_ulp(t[finite], theirs[finite]) for t in (mine, found))
    return worst <= FACTOR * own + ALLOWED_ULP


def _truth(truth: list[Any] | None, k: int, theirs: Tensor) -> Tensor | None:
    if truth is None or len(truth) <= k or not isinstance(truth[k], Tensor):
        return None
    true = _plain(truth[k])
    return true if true.shape == theirs.shape and true.is_floating_point() else None


def _equal(a: Tensor, b: Tensor) -> bool:
    """Without float64 results, equal but for the payload of NaN."""
    if not a.is_floating_point():
        return torch.equal(a, b)
    return torch.equal(a.nan_to_num(), b.nan_to_num()) and torch.equal(a.isnan(), b.isnan())


def _other_zero(a: Tensor, b: Tensor) -> bool:
    zeros = (a == 0) & (b == 0)
    return bool((zeros & (a.signbit() != b.signbit())).any())
