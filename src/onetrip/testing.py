"""For tests of models: fusion as an assertion.

    def test_the_block_stays_two_kernels():
        assert_fused(Block(), (x,), kernels=2, together=[("gelu", "norm:layer_norm")])

Nothing is run and no GPU is needed. Must not know how plans are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from onetrip import api
from onetrip.report import budget
from onetrip.report.keys import resolve
from onetrip.report.verdict import text
from onetrip.report.view import Plan


def assert_fused(
    model: Callable[..., Any],
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    kernels: int | None = None,
    traffic_bytes: int | None = None,
    peak_bytes: int | None = None,
    together: Iterable[Sequence[str]] = (),
    externs: Iterable[str] | None = (),
    target: str = "h200",
    search: str = "best",
    training: bool = False,
    numerics: str = "eager",
    dynamic_shapes: Any = None,
) -> Plan:
    """Fails unless the model's plan keeps within these limits.

    Args:
        model, args, kwargs, target, search, training, numerics, dynamic_shapes: as for
            `onetrip.plan`.
        kernels: the most launches of one call, library calls counted.
        traffic_bytes: the most bytes read and written in device memory.
        peak_bytes: the most bytes of intermediates and outputs alive at once.
        together: calls that must share a kernel, named as for `Plan.fuse`.
        externs: operators without an entry that may run as library calls; None: any.

    Returns: the plan, for further assertions.

    Raises:
        AssertionError: a limit is exceeded; the message names the boundary that causes it, its
            reason and the model's source line.
        UsageError: a name in `together` means nothing or several calls, which are listed.
    """
    __tracebackhide__ = True
    plan = api.plan(
        model,
        args,
        kwargs,
        target=target,
        search=search,
        training=training,
        numerics=numerics,
        dynamic_shapes=dynamic_shapes,
    )
    limits = budget.Limits(
        kernels,
        traffic_bytes,
        peak_bytes,
        None if externs is None else tuple(externs),
        group=tuple(_group(plan, names) for names in together),
    )
    verdict = budget.judge(plan.document, limits)
    if verdict.violations:
        raise AssertionError(text([verdict], str))
    return plan


def _group(plan: Plan, names: Sequence[str]) -> budget.Group:
    graphs = [(g.name, p.keys) for g, p in zip(plan.graphs, plan.planned, strict=True)]
    found = [resolve(name, graphs) for name in names]
    calls = tuple(budget.call_of(f.call.key) for f in found)
    return budget.Group(" + ".join(names), calls, (), graphs[found[0].graph][0])
