"""Where each statement of a generated Triton kernel stands.

A scope is the body of the kernel or of one loop. A value is bound once, in the outermost scope in
which everything it depends on is bound; what a store or an assignment may change is bound where it
is used and forgotten when it changes. Knows nothing of Triton but its indentation.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..base.text import identifier


@dataclass
class Scope:
    """One level: its lines, what it binds, and the values that already have a name."""

    lines: list[str] = field(default_factory=list)
    bound: set[Hashable] = field(default_factory=set)
    named: dict[Hashable, str] = field(default_factory=dict)
    resources: dict[Hashable, frozenset[str]] = field(default_factory=dict)


class Scopes:
    """The stack of open scopes, innermost last."""

    def __init__(self) -> None:
        self._open = [Scope()]
        self._names: set[str] = set()

    def fresh(self, wish: str) -> str:
        """A name that nothing has, near to `wish`."""
        base = identifier(wish)
        name, count = base, 1
        while name in self._names:
            count += 1
            name = f"{base}_{count}"
        self._names.add(name)
        return name

    def bind(self, *symbols: Hashable) -> None:
        """Says that these are known from here to the end of the innermost scope."""
        self._open[-1].bound.update(symbols)

    def level(self, needs: Iterable[Hashable]) -> int:
        """The outermost scope in which all of `needs` are bound.

        Raises:
            KeyError: one of them is not bound here.
        """
        return max((self._level_of(n) for n in needs), default=0)

    def _level_of(self, symbol: Hashable) -> int:
        for number, scope in enumerate(self._open):
            if symbol in scope.bound:
                return number
        raise KeyError(symbol)

    def known(self, key: Hashable) -> str | None:
        """The name of a value that is bound here."""
        for scope in self._open:
            if key in scope.named:
                return scope.named[key]
        return None

    def note(
        self, key: Hashable, text: str, level: int, resources: frozenset[str] = frozenset()
    ) -> None:
        """Remembers the text of a value, as long as none of `resources` changes."""
        scope = self._open[-1 if resources else level]
        scope.named[key] = text
        scope.resources[key] = resources

    def line(self, text: str, level: int = -1) -> None:
        """A statement at the end of a scope."""
        self._open[level].lines.append(text)

    def changed(self, resource: str) -> None:
        """Forgets every value that was read from a buffer or a carried variable."""
        for scope in self._open:
            for key in [k for k, r in scope.resources.items() if resource in r]:
                del scope.named[key], scope.resources[key]

    @property
    def depth(self) -> int:
        """The number of the innermost scope; the kernel's body is 0."""
        return len(self._open) - 1

    @contextmanager
    def inside(self, head: str) -> Iterator[None]:
        """A loop: its body is indented under `head`."""
        self._open.append(Scope())
        yield
        body = self._open.pop()
        lines = body.lines or ["pass"]
        self._open[-1].lines += [head, *("    " + line for line in lines)]

    def text(self) -> str:
        """The whole body, indented once."""
        return "\n".join("    " + line if line else "" for line in self._open[0].lines)
