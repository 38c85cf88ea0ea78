"""One capture for planning and compiling: a torch program becomes functional ATen graphs.

    Dynamo -> what the model's code asks of the planner, out of the graph (`annotations`)
    -> our operators for attention, dropout and recurrences (`rewrite`) -> AOTAutograd,
    composites kept whole -> our seeded operators for random calls (`seeded`) -> masks in the form
    that fast attention takes (`masks`) -> images as fast convolutions take them (`layout`) ->
    forward and backward -> calls over lists of tensors taken
    apart (`foreach`)

`make_backend` does it for a program that runs; `capture_graphs` for one that does not, on fake
tensors of any device. Both see the same graphs. It must not know our own IR, plans or kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext

from .annotations import take_annotations
from .devices import bring_numbers, main_device
from .direct import mark_whole
from .foreach import split_foreach
from .given_views import take_views, with_views
from .layout import lay_out_channels_last
from .masks import simplify_masks
from .norm_types import correct_norm_types
from .overlap import check_overlap, with_overlap_check
from .rewrite import rewrite_dynamo_graph
from .seeded import seed_random_calls
from .storage import addresses_written
from .whole import kept_whole

Role = Literal["inference", "forward", "backward"]


@dataclass(frozen=True)
class CapturedGraph:
    """One graph of ATen calls and ours, functional but for the writes at its end.

    Attributes:
        role: inference, or one half of training.
        module: every node but the output has ``meta["val"]``: a fake tensor, a symbol or a tuple.
        inputs: what the placeholders stand for, in order: fake tensors, SymInts, ints.
        device: where the graph computes: the first device of its tensors that is not the CPU.
        parameters: positions of inputs that keep their address between calls.
        writes: (input position, name of the node whose value it takes), one per
            ``aten.copy_`` at the end of the graph. The copies stay in ``module``.
        results: how many leading outputs the program returns; a forward graph's others are saved
            for its backward graph.
    """

    role: Role
    module: torch.fx.GraphModule
    inputs: tuple[Any, ...]
    device: torch.device
    parameters: frozenset[int]
    writes: tuple[tuple[int, str], ...]
    results: int


CompileGraph = Callable[[CapturedGraph], Callable[..., Sequence[Any]]]


# ---------------------------------------------------------------- reset

_reset_hooks: list[Callable[[], object]] = []


def on_reset(hook: Callable[[], object]) -> None:
    """Registers a function to run on ``torch._dynamo.reset()``, once any of our backends ran."""
    if hook not in _reset_hooks:
        _reset_hooks.append(hook)


def reset() -> None:
    """Runs the reset hooks. Dynamo calls the attribute ``reset`` of every backend it used."""
    for hook in _reset_hooks:
        hook()


# ---------------------------------------------------------------- facts of one graph


def _writes(graph: torch.fx.Graph) -> tuple[tuple[int, str], ...]:
    position = {node: i for i, node in enumerate(graph.find_nodes(op="placeholder"))}
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    return tuple(
        (position[copy.args[0]], str(copy.args[1])) for copy in copies if copy.args[0] in position
    )


@dataclass
class _Compilation:
    """What the callbacks of one compilation learn and the later ones need."""

    compile_graph: CompileGraph
    parameter_names: frozenset[str] = frozenset()
    forward_results: int = 0
    written: list[int] = field(default_factory=list)

    def compiler(self, role: Role) -> Callable[[torch.fx.GraphModule, Sequence[Any]], Any]:
        def compile_one(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
            views = take_views(module)
            given = [*inputs, *(view.of(inputs) for view in views)]
            run = _boxed(self.compile_graph(self.captured(role, module, given)))
            return with_views(run, views) if views else run

        return compile_one

    def captured(
        self, role: Role, module: torch.fx.GraphModule, inputs: Sequence[Any]
    ) -> CapturedGraph:
        graph = module.graph
        placeholders = [node.name for node in graph.find_nodes(op="placeholder")]
        if role != "backward":
            self._learn(placeholders)
        if role == "inference":
            _rewrite_joint(module)
        split_foreach(module)
        bring_numbers(module)
        outputs = len(graph.output_node().args[0])  # type: ignore[arg-type]
        return CapturedGraph(
            role=role,
            module=module,
            inputs=tuple(inputs),
            device=main_device(graph),
            parameters=frozenset(
                i for i, name in enumerate(placeholders) if name in self.parameter_names
            ),
            writes=_writes(graph),
            results=self.forward_results if role == "forward" else outputs,
        )

    def _learn(self, placeholders: list[str]) -> None:
        context = TracingContext.try_get()
        metadata = context.fw_metadata if context is not None else None
        fixed = metadata.static_input_indices if metadata is not None else []
        self.parameter_names = frozenset(placeholders[i] for i in fixed if i < len(placeholders))

    def partition(
        self, joint: torch.fx.GraphModule, inputs: Any, **options: Any
    ) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        _rewrite_joint(joint)
        self.forward_results = options["num_fwd_outputs"]
        return min_cut_rematerialization_partition(joint, inputs, **options)


def _rewrite_joint(module: torch.fx.GraphModule) -> None:
    """What must be seen before a graph is split into forward and backward."""
    seed_random_calls(module)
    simplify_masks(module)
    lay_out_channels_last(module)
    correct_norm_types(module)  # last: a new layout has the framework state types again


def _boxed(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """The calling convention in which the callee may free its arguments one by one."""
    if getattr(compiled, "_boxed_call", False):
        return compiled
    boxed: Callable[..., Any] = make_boxed_func(compiled)
    return boxed


def _written_positions(module: torch.fx.GraphModule, count: int) -> list[int]:
    """Positions of the program's inputs whose data it writes.

    Where AOTAutograd merged inputs that overlap, its positions are no longer the program's: then
    any of them may be written.
    """
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None or not any(info.mutates_data for info in metadata.input_info):
        return []
    lifted = len(list(module.named_parameters())) + len(list(module.named_buffers()))
    if len(metadata.input_info) != count + lifted:
        return list(range(count))
    return [
        i - lifted
        for i, info in enumerate(metadata.input_info)
        if info.mutates_data and i >= lifted
    ]


# ---------------------------------------------------------------- the backend


def make_backend(compile_graph: CompileGraph) -> Callable[..., Any]:
    """A Dynamo backend that gives each captured graph to ``compile_graph``.

    ``compile_graph`` returns what runs the graph: a function of its inputs, or, with the attribute
    ``_boxed_call``, of one list of them that it may empty. It answers with the graph's outputs,
    and performs its writes.
    """

    def backend(module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        made = compiled_with_checks(module, example_inputs)
        mark_whole(made, module)
        return made

    def compiled_with_checks(module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        take_annotations(module)
        rewrite_dynamo_graph(module)
        compilation = _Compilation(compile_graph)
        with kept_whole(example_inputs):
            compiled = aot_autograd(
                fw_compiler=compilation.compiler("forward"),
                bw_compiler=compilation.compiler("backward"),
                inference_compiler=compilation.compiler("inference"),
                partition_fn=compilation.partition,
                decompositions={},
                keep_inference_input_mutations=True,
            )(module, example_inputs)
        written = _written_positions(module, len(example_inputs))
        if not written:
            return compiled
        original = torch._dynamo.disable(module.forward)
        if addresses_written(module.graph, written) or check_overlap(example_inputs, written):
            return original
        return torch._dynamo.disable(with_overlap_check(compiled, original, written))

    backend.reset = reset  # type: ignore[attr-defined]
    return backend
