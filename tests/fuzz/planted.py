"""Faults put into the compiler on purpose, one at a time: a fuzzer that misses one is too weak.

Each is a function that changes the package in the process that calls it, which must be one that is
thrown away afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from onetrip.api import pipeline
from onetrip.codegen import cpp_body, cpp_ops
from onetrip.ir.expr import apply
from onetrip.ir.monoid import MONOIDS, number
from onetrip.ir.types import TensorType
from onetrip.ops import element, rules
from onetrip.ops.table import OPS
from onetrip.passes import canonicalize, collapse
from onetrip.passes.relax import relax
from onetrip.plan import program


def _replaced(where: Any, name: str, made: Any) -> None:
    assert hasattr(where, name), f"{where} has no {name} any more"
    object.__setattr__(where, name, made)


def nodes_merge_whatever_their_attributes() -> None:
    """x.sum(0) and x.sum(1) of a square are one."""
    key = canonicalize._key

    def short(node: Any) -> Any:
        found = key(node)
        return found if isinstance(found, int) else (*found[:2], found[3])

    _replaced(canonicalize, "_key", short)


def axes_merge_whatever_lies_between() -> None:
    """Rows of a strided operand are read as if they followed one another."""
    contiguous = collapse._contiguous

    def blind(outer: Any, inner: Any, dims: Any) -> bool:
        return contiguous(outer, inner, dims[:1])

    _replaced(collapse, "_contiguous", blind)


def roundings_are_lost() -> None:
    """Intermediates of 16-bit operators stay in f32."""
    _replaced(pipeline, "collapse", lambda nest: collapse.collapse(relax(nest)))


def numbers_are_not_rounded_as_operands() -> None:
    """A tensor of another dtype is not rounded to the common one."""
    _replaced(element, "to", lambda e, dtype: e)


def updates_are_seen_too_early() -> None:
    """A result that lies in an input that is written afterwards is not copied."""
    _replaced(program, "_copier", lambda out, changed: lambda v: v.name)


def maximum_forgets_nan() -> None:
    """A maximum with NaN is the other operand."""
    body = OPS["maximum"].body
    _replaced(OPS["maximum"], "body", replace(body, body=lambda xs, at: apply("fmax", *xs)))


def maxima_begin_at_zero() -> None:
    """The largest of negative numbers is 0."""
    MONOIDS["max"] = replace(MONOIDS["max"], identity=lambda dtypes: (number(0, dtypes[0]),))


def results_are_always_dense() -> None:
    """The result of transposed operands lies row by row."""
    _replaced(rules, "laid_out", lambda dtype, shape, _: TensorType.dense(dtype, shape))


def the_rest_of_a_vector_loop_is_left_out() -> None:
    """The last elements of a length that is no multiple of a vector are not computed."""
    _replaced(cpp_body.Body, "_rest", lambda self, loop, cursor, end: None)


def constants_lose_the_sign_of_zero() -> None:
    """-0.0 is written 0.0."""
    spelled = cpp_ops._float
    _replaced(cpp_ops, "_float", lambda value, dtype: spelled(value + 0.0, dtype))


PLANTED: tuple[Callable[[], None], ...] = (
    nodes_merge_whatever_their_attributes,
    axes_merge_whatever_lies_between,
    roundings_are_lost,
    numbers_are_not_rounded_as_operands,
    updates_are_seen_too_early,
    maximum_forgets_nan,
    maxima_begin_at_zero,
    results_are_always_dense,
    the_rest_of_a_vector_loop_is_left_out,
    constants_lose_the_sign_of_zero,
)
