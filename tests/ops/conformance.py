"""Samples of the operator table as torch calls, as references and as interpreted nests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch._inductor.inductor_prims  # registers prims.fma, which capture can meet

import onetrip.frontend.attention_ops
import onetrip.frontend.library_ops  # noqa: F401 - registers those with epilogues
from onetrip.base.dtype import BY_NAME, DType
from onetrip.base.float8 import LAYOUTS
from onetrip.interp.arrays import storage
from onetrip.interp.nest_interp import run_nest
from onetrip.ir.graph import Graph, Node, Value, freeze
from onetrip.ir.types import TensorType
from onetrip.ops.build import sample_node
from onetrip.ops.rules import as_dtype
from onetrip.ops.schema import Form, Op, Sample
from onetrip.passes.expand import expand
from onetrip.passes.lower import lower_node

NONZERO = {"div", "remainder", "fmod"}
BY_INDEX = {"embedding", "gather", "index", "index_select", "take", "scatter", "scatter_value",
            "scatter_joined", "scatter_add", "scatter_reduce", "index_add", "index_copy",
            "index_fill", "index_put", "put", "nll_loss", "nll_loss_backward",
            "nll_loss2d", "nll_loss2d_backward", "embedding_backward"}  # fmt: skip
RANGES = {"+": lambda x: x.abs() + 0.1, "%": torch.sigmoid}
"""What a mark after a sample's dtype makes of normal numbers."""


# ---------------------------------------------------------------- operands


def torch_dtype(dtype: DType | str) -> torch.dtype:
    found = BY_NAME[dtype] if isinstance(dtype, str) else dtype
    return getattr(torch, found.torch_name)


SORTED = {("bucketize", 1), ("searchsorted", 0)}
"""Operands whose rows must be sorted."""


def tensor(op: Op, name: str, shape: tuple[int, ...], number: int) -> torch.Tensor:
    """A reproducible operand, sorted where the operator asks for that."""
    x = unsorted(op, name, shape, number)
    return x.sort(-1).values if (op.name, number) in SORTED else x


def unsorted(op: Op, name: str, shape: tuple[int, ...], number: int) -> torch.Tensor:
    """A reproducible operand; `f32+` asks for positive numbers, `f32%` for some in (0, 1)."""
    made = torch.Generator().manual_seed(7 + number)
    dtype = torch_dtype(name.rstrip("+%"))
    if dtype.is_floating_point:
        x = torch.randn(shape, generator=made, dtype=torch.float64)
        return RANGES.get(name[-1], torch.clone)(x).to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=made).bool()
    low, high = (0, 3) if op.name in BY_INDEX else (-9, 10)
    x = torch.randint(low, high, shape, generator=made)
    if op.name in NONZERO and number:
        x = torch.where(x == 0, 1, x)
    if op.name.endswith("_shift") and number:
        x = x.abs()
    return x.to(dtype)


def operands(op: Op, sample: Sample) -> tuple[Any, ...]:
    """Tensors and numbers of a sample."""
    made = tuple(
        tensor(op, *x, number) if isinstance(x, tuple) else x
        for number, x in enumerate(sample.operands)
    )
    if op.name not in CHOSEN:
        return made
    return (*made[:2], chosen(op.name, made[0], made[1], dict(sample.attrs)))


CHOSEN = {
    f"{kind}max_pool{n}d_backward": n for n in (2, 3) for kind in ("", "adaptive_")
}  # fmt: skip
"""Gradients that read which element each window chose, with the pooled dimensions."""


def chosen(name: str, g: torch.Tensor, x: torch.Tensor, attrs: dict[str, Any]) -> torch.Tensor:
    rank = CHOSEN[name]
    given: dict[str, Any] = {"output_size": g.shape[-rank:]}
    call = f"adaptive_max_pool{rank}d"
    if not name.startswith("adaptive"):
        call, given = f"max_pool{rank}d_with_indices", attrs
    places: torch.Tensor = getattr(torch.ops.aten, call)(x, **given)[1]
    return places


def attributes(sample: Sample) -> dict[str, Any]:
    return {k: as_dtype(v) if k == "dtype" else v for k, v in sample.attrs}


# ---------------------------------------------------------------- torch calls


def overload(form: Form) -> Any:
    space, name, kind = form.target.split(".")
    return getattr(getattr(getattr(torch.ops, space), name), kind)


def kinds(form: Form) -> dict[str, str]:
    """The schema's type of every argument."""
    return {a.name: str(a.type) for a in overload(form)._schema.arguments}


def fitting_form(op: Op, sample: Sample) -> Form | None:
    """The first overload that can say the sample; None for operators that torch does not have."""
    return next((f for f in op.forms if fits(f, sample)), None)


def fits(form: Form, sample: Sample) -> bool:
    attrs, fixed = dict(sample.attrs), dict(form.fixed)
    asked = {k: v for k, v in attrs.items() if k in fixed or not k.startswith("has_")}
    free = {k: v for k, v in asked.items() if k not in fixed}
    implied = {k for k in fixed if not k.startswith(("has_", "default_"))}
    types = kinds(form)
    return (
        counted(form, sample)
        and set(free) <= set(form.attrs)
        and all(asked[k] == v for k, v in fixed.items() if k in asked)
        and implied <= set(asked)
        and required(form) <= set(free)
        and all("List" in types[k] for k, v in free.items() if isinstance(v, tuple))
    )


def counted(form: Form, sample: Sample) -> bool:
    """Whether the operands match the form's in number, tensors standing where tensors belong."""
    types = [kinds(form)[n.rstrip("?")] for n in form.operands]
    if any(t.startswith("List") for t in types):
        return True
    present = [
        t for n, t in zip(form.operands, types, strict=True)
        if not n.endswith("?") or dict(sample.attrs).get(f"has_{n[:-1]}", False)
    ]  # fmt: skip
    return len(present) == len(sample.operands) and all(
        ("Tensor" in t) == isinstance(x, tuple)
        for t, x in zip(present, sample.operands, strict=True)
    )


def required(form: Form) -> set[str]:
    """Attributes for which the schema has no default and takes no None."""
    arguments = overload(form)._schema.arguments
    named = {
        a.name
        for a in arguments
        if not a.has_default_value() and not str(a.type).startswith("Optional")
    }
    return (named - {"input_dtype"}) & set(form.attrs)


def call(form: Form, values: tuple[Any, ...], attrs: dict[str, Any]) -> list[Any]:
    """The outputs of the torch call that the form describes."""
    args, kwargs = bound(form, values, attrs)
    result = overload(form)(*args, **kwargs)
    return list(result) if isinstance(result, tuple | list) else [result]


def bound(
    form: Form, values: tuple[Any, ...], attrs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of that call."""
    queue, known = list(values), dict[str, Any]()
    types = kinds(form)
    for name in form.operands:
        plain = name.rstrip("?")
        if types[plain].startswith("List"):
            here = attrs.get(f"has_{plain}", (True,) * len(queue))
            known[plain] = [queue.pop(0) if present else None for present in here]
        elif name.endswith("?") and not attrs.get(f"has_{plain}", False):
            known[plain] = None
        else:
            known[plain] = queue.pop(0)
    known |= {k: torch_value(attrs[k]) for k in form.attrs if k in attrs}
    if "input_dtype" in form.attrs and "input_dtype" not in known:
        known["input_dtype"] = values[0].dtype
    args, kwargs = [], {}
    for a in overload(form)._schema.arguments:
        if a.kwarg_only:
            kwargs |= {a.name: known[a.name]} if a.name in known else {}
        else:
            default = a.default_value if a.has_default_value() else None
            args.append(known.get(a.name, default))
    return args, kwargs


def torch_value(value: Any) -> Any:
    if isinstance(value, DType):
        return torch_dtype(value)
    return list(value) if isinstance(value, tuple) else value


def wide_call(form: Form, values: tuple[Any, ...], attrs: dict[str, Any]) -> list[Any]:
    """The call with every float operand in f64."""
    if attrs.get("dtype") is not None and attrs["dtype"].is_float and "seed" not in form.operands:
        attrs = {**attrs, "dtype": BY_NAME["f64"]}
    return call(form, tuple(map(widened, values)), attrs)


def widened(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


# ---------------------------------------------------------------- ours


def node_of(op: Op, number: int) -> Node:
    """The node of a sample, with what the importer would add."""
    made = sample_node(op, number)
    if any("input_dtype" in f.attrs for f in op.forms):
        attrs = {**made.attr, "input_dtype": made.values[0].type.dtype}
        return Node(made.op, made.inputs, made.outputs, freeze(attrs), made.origin, made.call)
    return made


def as_found(node: Node, outputs: list[Any]) -> Node:
    """The node with the dtypes of the statistics that eager gives on this device."""
    types = [
        v.type if t is None else TensorType.dense(as_torch(t.dtype), v.type.shape)
        for v, t in zip(node.outputs, outputs, strict=True)
    ]
    made = tuple(Value(v.name, t) for v, t in zip(node.outputs, types, strict=True))
    return Node(node.op, node.inputs, made, node.attrs, node.origin, node.call)


def as_torch(dtype: torch.dtype) -> DType:
    name = str(dtype).removeprefix("torch.")
    return next(d for d in BY_NAME.values() if d.torch_name == name)


def interpret(node: Node, values: tuple[Any, ...]) -> list[torch.Tensor | None]:
    """The node's outputs by expansion, lowering and the nest interpreter."""
    graph = expand(Graph(node.values, (node,), node.outputs))
    arrays = {
        v.name: to_array(t)
        for v, t in zip(node.inputs, values, strict=True)
        if isinstance(v, Value)
    }
    for n in graph.nodes:
        nest, out = lower_node(n), n.output
        read = {b.name: arrays[b.name] for b in nest.buffers if b.name != out.name}
        flat = run_nest(nest, {**read, out.name: storage(out.type)})[out.name]
        arrays[out.name] = unstrided(flat, out.type)
    return [
        from_array(arrays[v.name], v.type.dtype) if v.name in arrays else None for v in node.outputs
    ]


def from_array(x: Any, dtype: DType) -> torch.Tensor:
    """The tensor that the interpreter carries so."""
    made, kind = torch.from_numpy(x), torch_dtype(dtype)
    return made.view(kind) if dtype in LAYOUTS else made.to(kind)


def to_array(t: torch.Tensor) -> Any:
    """The interpreter's carrier of a tensor."""
    if as_torch(t.dtype) in LAYOUTS:
        t = t.view(torch.uint8)
    return (t.float() if t.dtype == torch.bfloat16 else t).contiguous().numpy().copy()


def unstrided(flat: Any, type: TensorType) -> Any:
    """The logical array in a flat storage."""
    steps = [int(s) * flat.itemsize for s in type.strides]
    return np.lib.stride_tricks.as_strided(flat, type.shape, steps).copy()


def reference(op: Op, values: tuple[Any, ...], attrs: dict[str, Any]) -> list[Any]:
    """The entry's numpy reference on f64 (floats), i64 or bool operands."""
    wide = tuple(widened(x).numpy() if isinstance(x, torch.Tensor) else x for x in values)
    with np.errstate(all="ignore"):
        found = op.reference(*wide, attrs)
    return [np.asarray(a) for a in (found if isinstance(found, tuple) else (found,))]


# ---------------------------------------------------------------- distances


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal in dtype, shape and every bit but the payload of a NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return bool((a == b).all())
    if as_torch(a.dtype) in LAYOUTS:  # torch compares none of these
        a, b = a.float(), b.float()
    equal = (a == b) & (torch.signbit(a) == torch.signbit(b))
    return bool((equal | (a.isnan() & b.isnan())).all())


def distance(a: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest distance, in ulp of the largest finite exact element."""
    if not a.is_floating_point():
        return float((a != exact).sum()) * 1e9
    wide, exact = a.double(), exact.double()
    equal = (wide == exact) | (wide.isnan() & exact.isnan())
    finite = exact[exact.isfinite()].abs()
    top = float(finite.max()) if finite.numel() else 1.0
    step = torch.finfo(a.dtype).eps * max(top, torch.finfo(a.dtype).tiny)
    off = torch.where(equal, 0.0, (wide - exact).abs() / step).nan_to_num(1e18, 1e18)
    return float(off.max()) if off.numel() else 0.0
