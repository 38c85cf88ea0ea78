"""Names that survive from one capture to the next, and what a user's name means.

    key  ::= module ":" operator "#" ordinal "@" shapes      one eager call
    node ::= key | key "[" number "]"                        one of the nodes that a call became

`ordinal` counts the calls of one operator in one module; `shapes` is a hash of what goes in and
comes out. Names of traced nodes shift with every edit of a model and are no part of a key. Must
not know groups or files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..base.errors import UsageError
from ..base.lazy import cached_property
from ..ir.graph import Graph, Node
from ..ir.types import TensorType
from ..passes.alternatives import Alternative
from ..plan.decision import REASONS

_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?!\.?\w)")
"""A word by itself: no part of `space.operator.overload`."""
_NUMBER = re.compile(r"(?<![\w])\d+(?![\w])")
_TEMPLATE_WORDS = frozenset(
    word for r in REASONS.values() for t in (r.sentence, r.remedy) for word in _WORD.findall(t)
)
"""Words of the planner's sentences themselves: never taken for the name of a node."""
MOST_LISTED = 12
"""Names that an error lists."""


ALIASES: dict[str, tuple[str, ...]] = {
    "addmm": ("linear",),
    "mm": ("linear", "matmul"),
    "bmm": ("matmul",),
    "attention": ("scaled_dot_product_attention",),
    "convolution": ("conv1d", "conv2d", "conv3d"),
}
"""What users call an operator that capture knows by another name."""


def call_name(node: Node) -> str:
    """The operator as the user knows it: `aten.native_layer_norm.default` -> `layer_norm`."""
    parts = node.origin.call.split(".")
    name = parts[1] if len(parts) > 1 else node.op
    return name.strip("_").removeprefix("native_")


def short(key: str) -> str:
    """A key without the hash of its shapes: `encoder.layer.0:gelu`, `:add#1`."""
    stem, _, rest = key.partition("@")
    node = rest[rest.index("[") :] if "[" in rest else ""
    return stem.removesuffix("#0") + node


def layerless(key: str) -> str:
    """A key without the numbers of layers in its module's path: equal for copies of a layer."""
    module, _, rest = key.rpartition(":")
    return f"{without_layers(module)}:{rest}"


def without_layers(path: str) -> str:
    """A module's path, or a part of it, with `*` for the numbers of layers."""
    return _NUMBER.sub("*", path)


def layers(module: str) -> list[int]:
    """The numbers of layers in a module's path."""
    return [int(text) for text in _NUMBER.findall(module)]


@dataclass(frozen=True)
class Call:
    """One call that eager makes, as the nodes it became.

    Attributes:
        key: see the head of this file.
        op: the operator's name; it answers to its `ALIASES` too.
        module: path of the module that makes the call.
        nodes: in graph order.
    """

    key: str
    op: str
    module: str
    nodes: tuple[Node, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of its nodes."""
        return tuple(n.name for n in self.nodes)

    @cached_property
    def words(self) -> frozenset[str]:
        """What this call answers to, apart from names of nodes."""
        plain, whole = self.key.split("@")[0], self.key
        own = {self.op, *ALIASES.get(self.op, ()), whole, plain, plain.rpartition(":")[2]}
        if len(self.nodes) == 1:
            own.add(self.nodes[0].op)
        return frozenset(own)

    def answers(self, text: str) -> bool:
        """Whether a name is this call's: operator, key, or (the end of) its module and operator."""
        if text in self.words:
            return True
        for mark in (":", "."):
            path, _, op = text.rpartition(mark)
            if path and op in self.words and f".{self.module}".endswith(f".{path}"):
                return True
        return False


@dataclass(frozen=True)
class Keys:
    """The calls of a graph by key, and its nodes' keys.

    Attributes:
        calls: the graph's own in order, then those of its alternatives, taken or not.
        nodes: of the same, in an order in which every value is made before it is used.
        own: how many calls are the graph's own.
        stands_for: the node of an alternative that may make a value of the graph, by its name.
    """

    calls: tuple[Call, ...]
    nodes: tuple[Node, ...]
    own: int
    stands_for: Mapping[str, str]

    @cached_property
    def by_key(self) -> dict[str, Call]:
        """Calls by their key."""
        return {c.key: c for c in self.calls}

    @cached_property
    def by_node(self) -> dict[str, str]:
        """Keys of nodes by the node's name."""
        found: dict[str, str] = {}
        for call in self.calls:
            for k, node in enumerate(call.nodes):
                key = call.key if len(call.nodes) == 1 else f"{call.key}[{k}]"
                found.update({v.name: key for v in node.outputs} | {node.name: key})
        return found

    @cached_property
    def by_name(self) -> dict[str, Node]:
        """Nodes by their name."""
        return {n.name: n for n in self.nodes}

    @cached_property
    def call_of(self) -> dict[str, Call]:
        """The call of each node, by the node's name."""
        return {name: c for c in self.calls for name in c.names}

    def between(self, names: Iterable[str]) -> tuple[str, ...]:
        """These nodes and all nodes on paths between them, in graph order."""
        given = set(names)
        below, above = set(given), set(given)
        for node in self.nodes:
            if not below.isdisjoint(self._makers(node)):
                below.add(node.name)
        for node in reversed(self.nodes):
            if node.name in above:
                above.update(self._makers(node))
        return tuple(n.name for n in self.nodes if n.name in below and n.name in above)

    def _makers(self, node: Node) -> list[str]:
        """The nodes that make what a node reads, those of alternatives too."""
        names = [v.name for v in node.values]
        return [by[n] for n in names for by in (self.maker, self.stands_for) if n in by]

    @cached_property
    def maker(self) -> dict[str, str]:
        """The node that makes each value."""
        return {v.name: n.name for n in self.nodes for v in n.outputs}

    @cached_property
    def fingerprint(self) -> str:
        """Equal for graphs with equal calls."""
        return _digest(sorted(c.key for c in self.calls[: self.own]))


def named(sentence: str, keys: Keys) -> str:
    """A planner's sentence in which calls stand by module, operator and ordinal."""
    return _WORD.sub(lambda m: _label(m[0], keys.by_node), sentence)


def _label(word: str, by_node: Mapping[str, str]) -> str:
    key = None if word in _TEMPLATE_WORDS else by_node.get(word)
    return word if key is None else short(key)


def keys_of(graph: Graph, alternatives: Sequence[Alternative] = ()) -> Keys:
    """The calls of a graph, in order of their first node, and those of its alternatives; a node
    that an alternative keeps is the graph's own."""
    count: dict[tuple[str, str], int] = {}
    own = _calls(graph.nodes, count)
    kept = {n.name for n in graph.nodes}
    new = [[n for n in a.made if n.name not in kept] for a in alternatives]
    made = [c for nodes in new for c in _calls(nodes, count)]
    maker = {v.name: n.name for a in alternatives for n in a.made for v in n.outputs}
    stands_for = {
        name: maker[value.name]
        for a in alternatives
        for name, value in a.values
        if value.name in maker
    }
    behind: dict[str, list[Node]] = {}
    for a, added in zip(alternatives, new, strict=True):
        behind.setdefault(a.nodes[-1], []).extend(added)
    nodes = tuple(m for n in graph.nodes for m in (n, *behind.get(n.name, ())))
    return Keys((*own, *made), nodes, len(own), stands_for)


def _calls(nodes: Sequence[Node], count: dict[tuple[str, str], int]) -> list[Call]:
    """The calls of some nodes; `count` says how many each module had before, and is kept up."""
    members: dict[tuple[int, str], list[Node]] = {}
    for node in nodes:
        group = (node.call, "" if node.call >= 0 else node.name)
        members.setdefault(group, []).append(node)
    calls: list[Call] = []
    for of_call in members.values():
        op, module = call_name(of_call[0]), of_call[0].origin.module
        ordinal = count.get((module, op), 0)
        count[module, op] = ordinal + 1
        key = f"{module}:{op}#{ordinal}@{_shapes(of_call)}"
        calls.append(Call(key, op, module, tuple(of_call)))
    return calls


def _shapes(nodes: Sequence[Node]) -> str:
    """A hash of the types that go in and of those that come out last."""
    inside = {v.name for n in nodes for v in n.outputs}
    into = (v.type for n in nodes for v in n.values if v.name not in inside)
    return _digest_of((*into, *(v.type for v in nodes[-1].outputs)))


@lru_cache(maxsize=1 << 12)
def _digest_of(types: tuple[TensorType, ...]) -> str:
    """Equal layers have calls on equal types."""
    return _digest(map(str, types))


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


# ------------------------------------------------------------------ what a user's name means


@dataclass(frozen=True)
class Found:
    """What a name means: nodes of one graph, and the call they belong to."""

    graph: int
    call: Call
    names: tuple[str, ...]


def resolve(text: str, graphs: Sequence[tuple[str, Keys]]) -> Found:
    """The one call or node that a name means.

    Args:
        text: an operator, a node's name, a module path and operator (`encoder.0.mlp:gelu` or with
            a dot), or a key; `backward/gelu` looks in one graph.
        graphs: names of the graphs and their keys.

    Raises:
        UsageError: the name means nothing, or several things, which are then listed.
    """
    if not isinstance(text, str):
        raise UsageError("a call is named by a text", expected="as in 'gelu'", found=repr(text))
    matches = [f for k, (name, keys) in enumerate(graphs) for f in _matches(text, k, name, keys)]
    if len(matches) == 1:
        return matches[0]
    one = len(graphs) == 1
    if matches:
        found = [m.call.key if one else f"{graphs[m.graph][0]}/{m.call.key}" for m in matches]
        raise UsageError(
            f"{text!r} means {len(matches)} calls",
            expected="the name of one",
            found=listed(found),
            next_step="give one of these, or its module path and operator",
        )
    known = dict.fromkeys(c.op for _, keys in graphs for c in keys.calls)
    raise UsageError(
        f"no call is named {text!r}",
        expected=f"an operator, a node or module:operator; the operators are {listed(known)}",
        found=repr(text),
        next_step="print(plan) shows the operators of every group",
    )


def _matches(text: str, number: int, graph: str, keys: Keys) -> list[Found]:
    prefix, slash, rest = text.partition("/")
    if slash:
        if prefix != graph:
            return []
        text = rest
    calls = [Found(number, c, c.names) for c in keys.calls if c.answers(text)]
    if calls:
        return calls
    call = keys.call_of.get(text)
    if call is not None:
        return [Found(number, call, call.names if call.names[-1] == text else (text,))]
    node = next((n for n, key in keys.by_node.items() if key == text), None)
    return [Found(number, keys.call_of[node], (node,))] if node in keys.call_of else []


def listed(names: Iterable[str]) -> str:
    """Names for an error: the first ones, and how many more there are."""
    found = list(names)
    more = len(found) - MOST_LISTED
    return ", ".join(found[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
