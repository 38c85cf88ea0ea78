"""Every activation, loss and norm of torch.nn is imported without a call left to the library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from onetrip.frontend.capture import CapturedGraph, make_backend
from onetrip.frontend.torch_fx import import_graph
from onetrip.passes.expand import expand
from onetrip.passes.lower import lower

Tensor = torch.Tensor
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def x(*shape: int) -> Tensor:
    return torch.randn(shape).requires_grad_()


def p(*shape: int) -> Tensor:
    return torch.rand(shape).clamp(0.05, 0.95).requires_grad_()


def classes(count: int, *shape: int) -> Tensor:
    return torch.randint(count, shape)


A = (4, 6)
MAP = (2, 6, 3, 3)
ACTIVATIONS: dict[str, Call] = {
    name: (getattr(F, name), (x(*A),), {})
    for name in (
        "relu", "relu6", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus", "softsign",
        "tanhshrink", "hardtanh", "hardswish", "hardsigmoid", "hardshrink", "softshrink",
        "logsigmoid", "sigmoid", "tanh", "glu", "leaky_relu",
    )
} | {
    "softmin": (F.softmin, (x(*A),), {"dim": 1}),
    "log_softmax": (F.log_softmax, (x(*A),), {"dim": 0}),
    "safe_softmax": (torch.ops.aten._safe_softmax, (x(*A), 1), {}),
    "threshold": (F.threshold, (x(*A), 0.1, 2.0), {}),
    "prelu": (F.prelu, (x(*A), x(6)), {}),
    "rrelu": (F.rrelu, (x(*A),), {"training": False}),
    "logit": (torch.logit, (p(*A),), {}),
}  # fmt: skip
W = {"weight": torch.rand(5)}
LOSSES: dict[str, Call] = {
    "mse": (F.mse_loss, (x(*A), x(*A)), {}),
    "l1": (F.l1_loss, (x(*A), x(*A)), {}),
    "smooth_l1": (F.smooth_l1_loss, (x(*A), x(*A)), {"beta": 0.7}),
    "huber": (F.huber_loss, (x(*A), x(*A)), {"delta": 0.7}),
    "bce": (F.binary_cross_entropy, (p(*A), torch.rand(A)), {"weight": torch.rand(6)}),
    "bce_logits": (F.binary_cross_entropy_with_logits, (x(*A), torch.rand(A)),
                   {"pos_weight": torch.rand(6)}),
    "kl": (F.kl_div, (x(*A), p(*A)), {}),
    "nll": (F.nll_loss, (x(4, 5), classes(5, 4)), {**W, "ignore_index": 2}),
    "nll2d": (F.nll_loss, (x(2, 5, 3, 4), classes(5, 2, 3, 4)), W),
    "ce": (F.cross_entropy, (x(4, 5), classes(5, 4)), {**W, "label_smoothing": 0.1}),
    "ce_of_one": (F.cross_entropy, (x(5), classes(5)), {}),
    "ce_of_shares": (F.cross_entropy, (x(4, 5), torch.rand(4, 5)), {}),
    "soft_margin": (F.soft_margin_loss, (x(*A), torch.randn(A).sign()), {}),
    "multilabel_soft_margin": (F.multilabel_soft_margin_loss, (x(*A), torch.rand(A)), {}),
    "hinge": (F.hinge_embedding_loss, (x(*A), torch.randn(A).sign()), {}),
    "cosine": (F.cosine_embedding_loss, (x(*A), x(*A), torch.randn(4).sign()), {}),
    "ranking": (F.margin_ranking_loss, (x(4), x(4), torch.randn(4).sign()), {}),
    "poisson": (F.poisson_nll_loss, (x(*A), torch.rand(A)), {"full": True}),
    "gaussian": (F.gaussian_nll_loss, (x(*A), x(*A), p(*A)), {}),
    "triplet": (F.triplet_margin_loss, (x(*A), x(*A), x(*A)), {"swap": True}),
}  # fmt: skip
NORMS: dict[str, Call] = {
    "layer": (F.layer_norm, (x(*A), (6,), x(6), x(6)), {}),
    "rms": (F.rms_norm, (x(*A), (6,), x(6)), {}),
    "group": (F.group_norm, (x(*MAP), 3, x(6), x(6)), {}),
    "instance": (F.instance_norm, (x(*MAP), torch.zeros(6), torch.ones(6)), {}),
    "batch": (F.batch_norm, (x(*MAP), torch.zeros(6), torch.ones(6), x(6), x(6), True), {}),
    "batch_alone": (F.batch_norm, (x(*MAP), None, None, x(6), x(6), True), {}),
    "batch_given": (F.batch_norm, (x(*MAP), torch.zeros(6), torch.ones(6), x(6), x(6)), {}),
    "local_response": (F.local_response_norm, (x(*MAP), 3), {}),
    "normalize": (F.normalize, (x(*A),), {"p": 3.0}),
    "weight": (torch._weight_norm, (x(4, 5), x(4, 1), 0), {}),
    "renorm": (torch.renorm, (x(*A), 2, 0, 1.0), {}),
    "logcumsumexp": (torch.logcumsumexp, (x(*A), -1), {}),
    "var_mean": (torch.var_mean, (x(*A), -1), {}),
}


def reduced(how: str) -> dict[str, Call]:
    """The losses with one kind of reduction."""
    return {
        n: (f, operands, {**more, "reduction": how}) for n, (f, operands, more) in LOSSES.items()
    }


FAMILIES = {
    "activations": ACTIVATIONS,
    "losses": reduced("none"),
    "mean losses": reduced("mean"),
    "sums of losses": reduced("sum"),
    "norms": NORMS,
}


def externs(calls: Sequence[Call]) -> list[str]:
    """The library calls in the graphs, forward and backward, of functions called in turn."""
    found: list[str] = []

    def imported(captured: CapturedGraph) -> Any:
        graph = expand(import_graph(captured.module).graph)
        lower(graph)
        found.extend(
            f"{n.attr['target']}: {n.attr['reason']}" for n in graph.nodes if n.op == "extern"
        )
        return captured.module

    torch._dynamo.reset()
    functions = [(f, more) for f, _, more in calls]
    compiled = torch.compile(
        lambda *given: [f(*x, **more) for (f, more), x in zip(functions, given, strict=True)],
        backend=make_backend(imported),
        dynamic=False,
    )
    results = compiled(*(operands for _, operands, _ in calls))
    outputs = [y for r in results for y in (r if isinstance(r, tuple) else (r,))]
    torch.autograd.backward([y.sum() for y in outputs])
    return found


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("family", FAMILIES)
def test_no_call_is_left_to_the_library(family: str) -> None:
    assert externs(list(FAMILIES[family].values())) == []


def test_a_library_call_is_found() -> None:
    found = externs([(torch.cdist, (x(4, 5), x(3, 5)), {})])
    assert found[0].startswith("aten._cdist_forward")
