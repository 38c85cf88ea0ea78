"""Kernels to one C++ translation unit.

    Kernel  -> static int kernel(void* const* b, const int64_t* sz, int threads)
    Segment -> extern "C" int segment(void* const* slots, const int64_t* sizes, int threads)

A segment calls its kernels one after the other, so a run of kernels between two library calls is
one foreign call. The answer is 0, 1 (integer division by zero) or 2 (index out of range); behind
one that is not 0, `onetrip_failure` tells which launch it was and the index. Output may stand in
the memory of an input that is read at the same elements only, so no pointer is declared `restrict`;
nothing is lost by it, because every value is read once where it is needed.
Must not know: how kernels are scheduled, how a unit is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..base.sym import Dim, Sym, add, mul, render
from ..base.text import bytes_text
from ..ir.kernel import Kernel, Loop, Mapping
from ..ir.nest import Access
from .cpp_body import Body
from .cpp_index import dim_text
from .cpp_values import Place

PREFIX: dict[Access, str] = {Access.READ: "in", Access.WRITE: "out", Access.UPDATE: "io"}
FLOPS_PER_BYTE = 4
"""Arithmetic that takes about as long as one byte of traffic; decides how many threads start."""


@dataclass(frozen=True)
class Segment:
    """Kernels that run one after the other in a single foreign call.

    Attributes:
        name: the exported function.
        launches: (kernel name, slot of each buffer, slot of each size) in order.
    """

    name: str
    launches: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]


def emit_unit(
    kernels: Sequence[Kernel], segments: Sequence[Segment], *, provenance: bool = True
) -> str:
    """The text of a translation unit; the prelude is included before it.

    Kernels that differ in nothing but their names are written once. `provenance=False` leaves out
    every comment, so that equal programs have equal text wherever they came from.
    """
    written: dict[str, str] = {}
    alias: dict[str, str] = {}
    parts: list[str] = []
    for kernel in kernels:
        text = kernel_text(kernel)
        alias[kernel.name] = written.setdefault(text, kernel.name)
        if provenance:
            parts.append(header(kernel, alias[kernel.name]))
        if alias[kernel.name] == kernel.name:
            parts.append(f"static int {kernel.name}{text}\n")
    parts += [_segment_text(segment, alias) for segment in segments]
    return "\n".join(parts)


def header(kernel: Kernel, shares: str) -> str:
    """Comment lines: operators, source lines, bytes and FLOPs of a kernel."""
    facts = kernel.facts
    ops = f" of {', '.join(facts.ops)}" if facts.ops else ""
    lines = [f"{kernel.name}: {kernel.family}{ops}"]
    moved = f"reads {_bytes(facts.bytes_read)}, writes {_bytes(facts.bytes_written)}"
    lines.append(f"  {moved}, {render(facts.flops)} FLOP")
    lines += [f"  from {origin}" for origin in facts.origins]
    names = zip(kernel.buffers, _names(kernel).values(), strict=True)
    lines.append("  " + ", ".join(f"{place.name} {b.name}" for b, place in names))
    if shares != kernel.name:
        lines.append(f"  same text as {shares}")
    return "\n".join(f"// {line}" for line in lines)


def _bytes(count: Dim) -> str:
    return bytes_text(count) if isinstance(count, int) else f"{render(count)} B"


def _names(kernel: Kernel) -> dict[str, Place]:
    """C++ names by position, so that kernels that differ in names of buffers only are equal."""
    count = dict.fromkeys(PREFIX.values(), 0)
    places = {}
    for b in kernel.buffers:
        prefix = PREFIX[b.access]
        places[b.name] = Place(f"{prefix}{count[prefix]}", b, b.access is not Access.READ)
        count[prefix] += 1
    return places


def kernel_text(kernel: Kernel) -> str:
    """Parameters and body of a kernel's function."""
    sizes: dict[Sym, str] = {s: f"n{k}" for k, s in enumerate(kernel.sizes)}
    places = _names(kernel)
    threaded = any(isinstance(s, Loop) and s.mapping is Mapping.THREADS for s in kernel.body)
    body = Body(kernel, sizes, places)
    body.write(kernel.body, threaded)
    faults = body.values.faults
    inside = [_pointer(p, k) for k, p in enumerate(places.values())]
    inside += ["ot::faults fault;"] if faults else []
    inside += body.scopes.text.split("\n") if body.scopes.text else []
    counts = [f"const int64_t {name} = sz[{k}];" for k, name in enumerate(sizes.values())]
    lines = [*counts, *_no_work(kernel, sizes), *body.shared]
    if threaded:
        lines += _region(inside, _work(kernel, sizes), faults)
    else:
        answer = "return fault.first.code ? ot::failed(fault.first) : 0;" if faults else "return 0;"
        lines += [*inside, answer]
    joined = "\n".join(f"  {line}" if line else line for line in lines)
    return f"(void* const* b, const int64_t* sz, int threads) {{\n{joined}\n}}"


def _pointer(p: Place, position: int) -> str:
    kind = f"{'' if p.writable else 'const '}{p.element}*"
    return f"{kind} const {p.name} = ({kind})b[{position}];"


def _region(inside: list[str], work: str, faults: bool) -> list[str]:
    """The parallel region: pointers and invariants are each thread's own."""
    return [
        *(["ot::findings found;"] if faults else []),
        f"const int team = ot::team(threads, {work});",
        "#pragma omp parallel num_threads(team) if (team > 1)",
        "{",
        *(f"  {line}" if line else line for line in inside),
        *(["  if (fault.first.code) found.add(fault.first);"] if faults else []),
        "}",
        "return found.first.code ? ot::failed(found.first) : 0;" if faults else "return 0;",
    ]


def _work(kernel: Kernel, sizes: dict[Sym, str]) -> str:
    """Bytes of all buffers, and arithmetic in units of them."""
    total: Dim = 0
    for b in kernel.buffers:
        total = add(total, mul(b.type.numel, b.type.dtype.itemsize))
    work = dim_text(total, lambda atom: sizes[atom])
    flops = dim_text(kernel.facts.flops, lambda atom: sizes[atom])
    if isinstance(total, int) and isinstance(kernel.facts.flops, int):
        return str(total + kernel.facts.flops // FLOPS_PER_BYTE)
    return f"{work} + ({flops}) / {FLOPS_PER_BYTE}"


def _no_work(kernel: Kernel, sizes: dict[Sym, str]) -> list[str]:
    """An early return where every output may turn out empty at run time."""
    outputs = [b.type.numel for b in kernel.buffers if b.access is not Access.READ]
    if not outputs or any(isinstance(n, int) for n in outputs):
        return []
    tests = [f"({dim_text(n, lambda atom: sizes[atom])}) == 0" for n in outputs]
    return [f"if ({' && '.join(tests)}) return 0;"]


def _segment_text(segment: Segment, alias: dict[str, str]) -> str:
    lines = [f'extern "C" __attribute__((visibility("default"))) int {segment.name}'
             "(void* const* slots, const int64_t* sizes, int threads) {"]  # fmt: skip
    for position, (kernel, slots, sizes) in enumerate(segment.launches):
        b = ", ".join(f"slots[{k}]" for k in slots) or "nullptr"
        sz = ", ".join(f"sizes[{k}]" for k in sizes) or "0"
        lines += [
            "  {",
            f"    void* const b[] = {{{b}}};",
            f"    const int64_t sz[] = {{{sz}}};",
            f"    if (const int error = {alias[kernel]}(b, sz, threads)) "
            f"return ot::failed_at({position}, error);",
            "  }",
        ]
    return "\n".join([*lines, "  return 0;", "}\n"])
