"""Index expressions as affine functions of an axis: what a stride is. Built on base/sym.py."""

from __future__ import annotations

from .sym import Dim, Monomials, Opaque, Sym, atoms, from_monomials, monomials


def coefficient(e: Dim, var: Sym) -> Dim | None:
    """The factor of `var` in e when e is affine in it; None when it is not."""
    if isinstance(e, int):
        return 0
    total: Monomials = {}
    for factors, c in monomials(e).items():
        rest = list(factors)
        if var in rest:
            rest.remove(var)
            if any(_depends(f, var) for f in rest):
                return None
            total[tuple(rest)] = total.get(tuple(rest), 0) + c
        elif any(_depends(f, var) for f in rest):
            return None
    return from_monomials(total)


def _depends(e: Sym, var: Sym) -> bool:
    """Whether var stands in e, or in what is read at run time for e."""
    return any(
        a is var or (isinstance(a, Opaque) and var in getattr(a.payload, "free", ()))
        for a in atoms(e)
    )
