"""The operator table: `OPS` by name, `BY_TARGET` by ATen overload. Nothing else registers one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from . import (
    activation,
    arithmetic,
    arrangement,
    bessel,
    columns,
    comparison,
    copies,
    creation,
    elementary,
    epilogues,
    gather,
    gradients,
    joining,
    loss_gradients,
    losses,
    movement,
    normalization,
    opaque,
    order,
    padding,
    polynomials,
    pooling,
    random,
    recurrence,
    reduction,
    resampling,
    scatter,
    search,
    special,
    statistics,
    weights,
    windows,
    zeta,
)
from .schema import Form, Op

FAMILIES = (
    arithmetic, comparison, activation, creation, movement, joining, gather, reduction, statistics,
    recurrence, arrangement, padding, normalization, gradients, losses, loss_gradients,
    special, zeta, bessel, polynomials, elementary, search,
    weights, windows, pooling, resampling, columns, random, opaque, order, epilogues,
    scatter, copies,
)  # fmt: skip
ALL: tuple[Op, ...] = tuple(op for family in FAMILIES for op in family.OPS)


def _by_name() -> dict[str, Op]:
    table: dict[str, Op] = {}
    for op in ALL:
        assert op.name not in table, f"two entries are named {op.name}"
        table[op.name] = op
    return table


def _by_target() -> dict[str, tuple[Op, Form]]:
    table: dict[str, tuple[Op, Form]] = {}
    for op in ALL:
        for form in op.forms:
            assert form.target not in table, f"two entries claim {form.target}"
            table[form.target] = (op, form)
    return table


OPS: Mapping[str, Op] = MappingProxyType(_by_name())
BY_TARGET: Mapping[str, tuple[Op, Form]] = MappingProxyType(_by_target())
