"""Errors of onetrip: each says what was expected, what was found, where, and the next step."""

from __future__ import annotations


class OnetripError(Exception):
    """Base of every error that onetrip raises on purpose.

    Args:
        message: one sentence that says what went wrong.
        expected: what would have been right.
        found: what was there instead.
        where: the user's module path and source line, or a file.
        next_step: what the reader can do now.
    """

    def __init__(
        self,
        message: str,
        *,
        expected: str | None = None,
        found: str | None = None,
        where: str | None = None,
        next_step: str | None = None,
    ) -> None:
        self.message = message
        self.expected = expected
        self.found = found
        self.where = where
        self.next_step = next_step
        rows = (
            ("expected", expected),
            ("found", found),
            ("where", where),
            ("next step", next_step),
        )
        super().__init__("\n".join([message, *(f"  {k}: {v}" for k, v in rows if v)]))


class UsageError(OnetripError):
    """A wrong option, mode, name or argument."""


class OutOfRangeError(OnetripError, IndexError, RuntimeError):
    """An index outside of its dimension: eager raises either class, by operator."""


class VerifyError(OnetripError):
    """An IR that breaks one of its own invariants: a fault of onetrip, never of the user."""


class CaptureError(OnetripError):
    """A model that cannot be captured as a graph without running it."""


class Unsupported(OnetripError):  # noqa: N818 - says what the operator is, not what went wrong
    """Something onetrip does not compile; the caller runs it as an extern with this reason."""


class ToolchainError(OnetripError):
    """A compiler that is missing or that rejected generated code."""


class CacheError(OnetripError):
    """A cache directory that can be neither read nor replaced."""
