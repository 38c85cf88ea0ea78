"""Functions of one bf16 number, rounded to bf16: few enough arguments to have compared all.

    cast(bf16, x / (1 + exp(-x))) of x = cast(f32, y: bf16)    ->    "silu" of x

A chip's short approximations give such a function the bits that its long ones give: eight bits are
kept of some twenty. How that is spelled, a prelude says; here is only what is such a function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from ..base.dtype import bf16, f32
from ..ir.expr import Apply, Cast, Const, Expr, children, walk
from ..ops.schema import Elementwise
from ..ops.table import OPS


def _of_op(name: str, **attrs: object) -> Callable[[Expr], Expr]:
    body = OPS[name].body
    assert isinstance(body, Elementwise)
    rule = body.body
    return lambda x: rule((x,), {"common": bf16, "gpu": True, **attrs})


FUNCTIONS: dict[str, Callable[[Expr], Expr]] = {
    "sigmoid": _of_op("sigmoid"),
    "tanh": _of_op("tanh"),
    "silu": _of_op("silu"),
    "gelu": _of_op("gelu"),
    "gelu_tanh": _of_op("gelu", approximate="tanh"),
}
"""What each computes of an f32 argument, in the steps that the operator table gives it."""
_SHAPES = [tuple(walk((make(Const(1.0, f32)),))) for make in FUNCTIONS.values()]
ROOTS = frozenset(e.op for *_, e in _SHAPES if isinstance(e, Apply))
LARGEST = 1 + max(map(len, _SHAPES))
"""Expressions of the largest."""


def narrow(e: Expr) -> tuple[str, Expr] | None:
    """The name of the function that `e` is, and its argument: f32, with a bf16 number in it."""
    if not (isinstance(e, Cast) and e.dtype is bf16 and isinstance(e.arg, Apply)):
        return None
    if e.arg.dtype is not f32 or e.arg.op not in ROOTS:
        return None
    x = _argument(e.arg)
    name = None if x is None else _known(x).get(e.arg)
    return None if x is None or name is None else (name, x)


def merged(expressions: Sequence[Expr]) -> dict[Expr, str]:
    """The name of each expression that is such a function, and an empty one for each step inside of
    one that nothing else among the expressions needs."""
    if not any(map(narrow, expressions)):
        return {}
    operands = {c for e in expressions for c in children(e)}
    stack = [e for e in expressions if e not in operands]
    needed: set[Expr] = set()
    names: dict[Expr, str] = {}
    while stack:
        e = stack.pop()
        if e in needed:
            continue
        needed.add(e)
        found = narrow(e)
        if found is None:
            stack.extend(children(e))
        else:
            names[e] = found[0]
            stack.append(found[1])
    return names | {e: "" for e in expressions if e not in needed}


def _argument(root: Expr) -> Expr | None:
    """The one bf16 number under a small tree of f32 operators and constants."""
    seen: set[Expr] = set()
    found: set[Expr] = set()
    stack = [root]
    while stack:
        e = stack.pop()
        if e in seen:
            continue
        seen.add(e)
        if isinstance(e, Cast) and e.arg.dtype is bf16:
            found.add(e)
        elif isinstance(e, Apply):
            stack.extend(e.args)
        elif not isinstance(e, Const):
            return None
        if len(found) > 1 or len(seen) > LARGEST:
            return None
    return found.pop() if found else None


@lru_cache(maxsize=4096)
def _known(x: Expr) -> dict[Expr, str]:
    return {make(x): name for name, make in FUNCTIONS.items()}
