"""Reductions and scans of one operand: sum, mean, products, extremes, positions, truth.

They accumulate in operation precision (f32 for bf16 and f16, i64 for integers and bool) and round
once at the end. The order of summation is the schedule's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.dtype import DType, bool_, i64, u8
from ..base.errors import Unsupported
from ..base.sym import Dim
from ..ir.expr import Expr
from ..ir.graph import Node
from ..ir.types import TensorType
from . import arith as m
from .rows import form, sample
from .rules import (
    Arg,
    asked_float,
    check_compiled,
    first,
    index_dtype,
    normal_dim,
    normal_dims,
    reduction,
    summed,
)  # fmt: skip
from .schema import Attrs, Form, Kind, Op, Reduce, Sample, Scanning

State = tuple[Expr, ...]
Lift = Callable[[Expr, Dim, Node], State]
ALL = ("dim", "keepdim", "dtype")


def dims_of(node: Node) -> tuple[int, ...]:
    """The reduced dimensions of operand 0."""
    return normal_dims(node.attr.get("dim"), node.values[0].type.rank)


def of_some(operands: tuple[Arg, ...], at: Attrs) -> DType:
    """The dtype of operand 0, some elements of which are reduced: eager refuses none."""
    x = operands[0]
    if any(x.shape[k] == 0 for k in normal_dims(at.get("dim"), x.rank)):
        raise Unsupported("no elements have no extreme: eager raises")
    return first(operands, at)


def _asked_of_some(operands: tuple[Arg, ...], at: Attrs) -> DType:
    """Where `of_some` says so: a composite may ask for the extreme of nothing."""
    return (of_some if at.get("of_some") else first)(operands, at)


def _accumulator(node: Node) -> DType:
    """The operation precision of the output's dtype."""
    return node.output.type.dtype.compute


def _in_output(e: Expr, position: Dim, node: Node) -> State:
    """The element in the output's dtype, as eager converts it, then in operation precision."""
    out = node.output.type.dtype
    narrow = e if node.values[0].type.dtype is out else m.to(e, out)
    return (m.to(narrow, _accumulator(node)),)


def _itself(e: Expr, position: Dim, node: Node) -> State:
    return (m.to(e, node.values[0].type.dtype.compute),)


def _without_nan(e: Expr, position: Dim, node: Node) -> State:
    (x,) = _in_output(e, position, node)
    return (m.where(m.isnan(x), 0, x) if x.dtype.is_float else x,)


def _counted(e: Expr, position: Dim, node: Node) -> State:
    return (m.to(m.truth(e), i64),)


def _truth(e: Expr, position: Dim, node: Node) -> State:
    return (m.truth(e),)


def _placed(e: Expr, position: Dim, node: Node) -> State:
    return (_itself(e, position, node)[0], m.place(position))


def _state(number: int = 0) -> Callable[[State, Dim, Node], Expr]:
    return lambda state, count, node: state[number]


def _over_count(state: State, count: Dim, node: Node) -> Expr:
    return m.div(state[0], m.place(count, _accumulator(node)))


def _truth_dtype(operands: tuple[Arg, ...], at: Attrs) -> DType:
    """bool; u8 stays u8, as in PyTorch."""
    return u8 if operands[0].dtype is u8 else bool_


def _scan_type(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
    x = operands[0]
    check_compiled(x.dtype)
    return (TensorType.dense(check_compiled(summed(operands, at)), x.shape),)


def _scan_like(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
    x = operands[0]
    return (TensorType.dense(check_compiled(x.dtype), x.shape),)


def _scan_places(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
    (x,) = _scan_like(operands, at)
    return (TensorType.dense(i64, x.shape),)


def _scan_float(operands: tuple[Arg, ...], at: Attrs) -> tuple[TensorType, ...]:
    (x,) = _scan_like(operands, at)
    if not x.dtype.is_float:
        raise Unsupported(f"a logarithm of sums of {x.dtype.torch_name}")
    return (x,)


def _scan_dim(node: Node) -> int:
    return normal_dim(node.attr["dim"], node.values[0].type.rank)


def _of_one(lift: Lift) -> Callable[[State, Dim, Node], State]:
    """The lift of a scan of one operand."""
    return lambda elements, position, node: lift(elements[0], position, node)


def _prefix(monoid: str) -> Scanning:
    return Scanning(monoid, _scan_dim, _of_one(_in_output), wide=True)


def _axis(x: Any, at: Attrs, key: str = "dim") -> tuple[int, ...] | None:
    dims = normal_dims(at.get(key), np.ndim(x))
    return dims if np.ndim(x) else None


def along(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A reference: a numpy reduction with the attributes `dim` and `keepdim`."""
    return lambda x, at: fn(x, axis=_axis(x, at), keepdims=bool(at.get("keepdim", False)))


def _np_position(fn: Callable[..., Any]) -> Callable[..., Any]:
    def reference(x: Any, at: Attrs) -> Any:
        keep = bool(at.get("keepdim", False))
        if at.get("dim") is None:
            found = fn(x.reshape(-1))
            return np.full((1,) * x.ndim, found) if keep else found
        found = fn(x, axis=at["dim"]) if x.ndim else np.asarray(0)
        return np.expand_dims(found, at["dim"]) if keep and x.ndim else found

    return reference


def running_extreme(name: str, x: Any, k: int) -> tuple[Any, Any]:
    """Running extremes along dimension k, and where the last one so far stands."""
    if not x.ndim:
        return x, np.zeros((), np.int64)
    values = getattr(np, f"{name}imum").accumulate(x, k)
    places = np.broadcast_to(np.expand_dims(np.arange(x.shape[k]), _beside(k, x.ndim)), x.shape)
    return values, np.maximum.accumulate(np.where(x == values, places, 0), k)


def _beside(k: int, rank: int) -> tuple[int, ...]:
    return tuple(j for j in range(rank) if j != k % rank)


def _running(name: str, number: int, types: Any) -> Op:
    """One component of a scan for the last extreme so far."""
    kind = ("value", "place")[number]
    return Op(
        f"cum{name}_{kind}", Kind.SCAN, (), types,
        Scanning(f"last_arg{name}", _scan_dim, _of_one(_placed), number),
        lambda x, at: running_extreme(name, x, at["dim"])[number], SCANS,
    )  # fmt: skip


def _fold(
    name: str,
    forms: Sequence[Form],
    dtype: Any,
    body: Reduce,
    reference: Callable[..., Any],
    samples: Sequence[Sample],
    onnx: tuple[str, ...] = (),
) -> Op:
    return Op(
        name, Kind.REDUCTION, tuple(forms), reduction(dtype), body, reference, tuple(samples),
        onnx=onnx,
    )  # fmt: skip


def _summing(monoid: str) -> Reduce:
    return Reduce(monoid, dims_of, _in_output, _state())


X = ("f32", (3, 4, 5))
DIMS = (
    sample(X), sample(X, dim=(1,)), sample(X, dim=(0, -1), keepdim=True), sample(X, dim=()),
    sample(("bf16", (2, 9)), dim=(1,)), sample(("f32", ())), sample(("f32", (3, 1)), dim=(1,)),
)  # fmt: skip
ONE_DIM = (
    sample(X, dim=1), sample(X, dim=-1, keepdim=True), sample(("bf16", (2, 9)), dim=0),
    sample(("i64", (5,)), dim=0), sample(("f32", (3, 1)), dim=1),
)  # fmt: skip
WHOLE = (sample(("i64", (2, 3)), dim=(1,)), sample(("i32", (4,))))
POSITIONS = (sample(X), sample(X, dim=1), sample(X, dim=-1, keepdim=True),
             sample(("i64", (7,)), dim=0), sample(("bf16", (2, 9)), dim=1))  # fmt: skip
SCANS = (sample(X, dim=1), sample(("i64", (5,)), dim=0), sample(("bf16", (2, 9)), dim=-1))
TRUTHS = (
    sample(("bool", (3, 4))), sample(("bool", (3, 4)), dim=(1,), keepdim=True),
    sample(("f32", (3, 4)), dim=(0,)), sample(("u8", (3,))), sample(("i64", (3, 2))),
)  # fmt: skip


def _truth_forms(name: str) -> tuple[Form, ...]:
    return (
        form(f"{name}.default"),
        form(f"{name}.dim", ("self",), ("dim", "keepdim")),
        form(f"{name}.dims", ("self",), ("dim", "keepdim")),
    )


OPS: tuple[Op, ...] = (
    _fold("sum", (form("sum.dim_IntList", ("self",), ALL), form("sum.default", ("self",),
                                                                ("dtype",))),
          summed, _summing("sum"), along(np.sum),
          DIMS + WHOLE + (sample(("bool", (5,))), sample(X, dim=(0,), dtype="f64")),
          ("ReduceSum",)),
    _fold("nansum", (form("nansum.default", ("self",), ALL),), summed,
          Reduce("sum", dims_of, _without_nan, _state()), along(np.nansum),
          (*DIMS, *WHOLE, sample(("bool", (5,))))),
    _fold("count_nonzero", (form("count_nonzero.default", ("self",), ("dim",)),
                            form("count_nonzero.dim_IntList", ("self",), ("dim",))), index_dtype,
          Reduce("sum", dims_of, _counted, _state()), along(np.count_nonzero),
          (sample(("f32", (3, 4))), sample(("i64", (3, 4)), dim=(0,)), sample(("bool", (5,))))),
    _fold("mean", (form("mean.dim", ("self",), ALL), form("mean.default", ("self",), ("dtype",))),
          asked_float, Reduce("sum", dims_of, _in_output, _over_count), along(np.mean),
          (*DIMS, sample(("i64", (2, 3)), dim=(1,), dtype="f32")), ("ReduceMean",)),
    _fold("prod", (form("prod.default", ("self",), ("dtype",)),
                   form("prod.dim_int", ("self",), ALL)),
          summed, _summing("prod"), along(np.prod), (sample(("f32", (7,))), *ONE_DIM),
          ("ReduceProd",)),
    _fold("amax", (form("amax.default", ("self",), ("dim", "keepdim")),
                   form("max.default", of_some=True)),
          _asked_of_some, Reduce("max", dims_of, _itself, _state()), along(np.max),
          DIMS + WHOLE, ("ReduceMax",)),
    _fold("amin", (form("amin.default", ("self",), ("dim", "keepdim")),
                   form("min.default", of_some=True)),
          _asked_of_some, Reduce("min", dims_of, _itself, _state()), along(np.min),
          DIMS + WHOLE, ("ReduceMin",)),
    _fold("argmax", (form("argmax.default", ("self",), ("dim", "keepdim")),), index_dtype,
          Reduce("argmax", dims_of, _placed, _state(1)), _np_position(np.argmax), POSITIONS,
          ("ArgMax",)),
    _fold("argmin", (form("argmin.default", ("self",), ("dim", "keepdim")),), index_dtype,
          Reduce("argmin", dims_of, _placed, _state(1)), _np_position(np.argmin), POSITIONS,
          ("ArgMin",)),
    _fold("max_value", (), first, Reduce("argmax", dims_of, _placed, _state()),
          along(np.max), ONE_DIM),
    _fold("min_value", (), first, Reduce("argmin", dims_of, _placed, _state()),
          along(np.min), ONE_DIM),
    _fold("any", _truth_forms("any"), _truth_dtype, Reduce("any", dims_of, _truth, _state()),
          along(np.any), TRUTHS),
    _fold("all", _truth_forms("all"), _truth_dtype, Reduce("all", dims_of, _truth, _state()),
          along(np.all), TRUTHS),
    Op("cumsum", Kind.SCAN, (form("cumsum.default", ("self",), ("dim", "dtype")),), _scan_type,
       _prefix("sum"), lambda x, at: np.cumsum(x, at["dim"]),
       (sample(X, dim=1), sample(("i64", (5,)), dim=0), sample(("bool", (5,)), dim=0)),
       onnx=("CumSum",)),
    Op("cumprod", Kind.SCAN, (form("cumprod.default", ("self",), ("dim", "dtype")),), _scan_type,
       _prefix("prod"), lambda x, at: np.cumprod(x, at["dim"]),
       (sample(X, dim=-1), sample(("i64", (5,)), dim=0))),
    *(_running(name, n, types) for name in ("max", "min")
      for n, types in enumerate((_scan_like, _scan_places))),
    Op("logcumsumexp", Kind.SCAN, (form("logcumsumexp.default", ("self",), ("dim",)),),
       _scan_float, _prefix("logaddexp"),
       lambda x, at: np.logaddexp.accumulate(x, at["dim"]),
       (sample(X, dim=1), sample(("bf16", (2, 9)), dim=-1))),
)  # fmt: skip
