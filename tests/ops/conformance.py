"""Samples of the operator table as torch calls, as references and as interpreted nests."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import onetrip.frontend.torch_ops
from onetrip.base.dtype import BY_NAME, DType
from onetrip.interp.arrays import storage
from onetrip.interp.nest_interp import run_nest
from onetrip.ir.graph import Graph, Node, Scalar, Value, freeze
from onetrip.ir.types import TensorType
from onetrip.ops.build import sample_node
from onetrip.ops.rules import as_dtype
from onetrip.ops.schema import Form, Opaque, Op, Sample
from onetrip.ops.table import OPS
from onetrip.passes.expand import expand
from onetrip.passes.lower import lower_node

assert onetrip.frontend.torch_ops
PURE_INDEX = {"embedding", "gather", "index", "index_select", "nll_loss", "nll_loss_backward",
              "max_pool2d_backward", "embedding_backward"}  # fmt: skip


def torch_dtype(name: str) -> torch.dtype:
    return getattr(torch, BY_NAME[name].torch_name)


def tensor(op: Op, description: tuple[str, tuple[int, ...]], number: int) -> torch.Tensor:
    """A reproducible operand; "f32+" asks for positive numbers."""
    name, shape = description
    made = torch.Generator().manual_seed(7 + number)
    dtype = torch_dtype(name.rstrip("+"))
    if dtype.is_floating_point:
        x = torch.randn(shape, generator=made, dtype=torch.float64)
        x = (x.abs() + 0.1) if name.endswith("+") else x
        return x.to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=made).bool()
    low, high = (0, 3) if op.name in PURE_INDEX else (-9, 10)
    x = torch.randint(low, high, shape, generator=made)
    if op.name in NONZERO and number:
        x = torch.where(x == 0, 1, x)
    if op.name in ("left_shift", "right_shift") and number:
        x = x.abs()
    return x.to(dtype)


NONZERO = {"div", "remainder", "fmod"}


def operands(op: Op, sample: Sample) -> tuple[Any, ...]:
    """Tensors and numbers of a sample."""
    return tuple(
        tensor(op, x, k) if isinstance(x, tuple) else x for k, x in enumerate(sample.operands)
    )


def attributes(sample: Sample) -> dict[str, Any]:
    return {k: as_dtype(v) if k.endswith("dtype") else v for k, v in sample.attrs}


def fitting_form(op: Op, sample: Sample) -> Form | None:
    """The first overload that can say the sample."""
    return next((f for f in op.forms if fits(f, sample)), None)


def fits(form: Form, sample: Sample) -> bool:
    attrs = dict(sample.attrs)
    count = sum(
        1 for n in form.operands if not n.endswith("?") or attrs.get(f"has_{n[:-1]}", False)
    )
    lists = any(n in ("tensors", "indices") for n in form.operands) and "self" not in n_list(form)
    if not lists and "indices" not in form.operands[1:] and count != len(sample.operands):
        return False
    fixed = dict(form.fixed)
    own = {k: v for k, v in attrs.items() if not k.startswith("has_") or k in fixed}
    kept = {k: v for k, v in own.items() if k not in fixed}
    return (
        set(kept) <= set(form.attrs)
        and all(own[k] == v for k, v in fixed.items() if k in own)
        and all(k in own for k, v in fixed.items() if not k.startswith(("has_", "default_")))
        and required(form) <= set(kept)
        and all(scalar_allowed(form, n, x) for n, x in zip(form.operands, sample.operands))
        and all(listed_alike(form, k, v) for k, v in kept.items())
    )


def listed_alike(form: Form, name: str, value: Any) -> bool:
    """A tuple only where the schema takes a list."""
    kinds = {a.name: str(a.type) for a in overload(form)._schema.arguments}
    return not isinstance(value, tuple) or "List" in kinds[name]


def n_list(form: Form) -> tuple[str, ...]:
    return form.operands


def overload(form: Form) -> Any:
    space, name, kind = form.target.split(".")
    return getattr(getattr(getattr(torch.ops, space), name), kind)


def required(form: Form) -> set[str]:
    """Attributes that the schema gives no default."""
    arguments = overload(form)._schema.arguments
    named = {a.name for a in arguments if not a.has_default_value()}
    optional = {a.name for a in arguments if "Optional" in str(a.type)}
    return (named - optional - {"input_dtype"}) & set(form.attrs)


def scalar_allowed(form: Form, name: str, x: Any) -> bool:
    kinds = {a.name: str(a.type) for a in overload(form)._schema.arguments}
    kind = kinds[name.rstrip("?")]
    if isinstance(x, tuple):
        return "Tensor" in kind
    return "Tensor" not in kind


def call(form: Form, values: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
    """The torch call that the form describes."""
    queue = list(values)
    known: dict[str, Any] = {}
    for name in form.operands:
        plain = name.rstrip("?")
        kind = next(str(a.type) for a in overload(form)._schema.arguments if a.name == plain)
        if kind.startswith("List"):
            known[plain], queue = queue, []
        elif name.endswith("?") and not attrs.get(f"has_{plain}", False):
            known[plain] = None
        else:
            known[plain] = queue.pop(0)
    for name in form.attrs:
        if name in attrs:
            value = attrs[name]
            known[name] = torch_value(value)
    if "input_dtype" in form.attrs and "input_dtype" not in known:
        known["input_dtype"] = values[0].dtype
    args, kwargs = [], {}
    for a in overload(form)._schema.arguments:
        if a.name in known:
            if a.kwarg_only:
                kwargs[a.name] = known[a.name]
            else:
                args.append(known[a.name])
        elif not a.kwarg_only:
            args.append(a.default_value if a.has_default_value() else None)
    if any(isinstance(v, torch.Tensor) and v.is_meta for v in values) and any(
        a.name == "device" for a in overload(form)._schema.arguments
    ):
        kwargs["device"] = "meta"
    return overload(form)(*args, **kwargs)


def torch_value(value: Any) -> Any:
    if isinstance(value, DType):
        return getattr(torch, value.torch_name)
    return list(value) if isinstance(value, tuple) else value


def listed(result: Any) -> list[torch.Tensor | None]:
    return list(result) if isinstance(result, tuple | list) else [result]


def cases(kind: type | None = None) -> Iterator[tuple[str, int]]:
    """Every sample of the table, by operator name and number."""
    for op in OPS.values():
        if kind is None or isinstance(op.body, kind):
            for number in range(len(op.samples)):
                yield op.name, number


def to_array(t: torch.Tensor) -> Any:
    """The interpreter's carrier of a tensor."""
    return (t.float() if t.dtype == torch.bfloat16 else t).contiguous().numpy().copy()


def from_array(a: Any, dtype: DType) -> torch.Tensor:
    return torch.from_numpy(np.array(a, order="C")).to(getattr(torch, dtype.torch_name))


def clean(sample: Sample) -> Sample:
    """A sample without the marks on its dtype names."""
    return Sample(
        tuple((x[0].rstrip("+"), x[1]) if isinstance(x, tuple) else x for x in sample.operands),
        sample.attrs,
    )


def node_of(op: Op, number: int) -> Node:
    made = sample_node(op, number)
    if "input_dtype" in dict(made.attrs) or not any(
        "input_dtype" in f.attrs for f in op.forms
    ):
        return made
    attrs = {**made.attr, "input_dtype": made.values[0].type.dtype}
    return Node(made.op, made.inputs, made.outputs, freeze(attrs), made.origin, made.call)


def interpret(node: Node, values: tuple[Any, ...]) -> list[torch.Tensor | None]:
    """The node's outputs by expansion, lowering and the nest interpreter."""
    inputs = tuple(v for v in node.inputs if isinstance(v, Value))
    graph = expand(Graph(inputs, (node,), node.outputs))
    arrays = {
        v.name: to_array(t)
        for v, t in zip(node.inputs, values, strict=True)
        if not isinstance(v, Scalar)
    }
    for n in graph.nodes:
        nest = lower_node(n)
        out = n.output
        read = {b.name: arrays[b.name] for b in nest.buffers if b.name != out.name}
        flat = run_nest(nest, {**read, out.name: storage(out.type)})[out.name]
        arrays[out.name] = unstrided(flat, out.type)
    return [
        from_array(arrays[v.name], v.type.dtype) if v.name in arrays else None
        for v in node.outputs
    ]


def unstrided(flat: Any, type: TensorType) -> Any:
    """The logical array in a flat storage."""
    steps = [int(s) * flat.itemsize for s in type.strides]
    return np.lib.stride_tricks.as_strided(flat, type.shape, steps).copy()


def reference(op: Op, sample: Sample, values: tuple[Any, ...]) -> list[Any]:
    """The entry's numpy reference on f64 (floats) and i64 or bool operands."""
    wide = tuple(widened(x) if isinstance(x, torch.Tensor) else x for x in values)
    with np.errstate(all="ignore"):
        found = op.reference(*wide, attributes(sample))
    return [np.asarray(a) for a in (found if isinstance(found, tuple) else (found,))]


def widened(t: torch.Tensor) -> Any:
    return t.double().numpy() if t.is_floating_point() else t.numpy()


def wide_call(op: Op, form: Form, sample: Sample, values: tuple[Any, ...]) -> list[Any]:
    """Eager in f64."""
    wide = tuple(
        x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in values
    )
    attrs = attributes(sample)
    if attrs.get("dtype") is not None and attrs["dtype"].is_float and op.name != "uniform":
        attrs["dtype"] = BY_NAME["f64"]
    return listed(call(form, wide, attrs))


def takes_attrs(fn: Any) -> bool:
    return bool(inspect.signature(fn).parameters)


def is_opaque(op: Op) -> bool:
    return isinstance(op.body, Opaque)

