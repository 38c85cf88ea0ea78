"""Names: keys that survive a change of the traced names, and what a user's name means."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onetrip.base.dtype import BY_NAME
from onetrip.base.errors import UsageError
from onetrip.ir.graph import Graph, Node, Origin, Value
from onetrip.ir.types import TensorType
from onetrip.passes.alternatives import Alternative, Exactness
from onetrip.plan.constraints import Constraints, Refusal
from onetrip.plan.decision import decide
from onetrip.report.keys import keys_of, named, resolve, short
from onetrip.report.lines import added, constraints_of, raise_all, refused, wish
from onetrip.report.schema import Line

Call = tuple[str, str, tuple[str, ...]]
"""Module, ATen name and the traced names of the nodes that the call became."""
NET: tuple[Call, ...] = (
    ("enc.0.mlp", "aten.gelu.default", ("gelu",)),
    ("enc.0.norm", "aten.native_layer_norm.default", ("n_e0", "n_e1", "n")),
    ("enc.1.mlp", "aten.gelu.default", ("gelu_1",)),
    ("enc.1", "aten.add.Tensor", ("add",)),
)


def graph(calls: tuple[Call, ...] = NET, width: int = 4) -> Graph:
    kind = TensorType.dense(BY_NAME["f32"], (2, width))
    value = first = Value("x", kind)
    nodes: list[Node] = []
    for number, (module, target, names) in enumerate(calls):
        for name in names:
            out = Value(name, kind)
            origin = Origin(module, "net.py:1", target)
            nodes.append(Node(target.split(".")[1], (value,), (out,), (), origin, number))
            value = out
    return Graph((first,), tuple(nodes), (value,))


ONE = [("inference", keys_of(graph()))]
BOTH = [("forward", keys_of(graph())), ("backward", keys_of(graph(NET[:1])))]


def test_keys_do_not_depend_on_traced_names() -> None:
    renamed = tuple((m, t, tuple(f"{n}_x" for n in names)) for m, t, names in NET)
    assert [c.key for c in keys_of(graph(renamed)).calls] == [c.key for c in ONE[0][1].calls]
    assert keys_of(graph(renamed)).fingerprint == ONE[0][1].fingerprint


def test_a_node_that_an_alternative_keeps_belongs_to_its_own_call() -> None:
    """As the folded norm keeps what makes its factors: a name would mean two calls."""
    plain = graph()
    kept, last = plain.nodes[1], plain.nodes[3]
    new = replace(kept, outputs=(Value("folded", kept.output.type),))
    gone, values = (kept.name, last.name), ((last.name, new.output),)
    way = Alternative("fold", gone, (kept, new), values, Exactness.BITWISE, "")
    keys = keys_of(plain, (way,))
    assert keys.call_of[kept.name].names == ("n_e0", "n_e1", "n")
    assert [c.names for c in keys.calls[keys.own :]] == [("folded",)]
    assert len({n.name for n in keys.nodes}) == len(keys.nodes)


def test_keys_depend_on_shapes_and_count_calls_of_one_module() -> None:
    wide, narrow = keys_of(graph(width=8)).calls[0].key, ONE[0][1].calls[0].key
    assert wide != narrow
    assert wide.split("@")[0] == narrow.split("@")[0] == "enc.0.mlp:gelu#0"
    twice = keys_of(graph((NET[0], ("enc.0.mlp", "aten.gelu.default", ("again",)))))
    assert [c.key.split("@")[0] for c in twice.calls] == ["enc.0.mlp:gelu#0", "enc.0.mlp:gelu#1"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("layer_norm", ("n_e0", "n_e1", "n")),
        ("add", ("add",)),
        ("enc.0.mlp:gelu", ("gelu",)),
        ("enc.0.mlp.gelu", ("gelu",)),
        ("0.mlp:gelu", ("gelu",)),
        ("enc.1.mlp:gelu#0", ("gelu_1",)),
        ("gelu_1", ("gelu_1",)),
        ("n_e1", ("n_e1",)),
        ("n", ("n_e0", "n_e1", "n")),
        (ONE[0][1].calls[1].key, ("n_e0", "n_e1", "n")),
        (f"{ONE[0][1].calls[1].key}[1]", ("n_e1",)),
    ],
)
def test_what_a_name_means(text: str, names: tuple[str, ...]) -> None:
    assert resolve(text, ONE).names == names


def test_an_ambiguous_name_lists_its_matches() -> None:
    with pytest.raises(UsageError, match="2 calls") as caught:
        resolve("gelu", ONE)
    assert all(c.key in str(caught.value) for c in ONE[0][1].calls if c.op == "gelu")


def test_an_unknown_name_lists_the_operators() -> None:
    with pytest.raises(UsageError, match="no call") as caught:
        resolve("mlp", ONE)
    assert "gelu, layer_norm, add" in str(caught.value)


def test_a_module_must_match_whole_parts() -> None:
    with pytest.raises(UsageError, match="no call"):
        resolve("lp:gelu", ONE)


def test_a_graph_can_be_named() -> None:
    assert resolve("backward/gelu", BOTH).graph == 1
    with pytest.raises(UsageError, match="backward/enc"):
        resolve("gelu", BOTH)


def test_a_wish_is_about_different_calls_of_one_graph() -> None:
    assert wish("cut", ("layer_norm", "add"), ONE)[1].kind == "cut"
    with pytest.raises(UsageError, match="no two calls of one graph"):
        wish("cut", ("backward/gelu", "add"), BOTH)
    with pytest.raises(UsageError, match="no two calls of one graph"):
        wish("fuse", ("add", "add"), ONE)
    with pytest.raises(UsageError, match="no two calls of one graph"):
        wish("pin", (), ONE)


def test_the_last_wish_about_two_calls_holds() -> None:
    cut, fuse = Line("cut", ("a", "b")), Line("fuse", ("b", "a"))
    pin = Line("pin", ("a", "b"))
    assert added((cut, pin), fuse) == (pin, fuse)
    assert added((cut,), cut) == (cut,)


def test_lines_become_pairs_of_nodes() -> None:
    keys = ONE[0][1]
    norm, gelu = keys.calls[1].key, keys.calls[2].key
    lines = (
        Line("cut", (norm, gelu)),
        Line("pin", (norm, gelu)),
        Line("fuse", (f"{norm}[2]", gelu)),
    )
    cuts = (("n_e0", "gelu_1"), ("n_e1", "gelu_1"), ("n", "gelu_1"))
    pins = (("n_e0", "n_e1", "n", "gelu_1"),)
    assert constraints_of(lines, keys) == Constraints(cuts, (("n", "gelu_1"),), pins)


def test_fused_calls_take_along_those_between() -> None:
    keys = ONE[0][1]
    line = Line("fuse", (keys.calls[0].key, keys.calls[2].key))
    whole = ["gelu", "n_e0", "n_e1", "n", "gelu_1"]
    pairs = constraints_of((line,), keys).fuse
    assert [b for a, b in pairs if a == "gelu"] == whole[1:]
    assert len(pairs) == 10


def test_a_line_about_a_call_that_is_gone_is_named() -> None:
    line = Line("cut", (ONE[0][1].calls[0].key, ONE[0][1].calls[3].key))
    with pytest.raises(UsageError, match=r"line cut\(enc\.0\.mlp:gelu#0") as caught:
        constraints_of((line,), keys_of(graph(width=8)))
    assert "shapes differ" in str(caught.value)
    with pytest.raises(UsageError, match="no call of that module"):
        constraints_of((line,), keys_of(graph(NET[1:])))


def test_a_refused_wish_says_why() -> None:
    keys = ONE[0][1]
    line = Line("fuse", (keys.calls[1].key, keys.calls[2].key))
    why = decide("user-pin", node="gelu_1")
    with pytest.raises(UsageError, match=r"fuse\(enc\.0\.norm") as caught:
        raise_all([*refused((Refusal("fuse", ("n", "gelu_1"), why),), (line,), keys)])
    assert "pinned" in str(caught.value)
    assert not [*refused((), (line,), keys)]


def test_sentences_name_calls_and_keep_their_own_words() -> None:
    sentence = "n_e1 and gelu_1 have no iteration space in common"
    assert named(sentence, ONE[0][1]) == (
        "enc.0.norm:layer_norm[1] and enc.1.mlp:gelu have no iteration space in common"
    )
    # A node that is called like a word of the sentences is left alone.
    reads = keys_of(graph((("m", "aten.read.default", ("memory",)),)))
    assert named("the value in memory between them", reads) == "the value in memory between them"


def test_short_keys() -> None:
    assert short("m:add#0@12ab34cd[2]") == "m:add[2]"
    assert short("m:add#3@12ab34cd") == "m:add#3"
    assert short("g0_add") == "g0_add"
