"""The plan file: the only place that knows its JSON.

    Plan     ::= header, totals, Graph...
    Graph    ::= role, Group..., Boundary..., Buffer..., Line...
    Line     ::= cut | fuse | pin, of calls named by their keys (`keys.py`)

Bytes, microseconds and FLOPs are of one call, at the expected sizes. A name that only one run of
the capture gives (a node of the traced graph) never stands in a file. Must not know how a plan was
found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from ..base.errors import OnetripError
from ..base.files import File

KIND = "onetrip.plan"
FORMAT = 1
FILE = File(
    "the plan",
    f"the JSON that plan.save writes, format {FORMAT}",
    "check the path, or write it again: plan(model, args).save(path)",
)
Wish = Literal["cut", "fuse", "pin"]
Verdict = Literal["illegal", "over-limit", "unprofitable", "by-user", "extern"]
Count = Annotated[int, msgspec.Meta(ge=0)]
Microseconds = Annotated[float, msgspec.Meta(ge=0)]


class Evidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A figure against its limit: `limit` names the rule, `bound` is its value."""

    limit: str
    value: float
    unit: str
    bound: float | None = None


class IfFused(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Both sides of a boundary as one kernel; registers are unknown for library calls."""

    kernels: Count
    bytes: Count
    registers: Count | None
    spill_bytes: Count | None
    us: Microseconds


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one launch computes: a generated kernel, or a library call.

    Attributes:
        name: unique in its graph.
        kind: `pointwise`, `reduction`, `scan` or `scatter` of a generated kernel; `contraction`,
            `opaque`, ... or `extern` of a library call.
        anchor: whether it is a contraction, a convolution or attention.
        nodes: keys of its nodes, views that are read through included.
        ops: names of the eager calls it computes, in order; `layer_norm 5/9` is a part of one.
        modules, lines: where the user wrote them.
        reads, writes: bytes in device memory.
        registers, spill_bytes: of one thread; shared_bytes: of one block; None for a library call.
        occupancy: share of the threads that a multiprocessor can hold.
        source: whether those are `estimated` or `assembled`.
        intensity: FLOPs for each byte.
        bound_by: what the time is mostly spent on: `memory`, `compute` or `launch`.
    """

    name: str
    kind: str
    generated: bool
    anchor: bool
    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    modules: tuple[str, ...]
    lines: tuple[str, ...]
    reads: Count
    writes: Count
    registers: Count | None
    spill_bytes: Count | None
    shared_bytes: Count | None
    occupancy: float | None
    source: str
    flops: Count
    intensity: float
    estimated_us: Microseconds
    bound_by: str

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.reads + self.writes


class Boundary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why two groups are two.

    Attributes:
        producer, consumer: names of the groups; of `recomputed` the producer is a node's key.
        values: keys of the nodes whose results lie in memory between them.
        bytes: of these values.
        kept: `stored` in memory, or `recomputed` in the consumer.
        verdict: `illegal`, `over-limit`, `unprofitable`, `by-user` or `extern`.
        reason: a sentence with the figures filled in.
        remedy: how to change it.
        producer_line, consumer_line: `file.py:12`, where the user's code makes the first of these
            values, and where it reads it first; empty where that is unknown.
    """

    producer: str
    consumer: str
    values: tuple[str, ...]
    bytes: Count
    kept: Literal["stored", "recomputed"]
    verdict: Verdict
    code: str
    reason: str
    evidence: tuple[Evidence, ...] = ()
    if_fused: IfFused | None = None
    remedy: str = ""
    producer_line: str = ""
    consumer_line: str = ""


class Buffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value in memory: alive from launch `first` to launch `last`, both included.

    Attributes:
        node: key of the node that makes it.
        offset: in the arena, bytes; a formula where sizes are symbolic; None for memory of its own.
        where: `arena`, `output`, or `library` for what a library call allocates.
        reuses: the node whose buffer it takes over in place.
    """

    node: str
    bytes: Count
    offset: int | str | None
    first: Count
    last: Count
    where: str
    reuses: str | None = None


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A wish: calls that may not, or must, share a kernel.

    Attributes:
        by: the `user` of the plan, or the `model`'s own code, which asks again when it is compiled.
        strict: whether a wish of the model that cannot be met is an error.
    """

    kind: Wish
    calls: tuple[str, ...]
    by: Literal["user", "model"] = "user"
    strict: bool = False


class Refused(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a wish of the model that cannot be met, and why; see `Boundary` for the reason.

    Attributes:
        calls: keys of the calls that may not share a kernel.
    """

    kind: Wish
    calls: tuple[str, ...]
    verdict: Verdict
    code: str
    reason: str
    evidence: tuple[Evidence, ...] = ()
    remedy: str = ""


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What two ways took on a device.

    Attributes:
        as_is_us, replaced_us: medians; None for a way that could not be built or run.
        device: what they were timed on.
        failure: why a way has no time.
    """

    as_is_us: Microseconds | None
    replaced_us: Microseconds | None
    device: str
    failure: str = ""


class Alternative(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A second way to compute some calls, and why it was taken or not.

    Attributes:
        kind: which idea it is: `attention`, ...
        calls: keys of the calls that it replaces, or would.
        note: what it puts in their place.
        code: `taken`, `cost`, `measured`, `numerics`, `overlap`, `by-user`, `search`, or `no-form`
            where the calls look alike but have no second way.
        as_is_us, replaced_us: what both ways cost by estimate; None where that was not asked.
        measured: what the device said, which then decided; a compilation under the plan takes it
            as it stands.
    """

    kind: str
    calls: tuple[str, ...]
    note: str
    taken: bool
    code: str
    reason: str
    as_is_us: Microseconds | None = None
    replaced_us: Microseconds | None = None
    measured: Measured | None = None


class Together(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of groups that are launched as one kernel, and the time that this saves."""

    groups: tuple[str, ...]
    saved_us: Microseconds


class Graph(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One graph of a model.

    Attributes:
        name: `inference`, `forward` or `backward`, with a number where there are several.
        key: equal for graphs with equal calls.
        kernels: launches of one call, library calls counted.
        peak_bytes: most bytes of intermediates and outputs alive at once.
        output_bytes: of what the graph returns.
        bound_us: no plan takes less, given the stated kinds of kernels.
        bound_kind: `exact` or `floor`.
        eligible_bytes: moved by eager's calls outside contractions, convolutions and attention;
            `generated_bytes` by those of them that generated kernels take over.
        arena_bytes: reserved for intermediates; a formula where sizes are symbolic.
        lines: what user and model ask for; `refused` is what of the model's cannot be had.
        alternatives: second ways to compute some of its calls, taken or not.
        together: the launches that several groups share, in order.
        call_lines: where the user's code makes each call, by its key.
    """

    name: str
    role: str
    key: str
    kernels: Count
    traffic_bytes: Count
    peak_bytes: Count
    output_bytes: Count
    estimated_us: Microseconds
    bound_us: Microseconds
    bound_kind: Literal["exact", "floor"]
    eligible_bytes: Count
    generated_bytes: Count
    arena_bytes: int | str
    groups: tuple[Group, ...]
    boundaries: tuple[Boundary, ...]
    memory: tuple[Buffer, ...]
    lines: tuple[Line, ...] = ()
    refused: tuple[Refused, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    together: tuple[Together, ...] = ()
    call_lines: dict[str, str] = {}


class Totals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Figures of all graphs together: sums, but for the peak, which is one graph's at a time."""

    kernels: Count
    traffic_bytes: Count
    peak_bytes: Count
    estimated_us: Microseconds
    bound_us: Microseconds
    bound_kind: Literal["exact", "floor"]
    generated_share: float


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A plan file.

    Attributes:
        torch: the version that made the graphs.
    """

    kind: str
    format: int
    target: str
    search: str
    numerics: str
    training: bool
    totals: Totals
    graphs: tuple[Graph, ...]
    torch: str = ""


class _Header(msgspec.Struct):
    kind: str = ""
    format: int = 0


def encode(document: Document) -> str:
    """The text of a plan file."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def decode(text: str | bytes, where: str = "") -> Document:
    """The plan in a text.

    Args:
        where: the file it came from, for errors.

    Raises:
        OnetripError: no JSON, no plan, or a plan of another format.
    """
    header = FILE.decoded(text, lambda t: msgspec.json.decode(t, type=_Header), where)
    if header.kind != KIND:
        raise OnetripError(
            "this is not a plan",
            expected=f'a JSON object with "kind": "{KIND}"',
            found=f'"kind": "{header.kind}"' if header.kind else "an object without that kind",
            where=where,
            next_step="name a file written by plan.save or by `onetrip plan --json`",
        )
    if header.format != FORMAT:
        raise OnetripError(
            "the plan file has another format",
            expected=f"format {FORMAT}",
            found=f"format {header.format}",
            where=where,
            next_step="write it again with this version: plan(model, args).save(path)",
        )
    document = FILE.decoded(text, lambda t: msgspec.json.decode(t, type=Document), where)
    for graph in document.graphs:
        for line in graph.lines:
            _check_line(line, graph, where)
    return document


def _check_line(line: Line, graph: Graph, where: str) -> None:
    least = 1 if line.kind == "pin" else 2
    if len(line.calls) < least:
        raise OnetripError(
            f"a line of the plan is about too few calls: {line.kind}({', '.join(line.calls)})",
            expected=f"at least {least}",
            found=str(len(line.calls)),
            where=f"{where}, lines of the graph {graph.name}",
            next_step=f"plan.{line.kind}(...) writes such lines",
        )


def read(path: str | Path) -> Document:
    """The plan in a file.

    Raises:
        UsageError: no file can be read there, or it holds no JSON.
        OnetripError: what is there is no plan.
    """
    return decode(FILE.read(path), str(path))


def write(document: Document, path: str | Path) -> None:
    """Writes a plan file, whole or not at all: what was there before stays until then.

    Raises:
        UsageError: nothing can be written there.
    """
    FILE.write(path, encode(document))
