"""Free variables, walks and rewriting of scalar expressions."""

from __future__ import annotations

from onetrip.base.dtype import bool_, f32, i64
from onetrip.base.sym import Dim, Size, Var, atoms, substitute
from onetrip.ir.expr import (
    Const,
    Contract,
    Expr,
    Fold,
    Load,
    Local,
    Position,
    Prefix,
    Reduced,
    Reduction,
    Rewriter,
    Rng,
    Scanned,
    apply,
    both,
    cast,
    compare,
    indirect,
    payloads,
    substitute_axes,
    walk,
)

I, J, K = Var("i", 4), Var("j", 8), Var("k", Size("s"))  # noqa: E741
X = Load("x", (I, J), f32)
ONE = Const(1.0, f32)
INDEX = Load("index", (I,), i64)


def total(lift: Expr, *axes: Var) -> Expr:
    return Reduced(Reduction("sum", axes, (lift,)), 0, lift.dtype)


def test_free_variables() -> None:
    assert X.free == {I, J}
    assert total(X, J).free == {I}
    assert total(X, K).free == {I, J, Size("s")}
    assert Scanned("sum", J, (ONE,), 0, f32).free == {J}
    assert Prefix("sum", J, (ONE,), 0, f32).free == {J}
    assert Fold("sum", (J,), (X,), 0, f32).free == {I}
    assert Contract(J, X, X, f32).free == {I}
    assert Local("x", f32, (K,)).free == {K}
    assert Load("t", (indirect(INDEX, 5), J), f32).free == {I, J}
    assert Load("x", (0, 0), f32, compare("lt", Position(K), Const(3, i64))).free == {K}
    assert Rng(INDEX, J).free == {I, J}


def test_walk_meets_operands_first_and_each_once() -> None:
    shared = apply("mul", X, X)
    root = apply("add", shared, apply("sub", shared, ONE))
    order = list(walk((root, shared)))
    assert order.count(shared) == 1
    assert all(order.index(c) < order.index(e) for e in order for c in getattr(e, "args", ()))
    assert INDEX in list(walk((Load("t", (indirect(INDEX, 5),), f32),)))


def test_axes_are_renamed_everywhere() -> None:
    new = Var("n", 4)
    read = Load("t", (indirect(INDEX, 5), I), f32, compare("lt", Position(I), Const(2, i64)), ONE)
    parts = (read, total(X, J), Rng(INDEX, 4 * I), Scanned("sum", I, (X,), 0, f32))
    root = parts[0]
    for p in parts[1:]:
        root = apply("add", root, p)
    renamed = substitute_axes(root, {I: new})
    assert renamed.free == {new, J}
    assert not any(
        I in atoms(d) for e in walk((renamed,)) for d in getattr(e, "index", ()) if e is not I
    )
    assert substitute_axes(renamed, {new: I}) is root


def test_a_reduced_axis_may_become_two() -> None:
    a, b = Var("a", 2), Var("b", 4)
    found = substitute_axes(total(X, J), {J: 4 * a + b})
    assert isinstance(found, Reduced)
    assert found.reduction.axes == (a, b)
    assert found.reduction.lift == (Load("x", (I, 4 * a + b), f32),)


def test_leaf_is_asked_first_and_once() -> None:
    asked: list[Expr] = []
    shared = apply("exp", X)
    root = apply("add", shared, apply("neg", shared))

    def leaf(e: Expr) -> Expr | None:
        asked.append(e)
        return ONE if e is shared else None

    assert Rewriter(leaf=leaf)(root) is apply("add", ONE, apply("neg", ONE))
    assert asked.count(shared) == 1
    assert X not in asked  # below a replaced expression nothing is visited


def test_a_rewriter_remembers_what_leaf_said() -> None:
    answers = iter([Const(2.0, f32), Const(3.0, f32)])
    rewrite = Rewriter(leaf=lambda e: next(answers) if e is X else None)
    first = rewrite(apply("neg", X))
    assert rewrite(apply("exp", X)) is apply("exp", Const(2.0, f32))
    assert first is apply("neg", Const(2.0, f32))


def test_node_sees_rebuilt_operands() -> None:
    def node(e: Expr) -> Expr | None:
        return ONE if e is apply("exp", ONE) else None

    rewrite = Rewriter(leaf=lambda e: ONE if e is X else None, node=node)
    assert rewrite(apply("exp", apply("exp", X))) is ONE


def test_payloads_are_rewritten() -> None:
    def index(d: Dim) -> Dim:
        return substitute(d, {I: J})

    rewrite = Rewriter(index=index)
    found = rewrite.dim(indirect(INDEX, 5) + I)
    assert payloads(found) == (Load("index", (J,), i64),)
    assert I not in atoms(found)


def test_kernel_expressions_are_rebuilt() -> None:
    n = Var("n", 8)
    for e in (
        Fold("max", (J,), (X,), 0, f32),
        Prefix("sum", J, (X,), 0, f32),
        Contract(J, X, X, f32),
    ):
        renamed = substitute_axes(e, {J: n})
        assert renamed is not e
        assert substitute_axes(renamed, {n: J}) is e


def test_depth_is_no_limit() -> None:
    e: Expr = X
    for _ in range(3000):
        e = apply("add", e, ONE)
    assert e.free == {I, J}
    assert substitute_axes(e, {J: 0}).free == {I}
    assert Rewriter(leaf=lambda x: ONE if x is X else None)(e).free == frozenset()
    assert len(e.digest) == 16


def test_digest_tells_contents_apart() -> None:
    def other(**changes: object) -> Expr:
        return Load("x", (I, J), f32, **changes)  # type: ignore[arg-type]

    forms = [
        X,
        Load("y", (I, J), f32),
        Load("x", (J, I), f32),
        Load("x", (Var("i", 5), J), f32),
        other(guard=Const(True, bool_)),
        other(guard=Const(True, bool_), other=ONE),
        Load("x", (indirect(INDEX, 4), J), f32),
        Load("x", (indirect(Load("index", (J,), i64), 4), J), f32),
        Const(0.0, f32),
        Const(-0.0, f32),
        Const(0, i64),
        total(X, J),
        total(X, I),
    ]
    assert len({e.digest for e in forms}) == len(forms)
    assert repr(X) == f"Load#{X.digest}"


def test_small_constructors() -> None:
    guard = compare("lt", Position(I), Const(2, i64))
    assert cast(X, f32) is X
    assert cast(X, i64).dtype is i64
    assert both(None, None) is None
    assert both(guard, None) is guard
    assert both(guard, guard) is guard
    assert both(guard, compare("lt", Position(J), Const(2, i64))).dtype is bool_  # type: ignore[union-attr]
