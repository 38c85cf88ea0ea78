"""Products whose bias and activation the library's own epilogue can be, and which it has.

    gelu(addmm(bias, x, w.T))    ->    linear_epilogue(x, w, bias, gelu)

oneDNN on a CPU, cuBLASLt on a GPU; the tables say what each has and what it does to values. An
epilogue rounds once where eager rounds after each step. Must not know costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..base.dtype import DType, bf16, f16, f32
from ..ir.graph import Graph, Node, Ref, Value
from ..ir.types import TensorType
from ..ops.epilogues import Named, activation_of
from .alternatives import Alternative, Declined, Exactness, Found
from .chains import is_plain_product, is_stored, sole_reader, turned
from .writer import Writer

KIND = "library-epilogue"
DTYPES = (f32, bf16, f16)
"""What fused calls compute."""

_SAME, _FINITE = Exactness.REASSOCIATES, Exactness.FINITE_ONLY
ONEDNN: Mapping[str, Exactness] = {
    "relu": _FINITE,
    "hardtanh": _FINITE,
    "gelu": _FINITE,
    "leaky_relu": _SAME,
    "hardswish": _SAME,
    "sigmoid": _SAME,
    "tanh": _SAME,
    "silu": _SAME,
    "gelu_tanh": _SAME,
}
"""oneDNN's relu and hardtanh make numbers of NaN, and its gelu by erf makes NaN of infinity."""
PRODUCT: Mapping[str, Mapping[str, Exactness]] = {
    "cpu": ONEDNN,
    "cuda": {"relu": _SAME, "gelu_tanh": _SAME},
}
"""Activations in the epilogue of a product, by device; cuBLASLt's follow NaN and infinity."""


def find(graph: Graph, device: str) -> list[Found]:
    """Every product with an activation behind it, with the fused call or why there is none."""
    taken = {v.name for v in graph.values()}
    found: list[Found] = []
    for node in graph.nodes:
        chain = _chain(graph, node) if is_plain_product(node) else None
        if chain is None:
            continue
        names = tuple(n.name for n in chain.nodes)
        problem = _problem(graph, chain, device)
        if problem is not None:
            found.append(Declined(KIND, names, problem))
            continue
        name, _ = chain.activation
        writer = Writer(f"{node.name}_with_{name}", taken, node.origin, node.call)
        made = _call(graph, chain, writer)
        note = f"{name} in the epilogue of the library's product"
        exactness = PRODUCT[device][name]
        value = (chain.value.name, made)
        found.append(Alternative(KIND, names, tuple(writer.nodes), (value,), exactness, note))
    return found


@dataclass(frozen=True)
class _Chain:
    """A product, what is added to it, and the activation that ends it."""

    nodes: tuple[Node, ...]
    value: Value
    bias: Value | None
    activation: Named

    @property
    def product(self) -> Node:
        """The product itself."""
        return self.nodes[0]

    @property
    def dtype(self) -> DType:
        """Its storage dtype."""
        return self.value.type.dtype


def _chain(graph: Graph, product: Node) -> _Chain | None:
    """The product with views, a bias and an activation behind it; None without activation."""
    columns = product.output.type.shape[1]
    bias = product.values[0] if product.op == "addmm" else None
    nodes, value = [product], product.output
    while (reader := sole_reader(graph, value)) is not None:
        nodes.append(reader)
        named = activation_of(reader)
        if named is not None and reader.output.type.dtype is value.type.dtype:
            return _Chain(tuple(nodes), reader.output, bias, named)
        added = _added(reader, value)
        if added is not None and bias is None and added.type.shape == (columns,):
            bias = added
        elif reader.op != "view" or reader.output.type.shape[-1] != columns:
            return None
        value = reader.output
    return None


def _added(node: Node, value: Value) -> Value | None:
    """The other operand of a plain addition."""
    if node.op != "add" or node.attr.get("alpha", 1) != 1 or len(node.values) != 2:
        return None
    a, b = node.values
    return b if a.name == value.name else a


def _problem(graph: Graph, chain: _Chain, device: str) -> str | None:
    """Why there is no fused call for a chain."""
    name, _ = chain.activation
    if name not in PRODUCT[device]:
        return f"the library's product has no {name} in its epilogue"
    if chain.dtype not in DTYPES:
        return f"the library's fused product computes no {chain.dtype.torch_name}"
    if device == "cuda" and chain.bias is None:
        return "the library's epilogue is reached with a bias, and this product has none"
    if device == "cuda" and name == "gelu_tanh" and chain.dtype is f32:
        return "the library's gelu stands farther from the exact value in float32 than eager's"
    if not is_stored(graph, chain.value):
        return "only kernels of ours read the result: it need not be stored"
    if not all(n.output.type.is_contiguous for n in chain.nodes):
        return "the result is not laid out row by row"
    return None


def _call(graph: Graph, chain: _Chain, writer: Writer) -> Value:
    *_, x, right = chain.product.values
    weight = turned(graph, right) or writer.permuted(right, (1, 0))
    kind = TensorType.dense(chain.dtype, chain.product.output.type.shape)
    bias = () if chain.bias is None else (chain.bias,)
    name, numbers = chain.activation
    made = writer.library(
        "linear_epilogue",
        (x, weight, *bias),
        kind,
        target="onetrip.linear_epilogue.default",
        args=(Ref(0), Ref(1), Ref(2) if bias else None, name, numbers),
        kwargs=(),
        has_bias=bool(bias),
        activation=name,
        numbers=numbers,
    )
    return writer.viewed(made, chain.value.type.shape)
