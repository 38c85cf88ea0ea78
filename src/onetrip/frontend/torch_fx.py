"""Import of a functional ATen graph (torch.fx) into our Graph, driven by the operator table.

An ATen call whose overload has an entry, and whose arguments the entry's `Form` can say, becomes
that operator. Every other call becomes an `extern` with the reason: it runs as the library runs it.
Knows no planning; what it cannot say at all raises Unsupported, and the caller runs eager.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from ..base.dtype import BY_TORCH_NAME, DType
from ..base.errors import Unsupported
from ..base.host import Computed, evaluated
from ..base.sym import Size, Sym
from ..ir.graph import Graph, Literal, Node, Operand, Origin, Ref, Scalar, Value, freeze
from ..ir.types import TensorType, concrete
from ..ops.schema import Form, Op, Opaque
from ..ops.table import BY_TARGET
from .checks import check_count, check_devices, check_types
from .devices import main_device
from .float8 import with_overflow
from .numbers import NUMBERS, check_sizes, computed, holds_computed, is_nested, is_true, number_type
from .origin import origin_record
from .sizes import Sizes
from .storage import READS, WRITES, check_owned, on_owner, storage_owners

_LAYOUT_ARGUMENTS = frozenset({"memory_format", "layout", "pin_memory", "non_blocking", "device"})
"""Arguments that say where and how a result lies: its own type says that already."""


@dataclass(frozen=True)
class Imported:
    """A graph, the constants behind its last inputs (tensors, and the graphs that a higher-order
    operator runs), and the sizes it was captured with."""

    graph: Graph
    constants: tuple[Any, ...]
    hints: Mapping[Sym, int]


Refusal = Callable[[Node], str | None]
"""Why an operator that has an entry is to run as the library runs it; None where it need not."""


def import_graph(module: fx.GraphModule, refused: Refusal = lambda node: None) -> Imported:
    """The graph of a functional ATen module whose nodes carry `meta["val"]`.

    Raises:
        Unsupported: a node that is no ATen call, or a size or tensor without a form in the IR.
    """
    return _Importer(module, refused).run()


def tensor_type(t: Tensor, sizes: Sizes) -> TensorType:
    """Element type, shape and strides of a strided tensor."""
    name = str(t.dtype).removeprefix("torch.")
    dtype = BY_TORCH_NAME.get(name)
    if dtype is None or t.layout is not torch.strided or t.is_quantized:
        raise Unsupported(f"a {t.layout} tensor of {name} has no form in the IR")
    shape = tuple(map(sizes.dim, t.shape))
    return TensorType(dtype, shape, sizes.strides(shape, t.stride()))


class _Importer:
    """The values seen so far, and one method for each kind of fx node."""

    def __init__(self, module: fx.GraphModule, refused: Refusal) -> None:
        self._module = module
        self._refused = refused
        self._device = main_device(module.graph)
        self._owners = storage_owners(module.graph)
        self._known: dict[fx.Node, Any] = {}
        self._inputs: list[Value] = []
        self._constants: list[tuple[Value, Any]] = []
        self._nodes: list[Node] = []
        several = (tuple, list, dict)
        self._names = frozenset(
            n.name for n in module.graph.nodes if not isinstance(n.meta.get("val"), several)
        )
        self._symbols = Sizes()
        self._sizes: dict[Size, tuple[str, int]] = {}
        self._hints: dict[Sym, int] = {}
        self._numbers: dict[Computed, DType] = {}
        self._mutations: dict[str, tuple[Value, Value]] = {}
        self._outputs: tuple[Value | Scalar | None, ...] = ()

    def run(self) -> Imported:
        steps: Mapping[str, Callable[[fx.Node], None]] = {
            "placeholder": self._placeholder,
            "get_attr": self._constant,
            "call_function": self._call,
            "output": self._output,
        }
        for node in self._module.graph.nodes:
            step = steps.get(node.op)
            if step is None:
                raise Unsupported(f"the graph holds a {node.op} node, {node.name}")
            step(node)
        graph = Graph(
            (*self._inputs, *(v for v, _ in self._constants)),
            tuple(self._nodes),
            self._outputs,
            tuple(self._mutations.values()),
            self._all_sizes(),
        )
        return Imported(graph, tuple(t for _, t in self._constants), dict(self._hints))

    # -------------------------------------------------------------- inputs and outputs

    def _placeholder(self, node: fx.Node) -> None:
        val = node.meta.get("val")
        if isinstance(val, Tensor):
            value = Value(node.name, tensor_type(val, self._symbols))
            for k, d in enumerate(value.type.shape):
                if isinstance(d, Size):
                    self._sizes.setdefault(d, (node.name, k))
                    self._hint(d, val.shape[k])
            self._known[node] = value
        else:
            value = Value(node.name, number_type(val))
            self._known[node] = self._scalar_input(node, value, val)
        self._inputs.append(value)

    def _scalar_input(self, node: fx.Node, value: Value, val: Any) -> Any:
        if is_nested(val):
            return value
        if isinstance(val, torch.SymFloat | torch.SymBool):
            return self._computed(Computed("given", (value,)), value.type)
        if isinstance(val, torch.SymInt):
            size = self._symbols.dim(val)
            if isinstance(size, Size):
                self._sizes[size] = (node.name, -1)
                self._hint(size, val)
            return size
        if val is None or isinstance(val, bool | int | float):
            return val
        raise Unsupported(f"the input {node.name} is a {type(val).__name__}")

    def _hint(self, size: Size, symbol: Any) -> None:
        """The value that a size had at capture; a data-dependent one has none."""
        if isinstance(symbol, torch.SymInt) and symbol.node.has_hint():
            self._hints[size] = int(symbol.node.hint)

    def _all_sizes(self) -> tuple[tuple[Size, str | Computed, int], ...]:
        """What tells each size: an input, or those before it."""
        found: list[tuple[Size, str | Computed, int]] = [
            (s, *told) for s, told in self._sizes.items()
        ]
        for size, made in self._symbols.computed.items():
            if size not in self._sizes and self._symbols.untold(size, self._sizes) is None:
                found.append((size, made, -1))
                with suppress(KeyError):  # a size that depends on data has no value yet
                    self._hints[size] = evaluated(made, lambda d: concrete(d, self._hints))
        return tuple(found)

    def _constant(self, node: fx.Node) -> None:
        held: Any = self._module
        for part in str(node.target).split("."):
            held = getattr(held, part)
        form = tensor_type(held, self._symbols) if isinstance(held, Tensor) else number_type(held)
        value = Value(node.name, form)
        self._constants.append((value, held))
        self._known[node] = value

    def _output(self, node: fx.Node) -> None:
        (results,) = node.args
        assert isinstance(results, tuple | list)
        self._outputs = tuple(self._result(r) for r in results)

    def _result(self, r: Any) -> Value | Scalar | None:
        known = self._known[r] if isinstance(r, fx.Node) else r
        if known is None or isinstance(known, Value):
            return known
        if isinstance(known, Computed) and known.function == "given":
            (value,) = known.arguments
            assert isinstance(value, Value)
            return value
        return Scalar(known)

    # -------------------------------------------------------------- calls

    def _call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            source, index = node.args
            assert isinstance(source, fx.Node)
            absent = node.meta.get("val") is None
            self._known[node] = None if absent else self._known[source][index]
            return
        val = node.meta.get("val")
        if isinstance(val, NUMBERS):
            self._known[node] = self._number(node, val)
            return
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            self._higher_order(node)
            return
        if not isinstance(node.target, torch._ops.OpOverload):
            raise Unsupported(f"{node.name} calls {node.target}, which is no ATen operator")
        arguments: Mapping[str, Any] = _bound(node)
        if node.target in READS | WRITES:
            arguments = on_owner(node, arguments, self._owners)
        if node.target is torch.ops.aten.copy_.default:
            self._mutation(node, arguments)
        elif node.target is not _CHECK or not is_true(self._resolve(arguments["self"])):
            self._operator(node, arguments)

    def _number(self, node: fx.Node, val: Any) -> Any:
        """A dim where the IR can say it, else what the host computes at each call."""
        made = computed(node, val, self._symbols, self._resolve)
        return self._computed(made, number_type(val)) if isinstance(made, Computed) else made

    def _computed(self, number: Computed, form: TensorType) -> Computed:
        self._numbers[number] = form.dtype
        return number

    def _mutation(self, node: fx.Node, arguments: Mapping[str, Any]) -> None:
        target, source = (self._known[arguments[k]] for k in ("self", "src"))
        if target not in self._inputs or source.type.shape != target.type.shape:
            raise Unsupported(f"{node.name} writes into a value that is no input of the graph")
        self._mutations[target.name] = (target, source)
        self._known[node] = source

    def _operator(self, node: fx.Node, arguments: Mapping[str, Any]) -> None:
        known = {name: self._resolve(a) for name, a in arguments.items()}
        outputs = _output_values(node, self._symbols, self._names)
        check_sizes(node, (v.type for v in outputs), self._symbols, self._sizes)
        origin, call = origin_record(node, str(node.target)), len(self._nodes)
        target = str(node.target)
        given = _by_position(node, known)
        try:
            op, form = _entry(target)
            check_devices(node, self._device)
            if node.target in READS | WRITES:
                check_owned(node, arguments, self._owners)
            assert isinstance(node.target, torch._ops.OpOverload)
            operands, attrs = _fit(form, node.target, known)
            check_count(operands)
            attrs = with_overflow(op.name, attrs)
            numbers: tuple[Node, ...] = ()
            if isinstance(op.body, Opaque):
                made = _library_call(op.name, target, given, outputs, origin, call, attrs)
            else:
                numbers, operands = self._held(operands, node, origin, call)
                made = Node(op.name, operands, outputs, freeze(attrs), origin, call)
                check_types(op, made)
                if reason := self._refused(made):
                    raise Unsupported(reason)
            self._nodes.extend(numbers)
        except Unsupported as error:
            attrs = {"reason": str(error), **_nature(node.target)}
            made = _library_call("extern", target, given, outputs, origin, call, attrs)
        self._nodes.append(made)
        self._known[node] = _results(node, outputs)

    def _held(
        self, operands: tuple[Operand, ...], node: fx.Node, origin: Origin, call: int
    ) -> tuple[tuple[Node, ...], tuple[Operand, ...]]:
        """Operands with each computed number replaced by a tensor that holds it, and the calls
        that make those: a number of its own in the promotion of types, as it was."""
        made: list[Node] = []
        kept: list[Operand] = []
        for k, x in enumerate(operands):
            if not isinstance(x, Scalar) or not isinstance(x.value, Computed):
                kept.append(x)
                continue
            dtype = self._numbers[x.value]
            value = Value(f"{node.name}.number{k}", TensorType(dtype, (), ()))
            device = Literal("device", str(node.meta["val"].device))
            given = ((x.value,), {"dtype": dtype, "device": device})
            reason = {"reason": "the host computes the number"}
            made.append(
                _library_call("extern", SCALAR_TENSOR, given, (value,), origin, call, reason)
            )
            kept.append(value)
        return tuple(made), tuple(kept)

    def _higher_order(self, node: fx.Node) -> None:
        """A call that runs graphs or an operator given as arguments: as the library runs it."""
        name = node.target.__name__  # type: ignore[union-attr]
        if getattr(torch.ops.higher_order, name, None) is not node.target:
            raise Unsupported(
                f"{node.name} calls {name}, which is not among torch.ops.higher_order"
            )
        given = (
            self._resolve(tuple(node.args)),
            {k: self._resolve(a) for k, a in node.kwargs.items()},
        )
        outputs = _output_values(node, self._symbols, self._names)
        check_sizes(node, (v.type for v in outputs), self._symbols, self._sizes)
        origin, call = origin_record(node, name), len(self._nodes)
        reason = {"reason": f"{name} is an operator over programs", **_nature(node.target)}
        target = f"higher_order.{name}"
        self._nodes.append(_library_call("extern", target, given, outputs, origin, call, reason))
        self._known[node] = _results(node, outputs)

    def _resolve(self, a: Any) -> Any:
        if isinstance(a, fx.Node):
            return self._known[a]
        if isinstance(a, tuple | list):
            return tuple(map(self._resolve, a))
        if isinstance(a, dict):
            return Computed("dict", tuple(map(self._resolve, itertools.chain(*a.items()))))
        if isinstance(a, torch.dtype):
            name = str(a).removeprefix("torch.")
            return BY_TORCH_NAME.get(name, Literal("dtype", name))
        return _LITERALS[type(a)](a) if type(a) in _LITERALS else a


_LITERALS: Mapping[type, Callable[[Any], Literal]] = {
    torch.device: lambda d: Literal("device", str(d)),
    torch.layout: lambda x: Literal("layout", str(x).removeprefix("torch.")),
    torch.memory_format: lambda x: Literal("memory_format", str(x).removeprefix("torch.")),
    torch._ops.OpOverload: lambda x: Literal("operator", str(x)),
}
_CHECK = torch.ops.aten._assert_scalar.default
SCALAR_TENSOR = "aten.scalar_tensor.default"


def _bound(node: fx.Node) -> dict[str, Any]:
    """Arguments by schema name, defaults filled in."""
    assert isinstance(node.target, torch._ops.OpOverload)
    bound: dict[str, Any] = {}
    for k, argument in enumerate(node.target._schema.arguments):
        if k < len(node.args) and not argument.kwarg_only:
            bound[argument.name] = node.args[k]
        else:
            bound[argument.name] = node.kwargs.get(argument.name, argument.default_value)
    return bound


def _entry(target: str) -> tuple[Op, Form]:
    found = BY_TARGET.get(target)
    if found is None:
        raise Unsupported(f"{target} has no entry in the operator table")
    return found


def _output_values(node: fx.Node, sizes: Sizes, names: frozenset[str]) -> tuple[Value, ...]:
    val = node.meta.get("val")

    def name(k: int | str) -> str:
        """Of one of several results: no other node's, though `median_1` may be one."""
        found = f"{node.name}_{k}"
        while found in names:
            found += "_"
        return found

    if isinstance(val, Tensor):
        return (Value(node.name, tensor_type(val, sizes)),)
    if isinstance(val, tuple | list):
        tensors = [v for v in val if isinstance(v, Tensor)]
        if len(tensors) != len(val):
            return tuple(
                Value(name(k), tensor_type(v, sizes))
                if isinstance(v, Tensor)
                else Value(name(k), TensorType(BY_TORCH_NAME["uint8"], (0,), (1,)))
                for k, v in enumerate(val)
            )
        return tuple(Value(name(k), tensor_type(v, sizes)) for k, v in enumerate(val))
    if isinstance(val, dict) and all(isinstance(v, Tensor) for v in val.values()):
        return tuple(Value(name(k), tensor_type(v, sizes)) for k, v in val.items())
    if val is None:
        return ()
    raise Unsupported(f"{node.name} returns a {type(val).__name__}")


def _results(node: fx.Node, outputs: tuple[Value, ...]) -> Any:
    """What a call's node stands for: one value, or several by position or name."""
    val = node.meta.get("val")
    if isinstance(val, dict):
        return dict(zip(val, outputs, strict=True))
    if isinstance(val, tuple | list):
        return outputs
    return outputs[0] if outputs else None


def _fit(
    form: Form, target: torch._ops.OpOverload, known: Mapping[str, Any]
) -> tuple[tuple[Operand, ...], dict[str, Any]]:
    """Operands and attributes of a call, as the form names them."""
    attrs: dict[str, Any] = dict(form.fixed)
    operands: list[Operand] = []
    named = {name.rstrip("?") for name in form.operands}
    for name in form.operands:
        found = known[name.rstrip("?")]
        listed = found if isinstance(found, tuple) else (found,)
        if name.endswith("?"):
            present = tuple(x is not None for x in listed)
            attrs[f"has_{name.rstrip('?')}"] = present if isinstance(found, tuple) else present[0]
            listed = tuple(x for x in listed if x is not None)
        operands.extend(map(_operand, listed))
    for argument in target._schema.arguments:
        name, value = argument.name, known[argument.name]
        if name in form.attrs:
            if holds_computed(value):
                raise Unsupported(f"{target} with a {name} that the host computes")
            attrs[name] = value
        elif name not in named and name not in _LAYOUT_ARGUMENTS:
            _check_default(target, argument, value)
    return tuple(operands), attrs


def _check_default(target: Any, argument: Any, value: Any) -> None:
    default = argument.default_value
    if isinstance(value, tuple):
        default = tuple(default) if default is not None else None
    if not argument.has_default_value() or value != default:
        raise Unsupported(f"{target} with {argument.name}={value}")


def _operand(x: Any) -> Operand:
    if isinstance(x, Value):
        return x
    if isinstance(x, bool | int | float | Sym | Computed):
        return Scalar(x)
    raise Unsupported(f"an operand of type {type(x).__name__}")


Given = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Positional and keyword arguments of a library call."""


def _by_position(node: fx.Node, known: Mapping[str, Any]) -> Given:
    """Arguments as the schema takes them."""
    assert isinstance(node.target, torch._ops.OpOverload)
    schema = node.target._schema.arguments
    args = tuple(known[a.name] for a in schema if not a.kwarg_only)
    return args, {a.name: known[a.name] for a in schema if a.kwarg_only}


def _nature(target: Any) -> Mapping[str, str]:
    """What keeps a call with the library whatever the operator table holds."""
    if "auto_functionalized" in target.__name__:
        return {"nature": "mutation"}
    random = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
    return {"nature": "rng"} if random else {}


def _library_call(
    op: str,
    target: str,
    given: Given,
    outputs: tuple[Value, ...],
    origin: Origin,
    call: int,
    attrs: Mapping[str, Any],
) -> Node:
    """The call as it stands, its tensor arguments taken out into operands."""
    inputs: list[Operand] = []

    def template(a: Any) -> Any:
        if isinstance(a, Value):
            inputs.append(a)
            return Ref(len(inputs) - 1)
        if isinstance(a, Computed):
            return Computed(a.function, tuple(map(template, a.arguments)))
        return tuple(map(template, a)) if isinstance(a, tuple) else a

    args = tuple(map(template, given[0]))
    kwargs = tuple((name, template(a)) for name, a in given[1].items())
    call_attrs = {"target": target, "args": args, "kwargs": kwargs}
    return Node(op, tuple(inputs), outputs, freeze({**attrs, **call_attrs}), origin, call)
