"""Convolutions with the normalization, residual and activation behind them in one library call.

    relu(norm(conv(x, w)) + z)   ->   convolution_epilogue(x, w * s, h, z, relu)

In evaluation a batch norm is y * s + h with two numbers for each channel. Statistics and weights
are inputs that may change between calls, so w * s is computed at each call, by a small kernel of
its own. In bf16 that rounds the weights once more and the result once less: over a hundred random
convolutions the result stands 0.9 times as far from the exact value as eager's. In f16 a weight
times its scale may leave the dtype's range. Must not know costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..base.dtype import f16, f32
from ..ir.graph import Graph, Node, Ref, Scalar, Value
from ..ir.types import TensorType
from ..ops.epilogues import Named, activation_of
from ..ops.library_reference import pair
from ..ops.rules import is_dense
from .alternatives import Alternative, Declined, Exactness, Found
from .chains import is_stored, sole_reader
from .library_epilogues import DTYPES, ONEDNN
from .writer import Writer

KIND = "convolution-epilogue"
NONE: Named = ("none", ())
CONVOLUTION: Mapping[str, Mapping[str, Exactness]] = {
    "cpu": {"none": Exactness.REASSOCIATES, **ONEDNN},
    "cuda": {"relu": Exactness.REASSOCIATES},
}
"""Activations in the epilogue of a convolution, by device; cuDNN's follows NaN and infinity."""
SMALL = 20480
"""Elements of a single image up to which eager's CPU kernel of f32 is no oneDNN one."""


def find(graph: Graph, device: str) -> list[Found]:
    """Every convolution with something behind it, with the fused call or why there is none."""
    taken = {v.name for v in graph.values()}
    place = {n.name: k for k, n in enumerate(graph.nodes)}
    found: list[Found] = []
    for node in graph.nodes:
        if node.op != "convolution":
            continue
        chains = [c for c in _chains(graph, node) if c.does_more]
        if not chains:
            continue
        problems = [_problem(graph, c, device) for c in chains]
        fitting = next((c for c, p in zip(chains, problems, strict=True) if p is None), None)
        if fitting is None:
            names = tuple(n.name for n in chains[0].nodes)
            found.append(Declined(KIND, names, str(problems[0])))
            continue
        writer = Writer(f"{node.name}_folded", taken, node.origin, node.call)
        made = _call(fitting, writer)
        ends = _ends(graph, fitting)
        replaced = sorted((*ends, *fitting.nodes), key=lambda n: place[n.name])
        found.append(
            Alternative(
                KIND,
                tuple(n.name for n in replaced),
                (*sorted(ends, key=lambda n: place[n.name]), *writer.nodes),
                ((fitting.value.name, made),),
                _exactness(fitting, device),
                _note(fitting),
            )
        )
    return found


@dataclass(frozen=True)
class _Chain:
    """A convolution and what follows it, in the order of the fields.

    Attributes:
        value: the last node's output.
        bias: added to each channel: the convolution's own operand, or an addition behind it.
        norm: scale and shift of each channel.
        other: a residual.
    """

    nodes: tuple[Node, ...]
    value: Value
    bias: Value | None = None
    norm: tuple[Value, Value] | None = None
    other: Value | None = None
    activation: Named | None = None

    @property
    def convolution(self) -> Node:
        """The convolution itself."""
        return self.nodes[0]

    @property
    def is_whole(self) -> bool:
        """Whether it ends in the dtype it began in, not inside an operator of eager's."""
        return self.value.type.dtype is self.convolution.output.type.dtype

    @property
    def does_more(self) -> bool:
        """Whether it holds more than eager's own call can do."""
        return self.norm is not None or self.activation is not None

    @property
    def last(self) -> Named:
        """The activation, or that there is none."""
        return self.activation or NONE

    def extended(self, node: Node, **more: Any) -> _Chain:
        """The chain with one more node."""
        return replace(self, nodes=(*self.nodes, node), value=node.output, **more)


# ------------------------------------------------------------------ what follows


def _chains(graph: Graph, convolution: Node) -> list[_Chain]:
    """The chains that begin with a convolution, longest first."""
    bias = convolution.values[2] if len(convolution.values) == 3 else None
    chain = _Chain((convolution,), convolution.output, bias)
    found: list[_Chain] = []
    while chain.activation is None:
        reader = sole_reader(graph, chain.value)
        longer = None if reader is None else next(_longer(chain, reader), None)
        if longer is None:
            break
        chain = longer
        if chain.is_whole:
            found.append(chain)
    return list(reversed(found))


def _longer(chain: _Chain, node: Node) -> Iterator[_Chain]:
    """The chain with its reader, if a fused call could be it."""
    same = node.output.type.dtype is chain.value.type.dtype
    if node.op == "to" and node.output.type.dtype in (chain.convolution.output.type.dtype, f32):
        yield chain.extended(node)
    elif node.op == "multiply_add" and chain.norm is None and chain.other is None:
        first, *ends = node.inputs
        if first == chain.value and all(_by_channel(chain, e) for e in ends):
            scale, shift = node.values[1:]
            yield chain.extended(node, norm=(scale, shift))
    elif (added := _added(chain, node)) is not None and same:
        if _by_channel(chain, added):
            if chain.bias is None and chain.norm is None and chain.other is None:
                yield chain.extended(node, bias=added)
        elif chain.other is None and chain.is_whole and added.type == chain.value.type:
            yield chain.extended(node, other=added)
    elif (named := activation_of(node)) is not None and same and chain.is_whole:
        yield chain.extended(node, activation=named)


def _added(chain: _Chain, node: Node) -> Value | None:
    """The other operand of a plain addition."""
    if node.op != "add" or node.attr.get("alpha", 1) != 1 or len(node.values) != 2:
        return None
    a, b = node.values
    return b if a.name == chain.value.name else a


def _by_channel(chain: _Chain, x: Value | Scalar) -> bool:
    """Whether an operand has one number for each channel, the same everywhere else."""
    if not isinstance(x, Value):
        return False
    shape = chain.value.type.shape
    wanted = (shape[1], *(1 for _ in shape[2:]))
    return x.type.shape in (wanted, (1, *wanted))


def _ends(graph: Graph, chain: _Chain) -> list[Node]:
    """What computes scale and shift, and nothing else: part of both ways, so that both are priced
    with it."""
    channels = chain.value.type.shape[1]
    own: dict[str, Node] = {}
    waiting = [v.name for v in chain.norm or ()]
    while waiting:
        node = graph.producers.get(waiting.pop())
        if node is not None and node.name not in own and node.output.type.numel == channels:
            own[node.name] = node
            waiting += [v.name for v in node.values]
    inside = {n.name for n in chain.nodes} | own.keys()
    while True:
        shared = [name for name in own if not _read_inside(graph, name, inside)]
        if not shared:
            return list(own.values())
        for name in shared:
            del own[name]
            inside.discard(name)


def _read_inside(graph: Graph, name: str, inside: set[str]) -> bool:
    readers = graph.consumers.get(name, ())
    return name not in graph.needed and all(n.name in inside for n in readers)


# ------------------------------------------------------------------ whether there is a call


def _problem(graph: Graph, chain: _Chain, device: str) -> str | None:
    """Why there is no fused call for a chain."""
    at, dtype = chain.convolution.attr, chain.value.type.dtype
    name, _ = chain.last
    residual = chain.other is not None
    if at["transposed"]:
        return "the library has no fused call of a transposed convolution"
    if dtype not in DTYPES:
        return f"the library's fused convolution computes no {dtype.torch_name}"
    if residual and device == "cpu":
        return "the library copies a residual before it adds: a kernel of ours moves no more"
    if name not in CONVOLUTION[device]:
        ends = "nothing" if name == "none" else name
        return f"the library has no fused convolution that ends in {ends}"
    if not is_stored(graph, chain.value):
        return "only kernels of ours read the result: it need not be stored"
    if chain.value.type.strides != chain.convolution.output.type.strides:
        return "the result is not laid out as the convolution's"
    return _GROUND[device](chain)


def _ground_cpu(chain: _Chain) -> str | None:
    """Eager's own kernel, where that is not oneDNN's."""
    x, w = chain.convolution.values[:2]
    single = chain.convolution.attr["groups"] == 1 and x.type.shape[0] == 1
    small = isinstance(x.type.numel, int) and x.type.numel <= SMALL
    wide = all(isinstance(k, int) and k > 3 for k in w.type.shape[2:])
    if chain.value.type.dtype is f32 and single and small and not wide and chain.last != NONE:
        return "eager computes a single small image without oneDNN, which is faster"
    return None


def _ground_cuda(chain: _Chain) -> str | None:
    """What cuDNN's fused kernels take: measured, others cost more than a kernel of ours."""
    kind = chain.convolution.output.type
    if kind.rank < 4:
        return "the library has no fused convolution of one dimension"
    if kind.dtype.itemsize == 2 and kind.strides[1] != 1:
        return "the library's fused kernels of 16 bits lie channels last, and this lies otherwise"
    return None


_GROUND = {"cpu": _ground_cpu, "cuda": _ground_cuda}


def _exactness(chain: _Chain, device: str) -> Exactness:
    if chain.norm is not None and chain.value.type.dtype is f16:
        return Exactness.FINITE_ONLY
    return CONVOLUTION[device][chain.last[0]]


def _note(chain: _Chain) -> str:
    parts = ["norm folded into the weights"] * (chain.norm is not None)
    parts += ["residual"] * (chain.other is not None)
    parts += [chain.last[0]] * (chain.activation is not None)
    return f"{', '.join(parts)} in the library's convolution"


# ------------------------------------------------------------------ the call


def _call(chain: _Chain, writer: Writer) -> Value:
    """The folded weights, and the convolution with everything in it."""
    convolution = chain.convolution
    weight, bias = _folded(chain, writer)
    x, kind = convolution.values[0], convolution.output.type
    if chain.other is None and chain.last == NONE:
        assert bias is not None
        args = list(convolution.attr["args"])
        args[2] = Ref(2)
        attrs = {**convolution.attr, "args": tuple(args), "has_bias": True}
        return writer.library("convolution", (x, weight, bias), kind, **attrs)
    added = [v for v in (bias, chain.other) if v is not None]
    places = iter(range(2, 4))
    refs = [None if v is None else Ref(next(places)) for v in (bias, chain.other)]
    rank = kind.rank - 2
    window = {k: pair(convolution.attr[k], rank) for k in ("stride", "padding", "dilation")} | {
        "groups": convolution.attr["groups"]
    }
    name, numbers = chain.last
    return writer.library(
        "convolution_epilogue",
        (x, weight, *added),
        kind,
        target="onetrip.convolution_epilogue.default",
        args=(Ref(0), Ref(1), *refs, *window.values(), name, numbers),
        kwargs=(),
        has_bias=bias is not None,
        has_other=chain.other is not None,
        activation=name,
        numbers=numbers,
        transposed=False,
        output_padding=0,
        **window,
    )


def _folded(chain: _Chain, writer: Writer) -> tuple[Value, Value | None]:
    """Weight and bias: w * s and b * s + h, computed in f32 and rounded once.

    They lie in one buffer, the weight in its own order of dimensions: one kernel makes both.
    """
    weight, bias = chain.convolution.values[1], chain.bias
    channels = chain.value.type.shape[1]
    if bias is not None:
        bias = writer.viewed(bias, (channels,))
    if chain.norm is None:
        return weight, bias
    scale, shift = (writer.viewed(end, (channels,)) for end in chain.norm)
    if bias is not None:
        shift = writer("multiply_add", _as(bias, f32, writer), scale, shift)
    order = _outermost_first(weight.type)
    lying = writer.permuted(weight, order)
    along = writer.viewed(scale, [channels if d == 0 else 1 for d in order])
    scaled = writer("mul", _as(lying, f32, writer), along)
    count = weight.type.numel
    both = writer("cat", writer.viewed(scaled, (count,)), shift, dim=0)
    both = _as(both, weight.type.dtype, writer)
    first = writer("slice", both, dim=0, start=0, end=count, step=1)
    rest = writer("slice", both, dim=0, start=count, end=both.type.shape[0], step=1)
    back = [order.index(d) for d in range(len(order))]
    return writer.permuted(writer.viewed(first, lying.type.shape), back), rest


def _outermost_first(kind: TensorType) -> tuple[int, ...]:
    """Dimensions in the order in which a dense tensor's memory holds them."""
    if not is_dense(kind):
        return tuple(range(kind.rank))
    numbers: list[Any] = list(kind.strides)
    return tuple(sorted(range(kind.rank), key=lambda d: -numbers[d]))


def _as(x: Value, dtype: Any, writer: Writer) -> Value:
    return x if x.type.dtype is dtype else writer("to", x, dtype=dtype)
