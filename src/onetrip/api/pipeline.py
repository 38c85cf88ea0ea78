"""The pipeline, on one page: a captured torch program becomes something that runs.

    fx graph -> Graph -> expanded, canonical -> alternatives -> Nests -> groups -> Kernels
             -> Program -> Executable

`analyze` is the half that needs no device (planning), `build` the half that makes it run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..base.errors import Unsupported
from ..base.options import Options
from ..base.sym import Sym
from ..base.text import identifier
from ..codegen.scheduled import Scheduled
from ..cost.roofline import pays_to_pad, pays_to_widen
from ..cost.sizes import Hints, number
from ..frontend.capture import CapturedGraph
from ..frontend.torch_fx import import_graph
from ..ir.graph import Graph, Node
from ..ir.kernel import Facts
from ..ir.nest import Nest
from ..ir.program import Program
from ..ops.exactness import of_node
from ..passes.anonymize import anonymize
from ..passes.canonicalize import canonicalize
from ..passes.collapse import collapse
from ..passes.cpu_library import cpu_forms
from ..passes.expand import Expansion, expand
from ..passes.finders import find_alternatives
from ..passes.gpu_library import gpu_forms
from ..passes.lower import Lowering
from ..passes.lowerable import Lowerable
from ..passes.relax import relax
from ..plan.choose import Problem
from ..plan.measured import Timer
from ..plan.plan import GraphPlan, Group
from ..plan.program import build_program
from ..report.schema import Line
from ..runtime.execute import Executable
from ..target import Target
from .devices import Device
from .honour import honoured
from .passed import passed, show_plan
from .resources import resources_for


@dataclass(frozen=True)
class Analyzed:
    """A graph with its plan: all that is known before anything is generated.

    Attributes:
        role: `inference`, `forward` or `backward`.
        problem: the graph as captured, with its alternatives: what was planned.
        plan: of the graph with the alternatives that pay.
        lines: what the given plan and the model's own code ask of it.
        parameters: positions of inputs that keep their address and layout between calls.
        constants: what stands behind the graph's last inputs: tensors, or graphs that a call runs.
        hints: the symbolic sizes at capture, for costs alone.
    """

    role: str
    problem: Problem
    plan: GraphPlan
    lines: tuple[Line, ...]
    target: Target
    parameters: frozenset[int]
    constants: tuple[Any, ...]
    hints: Mapping[Sym, int]

    @property
    def graph(self) -> Graph:
        """The graph that is compiled."""
        return self.plan.graph


@dataclass(frozen=True)
class Built:
    """What `build` made of an analyzed graph."""

    analyzed: Analyzed
    scheduled: Mapping[str, Scheduled]
    program: Program
    run: Executable


def analyze(
    captured: CapturedGraph, target: Target, options: Options, timer: Timer | None = None
) -> Analyzed:
    """The graph and its plan; nothing is generated but what is timed.

    Args:
        timer: asked for the faster of two ways where the cost model cannot tell.

    Raises:
        UsageError: a line of the given plan cannot be honoured.
        Unsupported: the graph holds what the IR cannot say; or, if strict, an extern.
    """
    imported = import_graph(captured.module, _refusal(target, options))
    graph = passed(imported.graph, "import")
    graph = passed(canonicalize(graph), "canonicalize")
    graph = passed(expand(graph, _library_forms(target, options, imported.hints)), "expand")
    graph = passed(canonicalize(graph), "canonicalize of the expanded graph")
    if options.strict:
        _refuse_externs(graph)
    lowering = Lowering(gpu=target.device == "cuda")
    problem = Problem(
        graph,
        find_alternatives(graph, target.device),
        lambda chosen: lowering(chosen if chosen is graph else passed(chosen, "alternatives")),
        target,
        options.search,
        options.numerics,
        imported.hints,
        resources_for(target, options),
        timer,
    )
    plan, lines = honoured(options.plan, captured.role, problem)
    show_plan(captured.role, plan)
    return Analyzed(
        captured.role,
        problem,
        plan,
        lines,
        target,
        captured.parameters,
        imported.constants,
        imported.hints,
    )


def _refusal(target: Target, options: Options) -> Callable[[Node], str | None]:
    """Calls that have no nest; in `bitwise` numerics also those whose kernels may differ from
    eager's in a bit."""
    backend = "triton" if target.device == "cuda" else "cpp"
    lowerable = Lowerable(gpu=target.device == "cuda")

    def refused(node: Node) -> str | None:
        if options.numerics != "bitwise" or of_node(node, backend).matched:
            return lowerable(node)
        return f"numerics=bitwise: {node.op} has not eager's bits in {backend}"

    return refused


def _library_forms(target: Target, options: Options, hints: Hints) -> Mapping[str, Expansion]:
    if target.device == "cuda":
        return gpu_forms(lambda node, moved: pays_to_pad(node, moved, target))
    if options.numerics == "bitwise":
        return {}
    return cpu_forms(lambda node, moved: pays_to_widen(node, number(moved, hints), target, hints))


def build(analyzed: Analyzed, device: Device, options: Options) -> Built:
    """Generates, builds and loads every kernel of a plan.

    Raises:
        ToolchainError: no compiler runs, or it rejects a kernel.
        CacheError: no folder can hold the result.
    """
    inputs = range(len(analyzed.graph.inputs))
    checked = frozenset(inputs) - analyzed.parameters
    made = executable(
        analyzed.plan, analyzed.target, device, options, analyzed.hints, checked, analyzed.constants
    )
    return Built(analyzed, *made)


def executable(
    plan: GraphPlan,
    target: Target,
    device: Device,
    options: Options,
    hints: Hints,
    checked: frozenset[int] = frozenset(),
    constants: tuple[Any, ...] = (),
) -> tuple[dict[str, Scheduled], Program, Executable]:
    """A plan's kernels, the host's steps, and both ready to run.

    Args:
        checked: positions of inputs whose strides may differ from call to call.
        constants: what stands behind the last inputs, which no call gives.
    """
    scheduled = schedule_groups(plan, target, device, options)
    program = passed(build_program(plan.graph, plan, scheduled, hints=hints), "build_program")
    return scheduled, program, Executable(program, device.backend(options), checked, constants)


def schedule_groups(
    plan: GraphPlan, target: Target, device: Device, options: Options
) -> dict[str, Scheduled]:
    """The kernels of every generated group; groups that compute the same share theirs.

    Buffers of a kernel are named by position; `Scheduled.names` says which values they are.
    """
    known: dict[Nest, Scheduled] = {}
    forms: dict[int, tuple[Nest, tuple[str, ...]]] = {}
    taken: dict[str, int] = {}
    made: dict[str, Scheduled] = {}
    nodes = {n.name: n for n in plan.graph.nodes}
    for group in plan.groups:
        form = group.form
        if form is None:
            continue
        if id(form) not in forms:
            wide = relax(form) if options.numerics == "fast" else form
            forms[id(form)] = anonymize(collapse(wide))
        nest, names = forms[id(form)]
        if nest not in known:
            passed(nest, f"collapse of {group.name}")
            members = [nodes[name] for name in group.nodes]
            name = _kernel_name(members, taken)
            facts = _facts(group, members)
            known[nest] = device.schedule(nest, target, name=name, facts=facts)
        made[group.name] = known[nest].named(tuple(group.here[n] for n in names))
    return made


def _kernel_name(members: Sequence[Node], taken: dict[str, int]) -> str:
    ops = list(dict.fromkeys(n.op for n in members))
    stem = identifier("_".join(ops[:4]))
    taken[stem] = taken.get(stem, 0) + 1
    return stem if taken[stem] == 1 else f"{stem}_{taken[stem]}"


def _facts(group: Group, members: Sequence[Node]) -> Facts:
    return Facts(
        bytes_read=sum(size for _, size in group.reads),
        bytes_written=sum(size for _, size in group.writes),
        flops=group.flops,
        ops=tuple(n.op for n in members),
        origins=tuple(dict.fromkeys(str(n.origin) for n in members)),
    )


def _computes(node: Node) -> bool:
    """Whether a call makes more than a single number: checks and numbers are the host's work."""
    return any(v.type.rank > 0 for v in node.outputs) or bool(node.outputs and node.values)


def _refuse_externs(graph: Graph) -> None:
    found = next((n for n in graph.nodes if n.op == "extern" and _computes(n)), None)
    if found is not None:
        raise Unsupported(
            f"{found.attr['target']} runs as an extern, and strict=True allows none",
            found=str(found.attr["reason"]),
            where=str(found.origin),
            next_step="leave out strict=True, or replace the call",
        )
