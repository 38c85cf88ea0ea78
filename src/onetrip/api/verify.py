"""verify: every group of a model against eager and float64, on the inputs of one call.

    each captured graph runs three times: as we compile it, with every value that a group stores
    kept; call by call in eager; call by call in float64

All three start from eager's inputs and from the same seed, so a group that drifts is seen where it
drifts. The whole model is judged as well, against its own eager run.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_flatten, tree_map_only

from ..base.errors import UsageError
from ..base.options import Options, parse_options
from ..frontend.capture import CapturedGraph, make_backend
from ..ir.program import Alloc, Free, Program
from ..passes.chains import is_view
from ..report.view import Plan
from ..runtime.accuracy import InFloat64, Verdict, judge, wide
from ..runtime.execute import Executable
from .arguments import check_arguments, check_options
from .backend import backend, build_captured
from .devices import device_for
from .pipeline import Built
from .plans import Args

SEED = 20
MANY = 1 << 16
_NODE = re.compile(r"\[\d+\]$")
"""What tells the nodes of one call apart, at the end of their keys."""
TIES = ("seed", "uniform", "dropout")
"""Operators whose values depend on the seed."""


@dataclass(frozen=True)
class Judged:
    """One group of one graph.

    Attributes:
        graph: `inference`, `forward` or `backward`.
        values: how many of its stored values eager computes too, so that they could be judged.
    """

    graph: str
    group: str
    values: int
    verdict: Verdict


@dataclass(frozen=True)
class Verification:
    """Whether a model computes what eager does, and the first group that does not.

    Attributes:
        outputs: the verdict on what the whole model returns (and its gradients, in training).
        groups: in order of launch.
    """

    outputs: Verdict
    groups: tuple[Judged, ...]

    @property
    def ok(self) -> bool:
        """Whether outputs and all groups are within the rule."""
        return self.outputs.ok and self.drifting is None

    @property
    def drifting(self) -> str | None:
        """Name of the first group out of the rule."""
        return next((g.group for g in self.groups if not g.verdict.ok), None)

    def unfused(self, plan: Plan) -> Plan:
        """The plan in which no two calls of the first drifting group share a kernel.

        Args:
            plan: of the same model and arguments, as `onetrip.plan` makes it. It is given back as
                it is where nothing drifts.

        Raises:
            UsageError: the plan has no such group.
        """
        drifting = next((g for g in self.groups if not g.verdict.ok), None)
        if drifting is None:
            return plan
        for producer, consumer in combinations(_calls(plan, drifting), 2):
            plan = plan.cut(producer, consumer)
        return plan

    def __str__(self) -> str:
        wrong = [g for g in self.groups if not g.verdict.ok]
        lines = [f"{g.graph}/{g.group}: {g.verdict.note}" for g in wrong]
        judged = sum(g.values > 0 for g in self.groups)
        return "\n".join(
            [
                f"outputs: {_verdict_text(self.outputs)}",
                f"groups: {judged} of {len(self.groups)} store values of eager's; "
                f"{len(wrong)} drift",
                *lines,
            ]
        )


def _calls(plan: Plan, judged: Judged) -> tuple[str, ...]:
    """Keys of the calls that a judged group computes, in the plan's graphs of its kind."""
    graphs = [(g, p) for g, p in zip(plan.graphs, plan.planned, strict=True)
              if g.name.startswith(judged.graph)]  # fmt: skip
    found = [(p, group) for g, p in graphs for group in g.groups if group.name == judged.group]
    if not found:
        raise UsageError(
            f"the plan has no group {judged.graph}/{judged.group}",
            expected="a plan of the model that was verified",
            found=", ".join(f"{g.name}/{group.name}" for g in plan.graphs for group in g.groups),
            next_step="onetrip.plan(model, args, training=...) with the arguments of verify",
        )
    computed = {c.key for p, _ in found for c in p.keys.calls if not all(map(is_view, c.nodes))}
    keys = dict.fromkeys(_NODE.sub("", key) for _, group in found for key in group.nodes)
    return tuple(key for key in keys if key in computed)


def _verdict_text(verdict: Verdict) -> str:
    word = "within the rule" if verdict.ok else "out of the rule"
    figures = f"{verdict.worst_ulp:.3g} ulp from float64, eager {verdict.eager_ulp:.3g}"
    return f"{word}, {verdict.note or figures}"


def verify(
    model: Callable[..., Any],
    args: Args = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    training: bool = False,
    **options: Any,
) -> Verification:
    """Runs a model compiled, in eager and in float64, and every group of it.

    Args:
        model: a module or function; its own parameters and the arguments are left as they are.
        args: positional arguments; a lone tensor stands for a tuple of one.
        kwargs: keyword arguments.
        training: whether to judge gradients as well, from fixed random ones of the results.
        options: see `base.options.Options`.

    A result may stand at most twice as far from float64 as eager's does, plus 4 ulp.

    Raises:
        UsageError: an argument or option that is not one.
    """
    check_arguments(model=model, args=args, kwargs=kwargs, training=training)
    chosen = parse_options(None, options)
    check_options(chosen)
    call = _Call(model, (args,) if isinstance(args, Tensor) else tuple(args), dict(kwargs or {}))
    found: list[Judged] = []
    checking = make_backend(lambda graph: _checked(graph, chosen, found))
    # A function keeps what earlier calls compiled, the user's too; a limit would run this in eager.
    with torch._dynamo.config.patch(recompile_limit=MANY, accumulated_recompile_limit=MANY):
        call.results(torch.compile(call.fresh(), backend=checking), training)
        random = any(name in g.group for g in found for name in TIES)
        compiled = torch.compile(call.fresh(), backend=backend, options=options or None)
        ours = call.results(compiled, training)
    eager = call.results(call.fresh(), training)
    exact, note = _exact(call, training)
    if exact is None and not random:
        return Verification(Verdict(all(g.verdict.ok for g in found), note=note), tuple(found))
    return Verification(judge(ours, eager, exact, random), tuple(found))


# ------------------------------------------------------------------ the whole model


@dataclass(frozen=True)
class _Call:
    """A model with the arguments of one call; every run gets copies."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def fresh(self) -> Callable[..., Any]:
        return copy.deepcopy(self.model) if isinstance(self.model, nn.Module) else self.model

    def widened(self) -> _Call:
        model = self.fresh()
        if isinstance(model, nn.Module):
            model = model.double()
        args, kwargs = tree_map_only(Tensor, wide, (self.args, self.kwargs))
        return _Call(model, args, kwargs)

    def results(self, run: Callable[..., Any], training: bool) -> tuple[Tensor, ...]:
        """What one run returns, the tensors that it was given as it left them, and gradients."""
        args, kwargs = tree_map_only(Tensor, _copied, (self.args, self.kwargs))
        given = _tensors((args, kwargs))
        with torch.random.fork_rng(), torch.set_grad_enabled(training):
            torch.manual_seed(SEED)
            returned = _tensors(run(*args, **kwargs))
            gradients = _gradients(run, given, returned) if training else ()
        return tuple(t.detach().clone() for t in (*returned, *given, *gradients))


def _exact(call: _Call, training: bool) -> tuple[tuple[Tensor, ...] | None, str]:
    """Results in float64; None and the reason where the model does not run in it."""
    try:
        wider = call.widened()
        with InFloat64():
            return wider.results(wider.model, training), ""
    except Exception as error:
        return None, f"no float64 run of the whole model: {str(error).splitlines()[0]}"


def _copied(t: Tensor) -> Tensor:
    """A copy that keeps strides, also of elements that share memory, and asks for a gradient where
    `t` does."""
    made = t.detach().clone()
    if made.stride() != t.stride():
        storage = t.detach().untyped_storage().clone()
        empty = torch.empty(0, dtype=t.dtype, device=t.device)
        made = empty.set_(storage, t.storage_offset(), t.shape, t.stride())
    return made.requires_grad_(t.requires_grad)


def _tensors(tree: Any) -> tuple[Tensor, ...]:
    leaves: list[Any] = tree_flatten(tree)[0]
    return tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))


def _gradients(
    run: Callable[..., Any], given: Sequence[Tensor], returned: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    parameters = run.parameters() if isinstance(run, nn.Module) else ()
    sources = [t for t in (*parameters, *given) if t.requires_grad]
    ends = [t for t in returned if t.requires_grad]
    if not sources or not ends:
        return ()
    # Not ones: a normalization's gradient of them is 0, and its relative error means nothing.
    draw = torch.Generator().manual_seed(SEED)
    into = [torch.randn(t.shape, generator=draw).to(t.device, t.dtype) for t in ends]
    found: Sequence[Tensor | None] = torch.autograd.grad(ends, sources, into, allow_unused=True)
    return tuple(g for g in found if g is not None)


# ------------------------------------------------------------------ one graph


def _checked(
    captured: CapturedGraph, options: Options, found: list[Judged]
) -> Callable[..., Sequence[Any]]:
    """A runner that judges every group at its first call and answers with eager's results."""
    built = build_captured(captured, options)
    kept = _keeping(built, captured, options)

    def run(*inputs: Any) -> Sequence[Any]:
        state = torch.random.get_rng_state()
        ours = kept([*_copies(inputs), *built.analyzed.constants])
        torch.random.set_rng_state(state)
        exact = _Recorder(captured.module)
        with InFloat64():
            exact.attempt(tree_map_only(Tensor, wide, _copies(inputs)))
        torch.random.set_rng_state(state)
        eager = _Recorder(captured.module)
        results: Sequence[Any] = eager.run(*inputs)
        values = dict(zip(_stored(built), ours[-len(_stored(built)) :], strict=True))
        found.extend(_judge_groups(captured.role, built, values, eager.seen, exact.seen))
        return results

    return run


def _copies(inputs: Iterable[Any]) -> list[Any]:
    return [_copied(x) if isinstance(x, Tensor) else x for x in inputs]


def _stored(built: Built) -> tuple[str, ...]:
    return tuple(name for g in built.analyzed.plan.groups for name in g.stored)


def _keeping(built: Built, captured: CapturedGraph, options: Options) -> Executable:
    """The program with a buffer of its own for each stored value, all of them returned."""
    program = built.program
    steps = tuple(
        replace(s, offset=None) if isinstance(s, Alloc) else s
        for s in program.steps
        if not isinstance(s, Free)
    )
    outputs = (*program.outputs, *_stored(built))
    kept = Program(program.inputs, steps, outputs, program.sizes)
    device = device_for(captured.device, built.analyzed.target)
    return Executable(kept, device.backend(options), built.run.checked)


def _judge_groups(
    role: str,
    built: Built,
    ours: Mapping[str, Tensor],
    eager: Mapping[str, Tensor],
    exact: Mapping[str, Tensor],
) -> Iterable[Judged]:
    made = built.analyzed.problem.made
    stands_for = {value.name: name for a in made for name, value in a.values}
    for group in built.analyzed.plan.groups:
        pairs = [(n, stands_for.get(n, n)) for n in group.stored]
        names = [(n, own) for n, own in pairs if own in eager and own in exact]
        verdict = judge(
            tuple(ours[n] for n, _ in names),
            tuple(_lying_as(eager[own], ours[n]) for n, own in names),
            tuple(exact[own] for _, own in names),
        )
        yield Judged(role, group.name, len(names), verdict)


def _lying_as(eager: Tensor, ours: Tensor) -> Tensor:
    """Eager's value; 0-d where a scalar stands for it."""
    return eager.reshape(ours.shape) if eager.numel() == ours.numel() else eager


class _Recorder(fx.Interpreter):
    """Runs a captured graph call by call and keeps each value under the name our graph gives it."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.seen: dict[str, Tensor] = {}

    def attempt(self, inputs: Sequence[Any]) -> None:
        """Runs as far as the calls have a float64 form; what comes later is not judged."""
        try:
            self.run(*inputs)
        except (RuntimeError, TypeError, NotImplementedError):
            return

    def run_node(self, n: fx.Node) -> Any:
        """Runs a node and keeps a copy of what it makes."""
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.seen[n.name] = result.detach().clone()
        elif isinstance(result, tuple | list) and n.op != "output":
            self.seen.update(
                (f"{n.name}_{k}", t.detach().clone()) for k, t in enumerate(result) if t is not None
            )
        return result


__all__ = ["Judged", "Verification", "verify"]
