"""Random programs: calls of the operator table, views, updates in place.

A call is drawn from the table: one of an operator's own samples says its dtypes and attributes. An
elementwise operator takes values that are there already, in their shapes; every other one values
cut to the shapes that its sample has, or to those with each extent replaced by another where eager
accepts that. Each step is run as it is drawn, so that a program is one that eager accepts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from following import refs
from judging import is_exact, strides_of
from programs import FILLS, LAYOUTS, Leaf, Program, Ref, Step
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from conformance import BY_INDEX, CHOSEN, NONZERO, SORTED, bound, fitting_form, torch_dtype
from conformance import attributes as attributes_of
from conformance import operands as sample_operands
from onetrip.ops import exactness, polynomials
from onetrip.ops.schema import Form, Kind, Op, Opaque, Sample
from onetrip.ops.table import BY_TARGET, OPS

SIZES = (0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65)
"""Nothing, one, primes, and vector widths with their neighbours."""
MOST_ELEMENTS = 5000
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
DTYPES = (*FLOATS[:2], torch.float32, *FLOATS, torch.int64, torch.int32, torch.int16, torch.int8,
          torch.uint8, torch.bool)  # fmt: skip
LIBRARY = frozenset({
    "seed", "attention", "attention_saving", "attention_backward", "convolution_epilogue",
    "linear_epilogue", "convolution_backward", "embedding_backward",
})  # fmt: skip
"""Library calls with operands of their own, which no graph of small random values needs."""
UNDEFINED = frozenset({
    "prod", "cumprod",  # the order of the factors decides what overflows
    "rms_norm_backward",  # the CPU has no kernel of it
    "fmod", "remainder",  # eager's vector kernels are NaN where the quotient is beyond their range
    "left_shift", "right_shift",  # of negative numbers of bits
    *(op.name for op in polynomials.OPS),  # of NaN eager returns a number that it never wrote
})  # fmt: skip
"""Operators on which eager disagrees with itself, or has no kernel for a CPU."""


def is_drawn(op: Op) -> bool:
    """Whether random programs call it."""
    if not op.forms or op.kind is Kind.RANDOM or op.name in LIBRARY | UNDEFINED:
        return False
    return not any("seed" in form.operands for form in op.forms)


@dataclass(frozen=True)
class Call:
    """One sample of an operator with the overload that says it."""

    op: Op
    sample: Sample
    form: Form


def calls() -> list[Call]:
    """Every call that can be drawn, operator by operator."""
    pairs = [(op, s) for name in sorted(OPS) for op in (OPS[name],) if is_drawn(op)
             for s in op.samples]  # fmt: skip
    found = [(op, s, fitting_form(op, s)) for op, s in pairs]
    return [Call(op, s, form) for op, s, form in found if form is not None]


CALLS = calls()
BY_OPERATOR: Mapping[str, list[Call]] = {
    name: [c for c in CALLS if c.op.name == name] for name in sorted({c.op.name for c in CALLS})
}
BY_KIND: Mapping[str, list[str]] = {
    kind: [n for n in BY_OPERATOR if OPS[n].kind.value == kind]
    for kind in sorted({OPS[n].kind.value for n in BY_OPERATOR})
}
WEIGHTED = ("elementwise",) * 6 + ("reduction", "composite", "movement") * 2 + tuple(BY_KIND)

STEPS = frozenset({"add", "sub", "mul", "div", "fma", "sqrt", "rsqrt"})
ROUNDING = [
    name for name in BY_KIND["elementwise"]
    if is_exact(BY_OPERATOR[name][0].form.target) and STEPS & exactness.leaves(OPS[name])
]  # fmt: skip
"""Operators whose results are rounded, and have eager's bits if what they read has."""

TIES = frozenset({"mode", "kthvalue", "median_dim", "nanmedian_dim", "sort", "topk"})
"""Operators of which only the values are read: which of equal elements a place names is open."""

REJECTED = (RuntimeError, ValueError, IndexError, NotImplementedError, TypeError)
"""What a call raises that eager, or torch's rule for shapes, does not accept."""


@dataclass
class Sketch:
    """A program as it grows, and the values that eager has so far."""

    random: Random
    leaves: dict[str, Leaf] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    values: dict[Ref, Tensor] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    """What most of its floating-point values have."""

    def leaf(self, leaf: Leaf) -> Ref:
        """A new input."""
        ref = Ref(f"a{len(self.leaves)}")
        self.leaves[ref.name] = leaf
        self.values[ref] = leaf.tensor()
        return ref

    def drawn_leaf(self, dtype: torch.dtype, shape: Sequence[int], *fills: str) -> Ref:
        """A new input of drawn layout and elements."""
        layout = self.random.choice(("dense", *LAYOUTS))
        fill = self.random.choice(fills or tuple(FILLS))
        return self.leaf(Leaf(dtype, tuple(shape), layout, fill, self.random.randint(0, 999)))

    def step(self, target: str, *args: Any, **kwargs: Any) -> list[Ref] | None:
        """Runs a call and keeps it with its outputs; None where eager rejects it."""
        step = Step(f"s{len(self.steps)}", target, args, tuple(kwargs.items()))
        given = tree_map_only(Ref, self.values.__getitem__, (step.args, dict(kwargs)))
        try:
            found = step.call(*given[0], **given[1])
        except REJECTED:
            return None
        made = [x for x in tree_leaves(found) if isinstance(x, Tensor)]
        if any(not _small(t) for t in made) or not _as_foretold(step, given, made):
            return None
        self.steps.append(step)
        one = isinstance(found, Tensor)
        refs = [Ref(step.name, None if one else k) for k in range(len(made))]
        if step.writes:
            return refs
        kept = 1 if _operator(target) in TIES else len(refs)
        self.values |= dict(zip(refs[:kept], made[:kept], strict=True))
        return refs

    def any_value(self) -> Ref:
        """A value that is there, a late one rather than an early one."""
        found = list(self.values)
        return self.random.choice(found[-4:] if self.coin() else found)

    def coin(self) -> bool:
        """One of two."""
        return self.random.random() < 0.5

    def converted(self, ref: Ref, dtype: torch.dtype) -> Ref | None:
        """The value in a dtype; None where what eager makes of it is undefined."""
        x = self.values[ref]
        if x.dtype is dtype:
            return ref
        if x.is_floating_point() and not dtype.is_floating_point and dtype is not torch.bool:
            ref = (self.step("aten.nan_to_num.default", ref, 1.0, 2.0, -2.0) or [ref])[0]
            low = 0 if dtype is torch.uint8 else -100
            ref = (self.step("aten.clamp.default", ref, low, 100) or [ref])[0]
        made = self.step("aten._to_copy.default", ref, dtype=dtype)
        return made[0] if made else None

    def fitted(self, shape: Sequence[int], dtype: torch.dtype) -> Ref | None:
        """A value cut, or repeated, to a shape, or a new leaf."""
        ref = self.any_value()
        x, count = self.values[ref], math.prod(shape)
        if tuple(x.shape) != tuple(shape):
            if not x.numel() or self.random.randint(0, 2) == 0:
                return self.drawn_leaf(dtype, shape)
            made = self.step("aten.reshape.default", ref, [-1])
            if made and x.numel() < count:
                made = self.step("aten.repeat.default", made[0], [-(-count // x.numel())])
            made = made and self.step("aten.slice.Tensor", made[0], 0, 0, count)
            made = made and self.step("aten.view.default", made[0], list(shape))
            if not made:
                return self.drawn_leaf(dtype, shape)
            ref = made[0]
        return self.converted(ref, dtype)


def _operator(target: str) -> str:
    return BY_TARGET[target][0].name if target in BY_TARGET else target


def _as_foretold(step: Step, given: Any, made: Sequence[Tensor]) -> bool:
    """Whether torch's rule for shapes, by which graphs are captured, says what its kernel does.

    For `pixel_unshuffle` of nothing it does not, nor for the strides of a floored quotient of two
    dtypes.
    """

    def shape_alone(t: Tensor) -> Tensor:
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")

    args, kwargs = tree_map_only(Tensor, shape_alone, given)
    try:
        foretold = tree_leaves(step.call(*args, **kwargs))
    except REJECTED:
        return False
    found = [t for t in foretold if isinstance(t, Tensor)]
    return [(t.shape, strides_of(t)) for t in found] == [(t.shape, strides_of(t)) for t in made]


def _small(t: Tensor) -> bool:
    return t.numel() <= MOST_ELEMENTS and t.layout is torch.strided and not t.is_complex()


# ------------------------------------------------------------------ calls of the table


def table_call(s: Sketch) -> None:
    """A call of an operator of a drawn kind."""
    call_of(s, BY_KIND[s.random.choice(WEIGHTED)])


def chain_call(s: Sketch) -> None:
    """Elementwise calls, each of what the one before made: what a kernel holds in registers."""
    last = s.any_value()
    if s.coin():
        last = s.drawn_leaf(s.dtype, s.values[last].shape)
    for _ in range(s.random.randint(2, 6)):
        names = ROUNDING if s.coin() else BY_KIND["elementwise"]
        last = (call_of(s, names, last) or [last])[0]


def call_of(s: Sketch, names: Sequence[str], first: Ref | None = None) -> list[Ref] | None:
    """A call of one of these operators, of drawn operands but the first, if that is given.

    None where eager rejects it, or the operator takes no first operand of that kind.
    """
    name = s.random.choice(names)
    choices = BY_OPERATOR[name]
    floats = s.dtype if s.random.randint(0, 3) else None
    if first is not None:
        choices = [c for c in choices if _takes(c, s.values[first].dtype)]
    if not choices:
        return None
    call = s.random.choice(choices)
    made = [_operand(s, call, number, floats) for number in range(len(call.sample.operands))]
    if name in CHOSEN:
        made = list(_own_operands(s, call))
    elif first is not None:
        made[0] = first
    if any(x is None for x in made):
        return None
    attributes = attributes_of(call.sample)
    if "input_dtype" in call.form.attrs:
        attributes["input_dtype"] = s.values[made[0]].dtype
    args, kwargs = bound(call.form, tuple(made), attributes)
    return s.step(call.form.target, *args, **kwargs)


def _takes(call: Call, dtype: torch.dtype) -> bool:
    """Whether the first operand of the sample is a tensor of the dtype's category."""
    first = next(iter(call.sample.operands), None)
    return isinstance(first, tuple) and _category(_dtype(call, 0)) == _category(dtype)


def _operand(s: Sketch, call: Call, number: int, floats: torch.dtype | None) -> Any:
    """An operand as the sample has it; a floating-point one of the program's dtype, if given."""
    asked = call.sample.operands[number]
    if not isinstance(asked, tuple):
        return asked
    shape, dtype = asked[1], _dtype(call, number, floats)
    whole = not dtype.is_floating_point and dtype is not torch.bool
    if (whole and call.op.name in BY_INDEX) or (call.op.name, number) in SORTED:
        return _own_operands(s, call)[number]
    if number and whole and call.op.name in NONZERO | {"floor_divide"}:
        return s.drawn_leaf(dtype, shape, "positive")
    if call.op.kind is not Kind.ELEMENTWISE or isinstance(call.op.body, Opaque):
        return s.fitted(_varied(s, call, shape), dtype)
    return _broadcast(s, dtype, shape)


def _dtype(call: Call, number: int, floats: torch.dtype | None = None) -> torch.dtype:
    dtype = torch_dtype(call.sample.operands[number][0].rstrip("+%"))
    own = floats is None or not dtype.is_floating_point or dtype.itemsize == 1
    return dtype if own else floats


def _own_operands(s: Sketch, call: Call) -> tuple[Any, ...]:
    """New leaves with the elements that the operator's own samples have."""
    return tuple(
        s.leaf(Leaf(x.dtype, tuple(x.shape), "dense", "given", 0, tuple(x.flatten().tolist())))
        if isinstance(x, Tensor) else x
        for x in sample_operands(call.op, call.sample)
    )  # fmt: skip


def _varied(s: Sketch, call: Call, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape with its extents replaced, where only one operand has a shape to keep to."""
    tensors = [x for x in call.sample.operands if isinstance(x, tuple)]
    if len(tensors) > 1 or not s.coin():
        return tuple(shape)
    return tuple(s.random.choice(SIZES) for _ in shape)


def _broadcast(s: Sketch, dtype: torch.dtype, asked: Sequence[int]) -> Ref | None:
    """A value as it is, or a new leaf; eager says whether the operands fit each other."""
    choice = s.random.randint(0, 5)
    ref = s.any_value()
    if choice == 0:
        shape = tuple(s.values[ref].shape)
        cut = s.random.randint(0, len(shape))
        return s.drawn_leaf(dtype, [1 if k == cut else n for k, n in enumerate(shape)])
    return _as_category(s, ref, dtype) if choice <= 3 else s.converted(ref, dtype)


def _as_category(s: Sketch, ref: Ref, dtype: torch.dtype) -> Ref | None:
    """The value as it is where it is of the dtype's category, else converted."""
    same = _category(s.values[ref].dtype) == _category(dtype)
    return ref if same else s.converted(ref, dtype)


def _category(dtype: torch.dtype) -> int:
    return 2 if dtype.is_floating_point else int(dtype is not torch.bool)


# ------------------------------------------------------------------ views, updates, folds


def view_call(s: Sketch) -> None:
    """A view of a value, or what eager answers with one."""
    ref = s.any_value()
    shape = s.values[ref].shape
    if not shape:
        s.step("aten.expand.default", ref, [3, 2])
        return
    a, b = (s.random.randint(0, len(shape) - 1) for _ in range(2))
    n = shape[a]
    start = s.random.randint(0, max(n - 1, 0))
    end, step = s.random.randint(start, n), s.random.randint(1, 3)
    choices: list[tuple[Any, ...]] = [
        ("aten.slice.Tensor", ref, a, start, end, step),
        ("aten.transpose.int", ref, a, b),
        ("aten.unsqueeze.default", ref, a),
        ("aten.permute.default", ref, list(reversed(range(len(shape))))),
        ("aten.select.int", ref, a, start),
        ("aten.flip.default", ref, [a]),
        ("aten.roll.default", ref, [step], [a]),
        ("aten.reshape.default", ref, [-1]),
        ("aten.expand.default", ref, [2, *shape]),
        ("aten.constant_pad_nd.default", ref, [step - 2, 1]),
        ("aten.unfold.default", ref, a, min(step, n), 1),
        ("aten.narrow.default", ref, a, start, max(end - start, 0)),
        ("aten.diagonal.default", ref, step - 2, a, b),
        ("aten.clone.default", ref),
    ]
    s.step(*s.random.choice(choices))


def cat_call(s: Sketch) -> None:
    """Values that agree in all but one extent, one after the other."""
    ref = s.any_value()
    x = s.values[ref]
    if not x.dim():
        return
    axis = s.random.randint(0, x.dim() - 1)
    fitting = [r for r, t in s.values.items() if t.dim() == x.dim()
               and all(k == axis or t.shape[k] == n for k, n in enumerate(x.shape))
               ]  # fmt: skip
    others = [s.random.choice(fitting) for _ in range(s.random.randint(1, 2))]
    s.step("aten.cat.default", [ref, *others], axis)


def update_call(s: Sketch) -> None:
    """An update in place of a value, or of a view of it; of a leaf now and then."""
    ref = s.any_value()
    x = s.values[ref]
    if any(n > 1 and step == 0 for n, step in zip(x.shape, x.stride(), strict=True)):
        return
    number = s.random.choice((2, -1, 0, 3))
    other = s.fitted(x.shape, x.dtype) if s.coin() else None
    if other is not None and _overlap(s.values[other], x):
        copied = s.step("aten.clone.default", other)
        other = copied[0] if copied else None
    choices: list[tuple[Any, ...]] = [
        ("aten.fill_.Scalar", ref, number),
        ("aten.clamp_.default", ref, -1, 2),
        ("aten.neg_.default", ref), ("aten.relu_.default", ref), ("aten.zero_.default", ref),
        ("aten.masked_fill_.Scalar", ref, _mask(s, x.shape), number),
    ]  # fmt: skip
    if other is not None:
        choices += [("aten.copy_.default", ref, other), ("aten.add_.Tensor", ref, other),
                    ("aten.mul_.Tensor", ref, other)]  # fmt: skip
    s.step(*s.random.choice(choices))


def _overlap(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _mask(s: Sketch, shape: Sequence[int]) -> Ref:
    return s.drawn_leaf(torch.bool, shape, "normal")


FOLDS = ("sum.dim_IntList", "mean.dim", "amax.default", "amin.default", "var.correction",
         "logsumexp.default", "any.dims", "all.dims")  # fmt: skip
ALONG = ("_softmax.default", "_log_softmax.default", "cumsum.default",
         "argmax.default", "argmin.default", "max.dim", "min.dim",
         "cummax.default", "logcumsumexp.default", "sort.default")  # fmt: skip


def fold_call(s: Sketch) -> None:
    """A reduction, a scan or a softmax along drawn dimensions of any value."""
    ref = s.any_value()
    rank = s.values[ref].dim()
    dims = [d for d in range(rank) if s.coin()]
    keep = s.coin()
    if s.coin():
        s.step(f"aten.{s.random.choice(FOLDS)}", ref, dims, keepdim=keep)
        return
    name = s.random.choice(ALONG)
    last = {"_softmax.default": [False], "_log_softmax.default": [False]}.get(name, [])
    s.step(f"aten.{name}", ref, dims[0] if dims else max(rank - 1, 0), *last)


def cast_call(s: Sketch) -> None:
    """A value in another dtype."""
    s.converted(s.any_value(), s.random.choice(DTYPES))


def again_call(s: Sketch) -> None:
    """A call that is there once more, with one of its numbers another: what must not be merged."""
    pure = [step for step in s.steps if not step.writes]
    if not pure:
        return
    step = s.random.choice(pure)
    words = [*step.args, *(v for _, v in step.kwargs)]
    places = [k for k, x in enumerate(words) if _other(x) is not None]
    if not places:
        return
    place = s.random.choice(places)
    words[place] = _other(words[place])
    args, rest = words[: len(step.args)], words[len(step.args) :]
    s.step(step.target, *args, **dict(zip((k for k, _ in step.kwargs), rest, strict=True)))


def _other(x: Any) -> Any:
    """Another attribute of the kind, None for what is no number."""
    if isinstance(x, bool):
        return not x
    if isinstance(x, int | float):
        return x + 1 if x <= 0 else x - 1
    if isinstance(x, list) and len(x) == 1 and isinstance(x[0], int):
        return [_other(x[0])]
    return None


SELDOM = (cat_call, update_call, cast_call, again_call)
ACTIONS = (table_call,) * 5 + (chain_call,) * 4 + (view_call, fold_call) * 2 + SELDOM


def drawn_program(random: Random, least: int = 4, most: int = 10) -> Program:
    """A program of so many drawn actions; an action may add several steps, or none."""
    s = Sketch(random, dtype=random.choice(FLOATS))
    base = [random.choice(SIZES) for _ in range(random.randint(0, 3))]
    for _ in range(random.randint(1, 3)):
        keep = random.randint(0, len(base))
        dtype = random.choice((s.dtype,) * len(DTYPES) + DTYPES)
        s.drawn_leaf(dtype, base[keep:] if keep < 2 else base)
    for _ in range(random.randint(least, most)):
        random.choice(ACTIONS)(s)
    return Program(tuple(s.leaves.items()), tuple(s.steps), _results(s))


def _results(s: Sketch) -> tuple[Ref, ...]:
    """Every value that no step reads, and one that some do.

    In half of the programs also those that are not exact: what follows can be judged by them.
    """
    read = {r for step in s.steps for r in refs(step)}
    made = [r for r in s.values if r.name.startswith("s")]
    kept = [r for r in made if r not in read]
    shown = s.coin()
    inexact = {step.name for step in s.steps if not is_exact(step.target)} if shown else set()
    return tuple(kept + [r for r in made if r in read
                         and (r.name in inexact or s.random.randint(0, 7) == 0)])  # fmt: skip
