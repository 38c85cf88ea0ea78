"""Several kernels as one launch: each is a function, and a tree of tests gives it its programs.

    @triton.jit
    def packed(k0_a0, k0_a1, k1_a0, k1_a1, ALIGNED: tl.constexpr):
        pid = tl.program_id(0)
        if pid < 64:
            silu_mul(pid, k0_a0, k0_a1, ALIGNED)
        else:
            silu_mul(pid - 64, k1_a0, k1_a1, ALIGNED)

Equal kernels are one function, compiled once however often it is called. What is known of a
launch's addresses ends at a call, so the functions are told whether theirs are aligned.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from ..base.errors import Unsupported
from ..ir.kernel import Launched, Packed, spans
from .triton import Function, TritonText, emit, function_of, header, module_text

ALIGNED = "ALIGNED"
BYTES = 16
"""Alignment of which `ALIGNED` speaks."""


def emit_launched(kernel: Launched, dialect: str) -> TritonText:
    """The module text of what one launch runs.

    Raises:
        Unsupported: as `emit`; or packed kernels have symbolic sizes.
    """
    return _emit_packed(kernel, dialect) if isinstance(kernel, Packed) else emit(kernel, dialect)


def _emit_packed(packed: Packed, dialect: str) -> TritonText:
    functions = {k: function_of(k, called=True) for k in dict.fromkeys(packed.parts)}
    ends = list(accumulate(_programs(functions[k]) for k in packed.parts))
    names = [b.name for b in packed.buffers]
    calls = [(k.name, names[span]) for k, span in spans(packed)]
    parameters = ", ".join([*names, f"{ALIGNED}: tl.constexpr"])
    tree = "\n".join(_tree(calls, ends, 0, len(calls), "    "))
    texts = [_called(f) for f in functions.values()]
    texts.append(
        f"@triton.jit\ndef {packed.name}({parameters}):\n    pid = tl.program_id(0)\n{tree}\n"
    )
    made = {name: text for f in functions.values() for name, text in f.made.items()}
    heads = [f"# {packed.name}: {len(calls)} kernels in one launch\n", *map(header, functions)]
    types = [t for k in packed.parts for t in functions[k].types]
    return TritonText(
        "".join(heads) + module_text(made.values(), "\n\n\n".join(texts), dialect),
        packed.name,
        tuple(zip(names, types, strict=True)),
        (ends[-1],),
        max(k.warps for k in packed.parts),
        max(k.stages for k in packed.parts),
        (ALIGNED,),
        dialect=dialect,
        resident=max(k.resident for k in packed.parts),
    )


def _programs(f: Function) -> int:
    if f.constants or not isinstance(f.programs, int):
        raise Unsupported(
            f"{f.kernel.name} shares a launch but has symbolic sizes",
            expected="kernels of fixed sizes",
            found=", ".join(s.name for s in f.kernel.sizes),
            next_step="launch it by itself",
        )
    return f.programs


def _called(f: Function) -> str:
    """A function that a launch calls with the number of its program."""
    aligned = [f"        {name} = tl.multiple_of({name}, {BYTES})" for name in f.parameters]
    known = "\n".join([f"    if {ALIGNED}:", *aligned]) + "\n" if aligned else ""
    parameters = ", ".join(["pid", *f.parameters, f"{ALIGNED}: tl.constexpr"])
    return f"@triton.jit(noinline=True)\ndef {f.kernel.name}({parameters}):\n{known}{f.body}\n"


def _tree(
    calls: Sequence[tuple[str, Sequence[str]]],
    ends: Sequence[int],
    low: int,
    high: int,
    indent: str,
) -> list[str]:
    """Halves of the calls under a test of the program's number, down to single ones."""
    if high - low == 1:
        name, arguments = calls[low]
        start = f" - {ends[low - 1]}" if low else ""
        return [f"{indent}{name}({', '.join([f'pid{start}', *arguments, ALIGNED])})"]
    middle = (low + high) // 2
    return [
        f"{indent}if pid < {ends[middle - 1]}:",
        *_tree(calls, ends, low, middle, indent + "    "),
        f"{indent}else:",
        *_tree(calls, ends, middle, high, indent + "    "),
    ]
