"""Arguments of library calls as text over slots: nesting, numbers of the host, words of Python."""

from __future__ import annotations

from typing import Any

import torch

from onetrip.base.dtype import bf16
from onetrip.base.sym import Size
from onetrip.ir.graph import Ref, Scalar
from onetrip.runtime.spelling import Spelling

N = Size("n")


def value(text: Spelling, of: str) -> Any:
    return eval(of, {**text.names, "t3": "tensor", "s": [5]})


def spelled(x: Any) -> Any:
    operands: dict[int, str | Scalar] = {0: "t3", 1: Scalar(N * 2)}
    text = Spelling((N,))
    return value(text, text.spell(x, lambda ref: operands[ref.index]))


def test_references_numbers_and_sizes() -> None:
    assert spelled((Ref(0), (Ref(1), 7), None, N + 1)) == ("tensor", (10, 7), None, 6)
    assert spelled([]) == ()
    assert spelled((bf16, -0.0, "quote'd")) == (torch.bfloat16, 0.0, "quote'd")
    assert spelled(float("nan")) != spelled(float("nan"))


def test_a_name_that_is_a_word_of_the_language() -> None:
    text = Spelling(())
    call = f"{text.bound(dict)}({text.named('from', 1)}, {text.named('to', 2)})"
    assert value(text, call) == {"from": 1, "to": 2}
