"""How far a result lies from float64, beside how far eager's own lies: the one rule for values.

`verify`, the bench and the tests judge by it. Knows tensors only, not what computed them.

A result may stand at most 2 times eager's own distance from a float64 run, plus 4 units in the last
place of its dtype. Where eager is not finite the result must be the same, and integers are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

FACTOR = 2.0
ALLOWED_ULP = 4.0
NO_DIGITS = 100.0
NOISE_FACTOR = 10.0
"""A result of which eager has no digit right (its error is over 100 times the value: the gradient
of a bias that cancels, say) is rounding noise; of two noises the size is compared, within 10."""


@dataclass(frozen=True)
class Verdict:
    """Whether a variant's results are right.

    Attributes:
        ok: within the rule.
        worst_ulp: largest distance from float64 of any result, in units in the last place of the
            largest element; 0 where only equality was asked for.
        eager_ulp: eager's own, of the same result.
        allowed_ulp: the largest distance that the rule allows it.
        note: what is wrong, or what could not be compared.
    """

    ok: bool
    worst_ulp: float = 0.0
    eager_ulp: float = 0.0
    allowed_ulp: float = ALLOWED_ULP
    note: str = ""


def judge(
    ours: tuple[Tensor, ...],
    eager: tuple[Tensor, ...],
    exact: tuple[Tensor, ...] | None,
    random: bool = False,
) -> Verdict:
    """Judge all results of one call.

    Args:
        ours: the variant's results.
        eager: eager's on the same inputs.
        exact: those of a float64 run; without it results must equal eager's.
        random: values depend on a seed: only form and finiteness are compared.
    """
    if len(ours) != len(eager):
        return Verdict(False, note=f"{len(ours)} results, eager {len(eager)}")
    verdicts = [
        _judge_one(index, mine, theirs, exact[index] if exact else None, random)
        for index, (mine, theirs) in enumerate(zip(ours, eager, strict=True))
    ]
    wrong = [v for v in verdicts if not v.ok]
    return max(wrong or verdicts or [Verdict(True)], key=lambda v: v.worst_ulp)


class InFloat64(TorchDispatchMode):
    """Calls inside take float64 wherever the program names another floating-point dtype.

    A float64 run needs it: a norm that computes in float32 would put its own error into the truth.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """The call with float64 in place of narrower dtypes."""
        args, kwargs = tree_map_only(torch.dtype, _widest, (tuple(args), dict(kwargs or {})))
        return func(*args, **kwargs)


def _widest(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype.is_floating_point else dtype


def wide(t: Tensor) -> Tensor:
    """The tensor in float64, detached but asking for a gradient where `t` does; integers stay."""
    if not t.is_floating_point():
        return t
    return t.detach().double().requires_grad_(t.requires_grad)


def distance_ulp(t: Tensor, exact: Tensor) -> float:
    """Largest distance from the float64 result, in units in the last place of its largest."""
    limits = torch.finfo(t.dtype)
    scale = exact.abs().max().clamp(min=limits.tiny) * limits.eps
    return float(((t.double() - exact).abs().max() / scale).item())


def _judge_one(
    index: int, ours: Tensor, eager: Tensor, exact: Tensor | None, random: bool
) -> Verdict:
    mine, theirs = (f"{t.dtype} {tuple(t.shape)}" for t in (ours, eager))
    if mine != theirs:
        return Verdict(False, note=f"result {index}: {mine}, eager {theirs}")
    if random:
        finite = bool(ours.isfinite().all())
        note = "random: form alone compared" if finite else f"result {index}: not finite"
        return Verdict(finite, note=note)
    if not ours.is_floating_point() or exact is None or not ours.numel():
        same = torch.equal(ours, eager)
        return Verdict(same, note="" if same else f"result {index}: differs from eager")
    return _judge_float(index, *_comparable(ours, eager), exact)


def _comparable(ours: Tensor, eager: Tensor) -> tuple[Tensor, Tensor]:
    """Both in a dtype that comparisons exist for; float8 has none, and float16 holds its values."""
    if ours.dtype.itemsize > 1:
        return ours, eager
    return ours.float(), eager.float()


def _judge_float(index: int, ours: Tensor, eager: Tensor, exact: Tensor) -> Verdict:
    finite, infinite = eager.isfinite(), eager.isinf()
    same_nan = torch.equal(ours.isnan(), eager.isnan())
    if not same_nan or not torch.equal(ours[infinite], eager[infinite]):
        return Verdict(False, note=f"result {index}: other NaN or infinity than eager")
    if not bool(ours[finite].isfinite().all()):
        return Verdict(False, note=f"result {index}: not finite where eager is")
    if not bool(finite.any()):
        return Verdict(True)
    worst, own = (distance_ulp(t[finite], exact.double()[finite]) for t in (ours, eager))
    allowed = (NOISE_FACTOR if own > NO_DIGITS / torch.finfo(ours.dtype).eps else FACTOR) * own
    allowed += ALLOWED_ULP
    note = "" if worst <= allowed else f"result {index}: {worst:.3g} ulp, allowed {allowed:.3g}"
    return Verdict(worst <= allowed, worst, own, allowed, note)
