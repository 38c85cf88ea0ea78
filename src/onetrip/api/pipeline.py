"""The pipeline, on one page: a captured torch program becomes something that runs.

    fx graph -> Graph -> expanded, canonical -> Nests -> groups -> Kernels -> Program -> Executable

`analyze` is the half that needs no device (planning), `build` the half that makes it run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ..base.errors import Unsupported
from ..base.options import Options
from ..base.text import identifier
from ..codegen.scheduled import Scheduled
from ..frontend.capture import CapturedGraph
from ..frontend.torch_fx import import_graph
from ..ir.graph import Graph
from ..ir.kernel import Facts
from ..ir.nest import Nest
from ..ir.program import Program
from ..passes.anonymize import anonymize
from ..passes.canonicalize import canonicalize
from ..passes.collapse import collapse
from ..passes.expand import expand
from ..passes.lower import lower
from ..passes.relax import relax
from ..plan.constraints import NO_CONSTRAINTS, Constraints
from ..plan.plan import Group, GraphPlan
from ..plan.program import build_program
from ..plan.search import plan_graph
from ..runtime.execute import Executable
from ..target import Target
from .devices import Device


@dataclass(frozen=True)
class Analyzed:
    """A graph with its plan: all that is known before anything is generated.

    Attributes:
        role: `inference`, `forward` or `backward`.
        parameters: positions of inputs that keep their address and layout between calls.
        constants: tensors behind the graph's last inputs.
    """

    role: str
    graph: Graph
    nests: Mapping[str, Nest]
    plan: GraphPlan
    target: Target
    parameters: frozenset[int]
    constants: tuple[Tensor, ...]


@dataclass(frozen=True)
class Built:
    """What `build` made of an analyzed graph."""

    analyzed: Analyzed
    scheduled: Mapping[str, Scheduled]
    program: Program
    run: Executable


def analyze(
    captured: CapturedGraph,
    target: Target,
    options: Options,
    constraints: Constraints = NO_CONSTRAINTS,
) -> Analyzed:
    """The graph and its plan; nothing is generated.

    Raises:
        Unsupported: the graph holds what the IR cannot say; or, if strict, an extern.
    """
    imported = import_graph(captured.module)
    graph = canonicalize(expand(canonicalize(imported.graph)))
    if options.strict:
        _refuse_externs(graph)
    nests = lower(graph)
    if options.numerics == "fast":
        nests = {name: relax(nest) for name, nest in nests.items()}
    plan = plan_graph(graph, nests, target, search=options.search, constraints=constraints)
    return Analyzed(
        captured.role, graph, nests, plan, target, captured.parameters, imported.constants
    )


def build(analyzed: Analyzed, device: Device, options: Options) -> Built:
    """Generates, builds and loads every kernel of a plan.

    Raises:
        ToolchainError: no compiler runs, or it rejects a kernel.
        CacheError: no folder can hold the result.
    """
    scheduled = schedule_groups(analyzed.plan, analyzed.target, device, options)
    program = build_program(analyzed.graph, analyzed.plan, scheduled)
    inputs = range(len(program.inputs))
    checked = frozenset(inputs) - analyzed.parameters
    run = Executable(program, device.backend(options), checked)
    return Built(analyzed, scheduled, program, run)


def schedule_groups(
    plan: GraphPlan, target: Target, device: Device, options: Options
) -> dict[str, Scheduled]:
    """The kernels of every generated group; groups that compute the same share theirs.

    Buffers of a kernel are named by position; `Scheduled.names` says which values they are.
    """
    known: dict[Nest, Scheduled] = {}
    taken: dict[str, int] = {}
    made: dict[str, Scheduled] = {}
    for group in plan.groups:
        if group.nest is None:
            continue
        nest = relax(group.nest) if options.numerics == "fast" else group.nest
        nest, names = anonymize(collapse(nest))
        if nest not in known:
            name = _kernel_name(group, taken)
            known[nest] = device.schedule(nest, target, name=name, facts=_facts(group))
        made[group.name] = known[nest].named(names)
    return made


def _kernel_name(group: Group, taken: dict[str, int]) -> str:
    ops = list(dict.fromkeys(n.op for n in group.nodes))
    stem = identifier("_".join(ops[:4]))
    taken[stem] = taken.get(stem, 0) + 1
    return stem if taken[stem] == 1 else f"{stem}_{taken[stem]}"


def _facts(group: Group) -> Facts:
    return Facts(
        bytes_read=group.reads,
        bytes_written=group.writes,
        flops=group.flops,
        ops=tuple(n.op for n in group.nodes),
        origins=tuple(dict.fromkeys(str(n.origin) for n in group.nodes)),
    )


def _refuse_externs(graph: Graph) -> None:
    found = next((n for n in graph.nodes if n.op == "extern"), None)
    if found is not None:
        raise Unsupported(
            f"{found.attr['target']} runs as an extern, and strict=True allows none",
            found=str(found.attr["reason"]),
            where=str(found.origin),
            next_step="leave out strict=True, or replace the call",
        )
