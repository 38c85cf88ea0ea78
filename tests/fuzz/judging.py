"""What a program leaves beside what eager leaves: the contract's rule, over a whole graph.

A chain may lie farther from float64 than twice eager's distance without being wrong: where a value
is compared, rounded to an integer or taken the difference of, one unit in the last place that an
operator may be off decides the result. So eager is run several times more with each result of an
operator that is not matched moved as far as an operator may be off. The farthest of these runs
stands for eager's own distance, and an element at which they disagree on NaN, infinity or the
integer is nobody's to judge. What depends on matched operators of IEEE steps alone must have the
bits of eager; so must what depends on them behind a value that the compiled run itself left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from following import exact_names, kept, part, valued
from programs import Program, Ref, module, tensors
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from onetrip.ops import exactness
from onetrip.ops.schema import Elementwise, Kind, Movement, Reduce
from onetrip.ops.table import BY_TARGET
from onetrip.runtime.accuracy import ALLOWED_ULP, FACTOR, InFloat64

DRAWS = 6
STRAY_SHARE = 1 / 64
"""Of elements that one rounding of what was computed again may decide otherwise."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Left:
    """What a run leaves: its results, then its leaves; and which results lie in which leaf."""

    results: tuple[Tensor, ...]
    leaves: tuple[Tensor, ...]

    @property
    def values(self) -> tuple[Tensor, ...]:
        """All of them."""
        return (*self.results, *self.leaves)

    @property
    def aliases(self) -> tuple[tuple[int, int, int], ...]:
        """(result, leaf, offset) of each result that lies in the memory of a leaf."""
        return tuple(
            (r, k, result.storage_offset())
            for r, result in enumerate(self.results)
            for k, leaf in enumerate(self.leaves)
            if result.numel() and _memory(result) == _memory(leaf)
        )


def _memory(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


def run(program: Program, given: Sequence[Tensor]) -> Left:
    """The program in eager."""
    return Left(tuple(module([program])(*given)), tuple(given))


# ------------------------------------------------------------------ other runs of eager


@cache
def _reach(target: str) -> tuple[float, bool]:
    """How many units in the last place a call's result may be off, and whether of its largest."""
    if target not in BY_TARGET:
        return 0.0, False
    op, _ = BY_TARGET[target]
    off = exactness.of(op)["cpp"].ulp
    return (2.0 if math.isinf(off) else off), op.kind is not Kind.ELEMENTWISE


class Nudged(TorchDispatchMode):
    """Results of calls that are not matched are moved at random, as far as they may be off."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        reach, of_largest = _reach(str(func))
        if not reach:
            return found
        return tree_map_only(Tensor, lambda t: self._moved(t, reach, of_largest), found)

    def _moved(self, t: Tensor, reach: float, of_largest: bool) -> Tensor:
        if not t.is_floating_point() or not t.numel():
            return t
        finite = torch.where(t.isfinite(), t, 0).abs().double()
        size = finite.max() if of_largest else finite
        way = 2 * torch.rand(t.shape, generator=self.generator, dtype=torch.float64) - 1
        moved = t.double() + way * reach * torch.finfo(t.dtype).eps * size
        keeps = (t == 0) & (not of_largest)  # what cancels in a sum has no sign to rely on
        return torch.where(keeps, t, moved.to(t.dtype))


@cache
def is_exact(target: str) -> bool:
    """Whether a call is made of IEEE steps, choices and movements, so that it has eager's bits.

    Updates in place, which the table does not name, are sums, products and copies.
    """
    if target not in BY_TARGET:
        return True
    op, _ = BY_TARGET[target]
    steps = exactness.is_exact(op) or isinstance(op.body, Movement | Reduce)
    return steps and exactness.of(op)["cpp"].matched


def wide(t: Tensor) -> Tensor:
    """The tensor in double precision, as it lies."""
    if not t.is_floating_point():
        return t
    made = torch.empty(0, dtype=torch.float64)
    storage = torch.empty(0, dtype=t.dtype).set_(t.untyped_storage()).double().untyped_storage()
    return made.set_(storage, t.storage_offset(), t.shape, t.stride())


LANES = 64
"""Elements that any vector loop of eager takes at a time, whatever the chip, or a multiple."""


class Dense(TorchDispatchMode):
    """Calls that compute get dense operands, elementwise ones whole vectors of each element.

    Of eager's kernels those for contiguous operands are right, and of two functions the one that
    its vector loop has: the elements left over may differ from it in NaN (`hardswish_backward`).
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = args, dict(kwargs or {})
        if any(a.alias_info for a in func._schema.arguments):
            return func(*given[0], **given[1])
        given = tree_map_only(Tensor, Tensor.contiguous, given)
        found = func(*given[0], **given[1])
        shapes = [t.shape for t in tree_leaves(given) if isinstance(t, Tensor) and t.dim()]
        op, _ = BY_TARGET.get(str(func), (None, None))
        if not shapes or op is None or not isinstance(op.body, Elementwise):
            return found
        shape = torch.broadcast_shapes(*shapes)
        if any(t.shape != shape for t in tree_leaves(found)):
            return found  # what it is written into has another shape

        def repeated(t: Tensor) -> Tensor:
            return t.expand(shape)[..., None].expand(*shape, LANES).contiguous() if t.dim() else t

        args, kwargs = tree_map_only(Tensor, repeated, given)
        return tree_map_only(Tensor, lambda t: t[..., 0].contiguous(), func(*args, **kwargs))


@dataclass(frozen=True)
class Known:
    """A program's runs beside ours, all in eager: on whole vectors, in float64, moved.

    Attributes:
        sure: of each value, whether it must have eager's bits.
        free: results that the exact steps behind them can be judged by.
        behind: leaves and steps that depend on exact calls behind leaves and free results alone.
    """

    program: Program
    before: tuple[Tensor, ...]
    eager: Left
    dense: Left
    exact: Left
    nudged: tuple[Left, ...]
    sure: tuple[bool, ...]
    free: frozenset[Ref]
    behind: frozenset[str]


def known(program: Program) -> Known:
    """Runs it in eager, in float64, and moved.

    Where a call takes no float64 in place of what it has, eager itself stands for the truth.
    """
    eager = run(program, tensors(program))
    try:
        exact = _within(InFloat64(), program, [wide(t) for t in tensors(program)])
    except RuntimeError:
        exact = eager
    dense = _within(Dense(), program, tensors(program))
    nudged = tuple(_within(Nudged(seed), program, tensors(program)) for seed in range(DRAWS))
    made = valued(program, tensors(program), {})
    calls = {s.target for s in program.steps if is_exact(s.target)}
    exact_ones = exact_names(program, made, calls)
    names = [*(r.name for r in program.results), *(n for n, _ in program.leaves)]
    free = frozenset(
        r for r in kept(program, made) if r.name not in exact_ones and _is_coarse(part(made, r))
    )
    return Known(
        program,
        tuple(tensors(program)),
        eager,
        dense,
        exact,
        nudged,
        tuple(n in exact_ones for n in names),
        free,
        exact_names(program, made, calls, free),
    )


def _is_coarse(t: Tensor) -> bool:
    """Whether a unit in the last place of what a kernel computes in is rounded away."""
    return not t.is_floating_point() or t.itemsize <= 2


def _within(mode: TorchDispatchMode, program: Program, given: Sequence[Tensor]) -> Left:
    """A run under a mode, which does not see how its leaves are made."""
    with mode:
        return run(program, given)


# ------------------------------------------------------------------ the verdict


def wrong(ours: Left, found: Known) -> str:
    """What is wrong with what a compiled run left; empty where all is right."""
    eager = found.eager
    if len(ours.results) != len(eager.results):
        return f"structure: {len(ours.results)} results, eager {len(eager.results)}"
    if ours.aliases != eager.aliases:
        return f"aliases: {ours.aliases}, eager {eager.aliases}"
    for k, (mine, theirs) in enumerate(zip(ours.values, eager.values, strict=True)):
        note = _form(mine, theirs)
        if not note and _off(mine, found.dense.values[k], k, found):
            note = _off(mine, theirs, k, found)
        if note:
            return f"{note} ({_place(k, eager)})"
    for k, (first, mine, theirs) in enumerate(
        zip(found.before, ours.leaves, eager.leaves, strict=True)
    ):
        if same_bits(first, theirs) and not same_bits(first, mine):
            return f"inputs: leaf {k} is not as it was"
    return _strays(ours, found)


def _strays(ours: Left, found: Known) -> str:
    """What is wrong behind values that the compiled run left, if they are taken as it has them.

    Who reads one may have computed it once more, a unit in the last place off (MKL's functions of
    arrays are others than those of a few elements), which decides a rounding now and then.
    """
    program = found.program
    left = dict(zip(program.results, ours.results, strict=True))
    given = {r: t for r, t in left.items() if r in found.free and r.name not in found.behind}
    asked = [
        r for k, r in enumerate(program.results) if r.name in found.behind and not found.sure[k]
    ]
    if not asked:
        return ""
    plain = valued(program, tensors(program), given)
    with Dense():
        dense = valued(program, tensors(program), given)
    for r in asked:
        mine, theirs = left[r], part(plain, r)
        off = _other_bits(mine, theirs) & _other_bits(mine, part(dense, r))
        if int(off.sum()) > off.numel() * STRAY_SHARE:
            return _sample(f"other bits behind {sorted(map(repr, given))}", off, mine, theirs)
    return ""


def _place(k: int, eager: Left) -> str:
    count = len(eager.results)
    return f"result {k}" if k < count else f"leaf {k - count}"


def _form(mine: Tensor, theirs: Tensor) -> str:
    facts = (
        ("dtype", mine.dtype, theirs.dtype),
        ("shape", mine.shape, theirs.shape),
        ("strides", strides_of(mine), strides_of(theirs)),
    )
    return next((f"{name}: {a}, eager {b}" for name, a, b in facts if a != b), "")


def strides_of(t: Tensor) -> tuple[int, ...]:
    """Those that say where an element lies."""
    if not t.numel():
        return ()
    return tuple(s for n, s in zip(t.shape, t.stride(), strict=True) if n > 1)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal but for the payload of NaN."""
    if a.dtype.is_floating_point and a.dtype.itemsize == 1:
        a, b = a.float(), b.float()
    if a.dtype.is_floating_point and not torch.equal(a.isnan(), b.isnan()):
        return False
    a, b = (torch.where(t.isnan(), 0, t) if t.dtype.is_floating_point else t for t in (a, b))
    return torch.equal(*(t.contiguous().view(_BITS[t.itemsize]) for t in (a, b)))


def _off(mine: Tensor, theirs: Tensor, k: int, found: Known) -> str:
    if same_bits(mine, theirs):
        return ""
    if mine.is_floating_point() and mine.itemsize == 1:
        return "other float8 numbers"  # of which nothing is computed
    if found.sure[k]:
        return _sample("other bits", _other_bits(mine, theirs), mine, theirs)
    others = tuple(run.values[k] for run in found.nudged)
    return _differs(mine, theirs, found.exact.values[k], others)


def _other_bits(mine: Tensor, theirs: Tensor) -> Tensor:
    equal = (mine == theirs) & (mine.signbit() == theirs.signbit())
    return ~(equal | ((mine != mine) & (theirs != theirs)))


def _differs(mine: Tensor, theirs: Tensor, exact: Tensor, others: Sequence[Tensor]) -> str:
    if not theirs.is_floating_point():
        open_ = _any(other != theirs for other in others)
        off = (mine != theirs) & ~open_
        return _sample("other integers", off, mine, theirs) if bool(off.any()) else ""
    kinds = _any(_kind(other) != _kind(theirs) for other in others)
    off = (_kind(mine) != _kind(theirs)) & ~kinds
    if bool(off.any()):
        return _sample("other NaN or infinity", off, mine, theirs)
    sure = ~_any(_zeros(other) != _zeros(theirs) for other in others)
    off = sure & (mine == 0) & (theirs == 0) & (mine.signbit() != theirs.signbit())
    if bool(off.any()):
        return _sample("other sign of zero", off, mine, theirs)
    judged = theirs.isfinite() & mine.isfinite() & exact.isfinite() & ~kinds
    return _far(judged, mine, theirs, exact, others) if bool(judged.any()) else ""


def _any(found: Any) -> Tensor:
    return torch.stack(list(found)).any(0)


def _kind(t: Tensor) -> Tensor:
    """0 for a finite number, else which infinity or NaN an element is."""
    infinite = torch.where(t.isinf(), torch.where(t.signbit(), 1, 2), 0)
    return torch.where(t.isnan(), 3, infinite)


def _zeros(t: Tensor) -> Tensor:
    """0 for a number that is none, else which zero an element is."""
    return torch.where(t == 0, torch.where(t.signbit(), 1, 2), 0)


def _far(
    judged: Tensor, mine: Tensor, theirs: Tensor, exact: Tensor, others: Sequence[Tensor]
) -> str:
    limits, truth = torch.finfo(theirs.dtype), exact.double()[judged]
    step = truth.abs().max().clamp(min=limits.tiny) * limits.eps

    def distance(t: Tensor) -> float:
        return float(((t.double()[judged] - truth).abs().max() / step).item())

    own = max(map(distance, (theirs, *others)))
    allowed, worst = FACTOR * own + ALLOWED_ULP, distance(mine)
    if worst <= allowed:
        return ""
    off = judged & ((mine.double() - exact.double()).abs() / step > allowed)
    return _sample(f"ulp: {worst:.3g}, allowed {allowed:.3g}", off, mine, theirs)


def _sample(what: str, off: Tensor, mine: Tensor, theirs: Tensor) -> str:
    where = off.nonzero()[0].tolist() if off.dim() else []
    a, b = (t[tuple(where)].item() for t in (mine, theirs))
    return f"{what}: {int(off.sum())} of {off.numel()}, at {where} {a!r}, eager {b!r}"
