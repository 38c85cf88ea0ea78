"""`fast` numerics: a value kept in a register is not rounded to its storage dtype.

    cast(cast(e: f32, bf16), f32)  ->  e

What is stored is still rounded once. A value beyond the range of f16 stays finite where eager's is
infinite; the other two numerics modes never run this pass.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.expr import Cast, Expr, Rewriter
from ..ir.nest import Nest


def relax(nest: Nest) -> Nest:
    """The nest without the roundings between operators."""
    rewrite = Rewriter(node=_widened)
    return replace(nest, stores=tuple(replace(s, value=rewrite(s.value)) for s in nest.stores))


def _widened(e: Expr) -> Expr | None:
    if not isinstance(e, Cast) or not isinstance(e.arg, Cast):
        return None
    narrow, source = e.arg.dtype, e.arg.arg
    kept = narrow.is_float and e.dtype is narrow.compute and source.dtype is e.dtype
    return source if kept else None
