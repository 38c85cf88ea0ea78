"""The steps of a plan: order, memory, views, changed inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from onetrip.base.dtype import f32
from onetrip.base.errors import VerifyError
from onetrip.base.sym import Size, Var
from onetrip.ir.expr import Local
from onetrip.ir.graph import Graph, Value
from onetrip.ir.kernel import Kernel, Let, Loop, Mapping, Stmt
from onetrip.ir.nest import Access, Buffer, Nest
from onetrip.ir.program import Alias, Alloc, Bind, Call, Free, Launch, Program, Update
from onetrip.ir.types import TensorType
from onetrip.ir.verify import verify
from onetrip.plan.memory import Range
from onetrip.plan.plan import GraphPlan
from onetrip.plan.program import build_program
from onetrip.plan.search import Search, plan_graph
from onetrip.target import load

from .graphs import Draft, lowered


@dataclass(frozen=True)
class Bare:
    """A schedule that says nothing but which buffers its kernel takes."""

    kernels: tuple[Kernel, ...]
    scratch: tuple[Buffer, ...] = ()

    def arguments(self, kernel: Kernel, group: str) -> tuple[str, ...]:
        local = {b.name: f"{group}.{b.name}" for b in self.scratch}
        return tuple(local.get(b.name, b.name) for b in kernel.buffers)


def scheduled(plan: GraphPlan, scratch: int = 0) -> dict[str, Bare]:
    own = tuple(
        Buffer(f"part{k}", TensorType.dense(f32, (100,)), Access.UPDATE) for k in range(scratch)
    )
    return {
        g.name: Bare((Kernel(g.name, (*g.nest.buffers, *own), ()),), own)
        for g in plan.groups
        if g.nest is not None
    }


def program(graph: Graph, search: Search = "best", scratch: int = 0) -> tuple[GraphPlan, Program]:
    primitive, nests = lowered(graph)
    plan = plan_graph(primitive, nests, load("h200"), search=search)
    return plan, build_program(primitive, plan, scheduled(plan, scratch))


def kinds(made: Program) -> list[str]:
    return [type(s).__name__ for s in made.steps]


def test_outputs_have_memory_of_their_own_and_intermediates_lie_in_the_arena() -> None:
    d = Draft()
    x = d.input("x", 64, 64)
    graph = d.graph(d("y", "relu", d("t", "exp", x)))
    _, made = program(graph, "eager")
    allocs = {s.value.name: s.offset for s in made.steps if isinstance(s, Alloc)}
    assert allocs == {"t": 0, "y": None}
    assert made.arena_bytes == 64 * 64 * 4
    assert made.outputs == ("y",)
    assert kinds(made) == ["Alloc", "Launch", "Alloc", "Launch", "Free"]


def test_every_value_exists_before_it_is_used_and_is_freed_after() -> None:
    d = Draft()
    x, w = d.input("x", 64, 64), d.input("w", 64, 64)
    m = d("m", "mm", d("t", "exp", x), w)
    q = d("q", "mm", d("p", "permute", m, dims=(1, 0)), w)
    graph = d.graph(d("y", "add", q, m))
    _, made = program(graph)
    alive = {v.name for v in made.inputs}
    for step in made.steps:
        if isinstance(step, Alloc):
            alive.add(step.value.name)
        elif isinstance(step, Alias):
            assert step.source in alive
            alive.add(step.value.name)
        elif isinstance(step, Launch):
            assert set(step.arguments) <= alive
        elif isinstance(step, Call):
            assert {v.name for v in step.inputs if isinstance(v, Value)} <= alive
            alive |= {v.name for v in step.outputs}
        elif isinstance(step, Free):
            alive.remove(step.value)
    assert "y" in alive and "m" not in alive and "p" not in alive


def test_a_library_call_gets_its_template_and_the_layout_of_a_view() -> None:
    d = Draft()
    x, w = d.input("x", 8, 4), d.input("w", 8, 5)
    graph = d.graph(d("m", "mm", d("p", "permute", x, dims=(1, 0)), w))
    _, made = program(graph)
    (call,) = [s for s in made.steps if isinstance(s, Call)]
    assert (call.target, call.out) == ("aten.mm.out", True)
    assert Alloc(Value("m", TensorType.dense(f32, (4, 5))), None) in made.steps
    first = call.inputs[0]
    assert isinstance(first, Value) and first.type.strides == (1, 4)


def test_a_returned_view_keeps_its_base_out_of_the_arena() -> None:
    d = Draft()
    t = d("t", "exp", d.input("x", 8, 4))
    _, made = program(d.graph(d("p", "permute", t, dims=(1, 0))))
    allocs = {s.value.name: s.offset for s in made.steps if isinstance(s, Alloc)}
    assert allocs == {"t": None}
    assert isinstance(made.steps[-1], Alias) and made.outputs == ("p",)


def test_an_extern_may_return_its_operand_so_that_stays() -> None:
    d = Draft()
    t = d("t", "exp", d.input("x", 8, 4))
    e = d.extern("e", "aten.alias_like.default", t)
    u = d("u", "relu", d.extern("f", "aten.other.default", d("z", "exp", d.input("x2", 8, 4))))
    _, made = program(d.graph(e, u))
    allocs = {s.value.name: s.offset for s in made.steps if isinstance(s, Alloc)}
    assert allocs["t"] is None, "the arena is reused while the caller still holds a view of it"
    assert allocs["z"] is not None


def test_a_dead_value_gives_its_memory_to_the_next_of_its_form() -> None:
    d = Draft()
    x, w = d.input("x", 64, 64), d.input("w", 64, 64)
    t = d("t", "exp", x)
    u = d("u", "relu", t)
    plan, made = program(d.graph(d("m", "sum", d("e", "mm", u, w), dim=(0, 1))), "eager")
    ranges: dict[str, Range] = {p.range.name: p.range for p in plan.memory.buffers}
    assert ranges["u"].reuses == "t"
    assert ranges["e"].reuses is None, "a product reads its operands while it writes"
    assert made.arena_bytes == 2 * 64 * 64 * 4
    assert {p.offset for p in plan.memory.buffers if p.range.name in "tu"} == {0}


def test_no_reuse_where_the_element_is_read_from_another_place() -> None:
    d = Draft()
    x, w = d.input("x", 64, 64), d.input("w", 64, 64)
    t = d("t", "exp", x)
    u = d("u", "add", t, d("p", "permute", t, dims=(1, 0)))
    plan, made = program(d.graph(d("m", "mm", u, w)), "eager")
    assert all(p.range.reuses is None for p in plan.memory.buffers)
    assert made.arena_bytes == 2 * 64 * 64 * 4


def test_scratch_of_a_schedule_lies_in_the_arena_beside_what_is_alive() -> None:
    d = Draft()
    x, w = d.input("x", 64, 64), d.input("w", 64, 64)
    _, made = program(d.graph(d("m", "mm", d("t", "exp", x), w)), scratch=2)
    spans = sorted(
        (s.offset, s.offset + s.value.type.numel * 4)
        for s in made.steps
        if isinstance(s, Alloc)
        and isinstance(s.offset, int)
        and isinstance(s.value.type.numel, int)
    )
    assert len(spans) == 3
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    (launch,) = [s for s in made.steps if isinstance(s, Launch)]
    assert sum("part" in a for a in launch.arguments) == 2


def test_inputs_change_after_everything_has_read_them() -> None:
    """The kernel says nothing of how it reads, so the plan's wish is not trusted."""
    d = Draft()
    x = d.input("x", 8, 4)
    t = d("t", "exp", x)
    _, made = program(d.graph(d("y", "add", t, x), mutations=((x, t),)))
    assert made.steps[-1] == Update("x", "t")


def body(nest: Nest, loops: tuple[Var, ...], ahead: tuple[str, ...] = ()) -> tuple[Stmt, ...]:
    """The stores of a nest in loops over its space; values of `ahead` are made before any store."""
    lets = tuple(Let(f"let_{s.buffer}", s.value) for s in nest.stores if s.buffer in ahead)
    made: tuple[Stmt, ...] = tuple(
        replace(s, value=Local(f"let_{s.buffer}", s.value.dtype)) if s.buffer in ahead else s
        for s in nest.stores
    )
    made = (*lets, *made)
    for axis in reversed(loops):
        made = (Loop(axis, 1, Mapping.SERIAL, made),)
    return made


def changed(graph: Graph, shape: Callable[[Nest], tuple[Stmt, ...]]) -> Program:
    """The program of a graph of one group, its kernel as `shape` makes it of the nest."""
    primitive, nests = lowered(graph)
    plan = plan_graph(primitive, nests, load("h200"))
    (group,) = plan.groups
    assert group.nest is not None
    kernel = Kernel(group.name, group.nest.buffers, shape(group.nest))
    return build_program(primitive, plan, {group.name: Bare((kernel,))})


def momentum() -> Graph:
    """m := m + g;  p := p - m, where each new value reads what another input was."""
    d = Draft()
    p, m, g = (d.input(n, 64) for n in "pmg")
    new = d("new", "add", d("decayed", "mul", p, 0.1), d("sum", "add", m, g))
    return d.graph(mutations=((m, new), (p, d("step", "sub", p, new))))


def axes(nest: Nest) -> tuple[Var, ...]:
    return tuple(a.var for a in nest.space)


SHAPES: dict[str, tuple[Callable[[Nest], tuple[Stmt, ...]], list[str]]] = {
    "all values before all stores": (lambda n: body(n, axes(n), ("new", "step")), []),
    "a store between": (lambda n: body(n, axes(n)), ["m"]),
    "stored again in each round of a loop": (
        lambda n: (Loop(Var("again", 2), 1, Mapping.SERIAL, body(n, axes(n), ("new", "step"))),),
        ["m", "p"],
    ),
}


@pytest.mark.parametrize("case", SHAPES)
def test_a_value_lies_in_its_input_where_the_kernel_reads_first(case: str) -> None:
    shape, copied = SHAPES[case]
    made = changed(momentum(), shape)
    assert [s.target for s in made.steps if isinstance(s, Update)] == copied
    inside = {s.source for s in made.steps if isinstance(s, Alias)}
    assert inside == {"m", "p"} - set(copied)
    verify(made)


def test_a_value_of_another_element_is_copied_back() -> None:
    d = Draft()
    x = d.input("x", 8, 8)
    y = d("y", "exp", d("t", "permute", x, dims=(1, 0)))
    made = changed(d.graph(mutations=((x, y),)), lambda n: body(n, axes(n)))
    assert isinstance(made.steps[-1], Update)


def test_a_library_call_changes_its_operand_in_place() -> None:
    d = Draft()
    x, k = d.input("x", 8, 4), d.input("k", 8, 4)
    y = d.extern("y", "aten.index_copy.default", x, k)
    _, made = program(d.graph(d("z", "exp", y), mutations=((x, y),)))
    (call,) = [s for s in made.steps if isinstance(s, Call)]
    assert (call.target, call.outputs) == ("aten.index_copy_.default", ())
    assert Alias(y, "x") in made.steps
    assert not any(isinstance(s, Update) for s in made.steps)


def test_what_may_raise_later_is_not_run_after_a_change() -> None:
    """The extern stands before the change in the graph, whenever it is run."""
    d = Draft()
    x, k = d.input("x", 8, 4), d.input("k", 8, 4)
    checked = d.extern("checked", "aten.other.default", d("w", "exp", k))
    y = d("y", "relu", x)
    plan, made = program(d.graph(checked, mutations=((x, y),)))
    (change,) = [n for n, g in enumerate(plan.groups) if "y" in g.stored]
    inside = any(isinstance(s, Alias) and s.source == "x" for s in made.steps)
    later = any(g.call is not None for g in plan.groups[change + 1 :])
    assert not (inside and later)


def test_swapped_inputs_are_copied_before_either_is_written() -> None:
    d = Draft()
    x, z = d.input("x", 8, 8), d.input("z", 8, 8)
    p = d("p", "permute", x, dims=(1, 0))
    _, made = program(d.graph(p, mutations=((x, z), (z, p))))
    updates = [s for s in made.steps if isinstance(s, Update)]
    copies = {s.outputs[0].name for s in made.steps if isinstance(s, Call)}
    assert {u.value for u in updates} == copies
    assert made.outputs[0] in copies
    last_copy = max(k for k, s in enumerate(made.steps) if isinstance(s, Call))
    assert all(isinstance(s, Update) for s in made.steps[last_copy + 1 :])


def test_sizes_are_bound_first_and_the_arena_is_a_formula() -> None:
    n = Size("n", 2)
    d = Draft()
    x, w = d.input("x", n, 64), d.input("w", 64, 64)
    graph = d.graph(d("m", "mm", d("t", "exp", x), w))
    sized = Graph(graph.inputs, graph.nodes, graph.outputs, (), ((n, "x", 0),))
    _, made = program(sized)
    assert made.steps[0] == Bind(n, "x", 0)
    assert made.sizes == (n,)
    assert made.arena_bytes is n * 256


def test_a_group_without_a_kernel_is_an_error() -> None:
    d = Draft()
    primitive, nests = lowered(d.graph(d("t", "exp", d.input("x", 4))))
    plan = plan_graph(primitive, nests, load("cpu"))
    with pytest.raises(VerifyError, match="no kernel"):
        build_program(primitive, plan, {})
