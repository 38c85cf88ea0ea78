"""Scopes of generated text: statements in SSA form, each placed once, as far out as it may stand.

A `Scopes` holds the nested blocks of one kernel while its text is written. A value is bound under
a key (an interned expression, or any other hashable) and lands in the outermost block in which
everything it needs is known; asking again for the key gives the name back. What reads something
that the kernel changes (a written buffer, an accumulator) stays in the block that asks for it and
is forgotten at the next change.

Must not know: any dialect, any operator, what a block's head means.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..base.sym import Sym
from ..ir.expr import Expr, Load, Local, children, walk


@dataclass(frozen=True)
class Needs:
    """What a value depends on.

    Attributes:
        free: axis variables and sizes.
        names: locals and buffers that it reads.
    """

    free: frozenset[Sym] = frozenset()
    names: frozenset[str] = frozenset()

    def __or__(self, other: Needs) -> Needs:
        return Needs(self.free | other.free, self.names | other.names)


class NeedsOf:
    """The needs of expressions, each found once: free axes, and the locals and buffers below."""

    def __init__(self) -> None:
        self._names: dict[Expr, frozenset[str]] = {}

    def __call__(self, e: Expr) -> Needs:
        """What e depends on."""
        if e not in self._names:
            for x in walk((e,)):
                own = (x.name,) if isinstance(x, Local) else ()
                own = (x.buffer,) if isinstance(x, Load) else own
                below = (self._names[c] for c in children(x))
                self._names[x] = frozenset(own).union(*below)
                _ = x.free  # found operands first, so that long chains need no deep recursion
        return Needs(e.free, self._names[e])


@dataclass
class _Block:
    """One open block: its own lines, what it binds and which values stand in it."""

    head: str
    tail: str
    bound: frozenset[Sym]
    lines: list[str] = field(default_factory=list)
    known: dict[Hashable, tuple[str, frozenset[str]]] = field(default_factory=dict)
    declared: set[str] = field(default_factory=set)


class Scopes:
    """The open blocks of a kernel's text, outermost first.

    Args:
        volatile: names of buffers that the kernel writes; `declare(..., changes=True)` adds
            accumulators.
        indent: one level of indentation.
    """

    def __init__(self, volatile: Iterable[str] = (), indent: str = "  ") -> None:
        self._volatile = set(volatile)
        self._indent = indent
        self._stack = [_Block("", "", frozenset())]
        self._count: dict[str, int] = {}

    def fresh(self, prefix: str) -> str:
        """A new name `prefix0`, `prefix1`, ..."""
        number = self._count.get(prefix, 0)
        self._count[prefix] = number + 1
        return f"{prefix}{number}"

    def line(self, text: str) -> None:
        """Appends a statement to the innermost block."""
        self._stack[-1].lines.append(text)

    def declare(self, name: str, changes: bool = False) -> None:
        """Says that `name` exists from here on in the innermost block."""
        self._stack[-1].declared.add(name)
        if changes:
            self._volatile.add(name)

    def is_visible(self, name: str) -> bool:
        """Whether a declared name can be used in the innermost block."""
        return any(name in block.declared for block in self._stack)

    def declared_within(self, axis: Sym | None) -> set[str]:
        """Names declared in or inside the block that binds `axis`."""
        for depth, block in enumerate(self._stack):
            if axis in block.bound:
                return set[str]().union(*(b.declared for b in self._stack[depth:]))
        return set()

    @contextmanager
    def block(self, head: str, tail: str = "", bound: Iterable[Sym] = ()) -> Iterator[None]:
        """A nested block; `bound` are the axis variables that its head binds."""
        block = _Block(head, tail, frozenset(bound))
        self._stack.append(block)
        yield
        self._stack.pop()
        outer = self._stack[-1].lines
        pad = self._indent if block.head or block.tail else ""
        outer.extend([block.head] if block.head else [])
        outer.extend(pad + text if text else text for line in block.lines
                     for text in line.split("\n"))  # fmt: skip
        outer.extend([block.tail] if block.tail else [])

    def bind(
        self,
        key: Hashable,
        needs: Needs,
        render: Callable[[str], str],
        prefix: str = "v",
    ) -> str:
        """The name of the value under `key`; `render(name)` writes its statement when it is new.

        Everything that the statement names must have been bound before.
        """
        fixed = not (needs.names & self._volatile)
        found = self._find(key, fixed)
        if found is not None:
            return found
        name = self.fresh(prefix)
        block = self._stack[self.depth(needs) if fixed else -1]
        block.lines.append(render(name))
        block.known[key] = (name, needs.names)
        return name

    def changed(self, name: str) -> None:
        """Forgets every value that read the buffer or accumulator `name`."""
        self._volatile.add(name)
        for block in self._stack:
            block.known = {k: v for k, v in block.known.items() if name not in v[1]}

    @property
    def text(self) -> str:
        """Everything written to the outermost block."""
        return "\n".join(self._stack[0].lines)

    def _find(self, key: Hashable, fixed: bool) -> str | None:
        for block in self._stack if fixed else self._stack[-1:]:
            if key in block.known:
                return block.known[key][0]
        return None

    def depth(self, needs: Needs) -> int:
        """How far in (0 is outermost) a value with these needs must stand."""
        for depth in range(len(self._stack) - 1, 0, -1):
            block = self._stack[depth]
            if needs.free & block.bound or needs.names & block.declared:
                return depth
        return 0
