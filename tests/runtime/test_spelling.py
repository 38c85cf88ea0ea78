"""Arguments of library calls as text over slots: nesting, numbers of the host, words of Python."""

from __future__ import annotations

from typing import Any

import torch

from onetrip.base.dtype import bf16
from onetrip.base.sym import Size
from onetrip.ir.graph import Ref, Scalar, Value
from onetrip.ir.types import TensorType
from onetrip.runtime.spelling import Spelling

N = Size("n")
X = Value("x", TensorType.dense(bf16, (2,)))


def spelled(x: Any) -> Any:
    operands = {0: (X, 3), 1: (Scalar(N * 2), -1)}
    text = Spelling((N,), lambda ref: operands[ref.index])
    return text.function(text.spell(x))([None, None, None, "tensor"], [5])


def test_references_numbers_and_sizes() -> None:
    assert spelled((Ref(0), (Ref(1), 7), None, N + 1)) == ("tensor", (10, 7), None, 6)
    assert spelled([]) == ()
    assert spelled((bf16, -0.0, "quote'd")) == (torch.bfloat16, 0.0, "quote'd")
    assert spelled(float("nan")) != spelled(float("nan"))


def test_a_name_that_is_a_word_of_the_language() -> None:
    text = Spelling(())
    call = text.function(f"{text.bound(dict)}({text.named('from', 1)}, {text.named('to', 2)})")
    assert call([], []) == {"from": 1, "to": 2}
