"""Files of a user: read, written and decoded with errors that name the file and the way out.

Each caller says what the file is, what would have been right, and the next step. Must not know
what is in a file.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from .errors import UsageError

T = TypeVar("T")
WRITABLE = "a file, new or not, in a folder that can be written to"


@dataclass(frozen=True)
class File:
    """A kind of file, as errors speak of it.

    Attributes:
        name: with its article: `the budget`.
        form: what is right in such a file, or who writes it.
        next_step: what to do where one cannot be read.
    """

    name: str
    form: str
    next_step: str

    def read(self, path: str | Path) -> bytes:
        """All of a file.

        Raises:
            UsageError: no file can be read there.
        """
        try:
            return Path(path).read_bytes()
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{self.name} cannot be read",
                expected=self.form,
                found=_reason(error),
                where=str(path),
                next_step=self.next_step,
            ) from error

    def decoded(self, data: str | bytes, decode: Callable[[str], T], where: str) -> T:
        """What `decode` makes of the text of a file.

        Raises:
            UsageError: the bytes are no text, or `decode` raises a ValueError (as decoders of
                JSON and TOML do) or a RecursionError.
        """
        try:
            return decode(data if isinstance(data, str) else data.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"{self.name} cannot be read",
                expected=self.form,
                found=str(error),
                where=where,
                next_step=self.next_step,
            ) from error

    def write(self, path: str | Path, text: str) -> None:
        """Writes a file, whole or not at all: what was there before stays until then.

        Raises:
            UsageError: nothing can be written there.
        """
        data = text.encode()
        try:
            place = Path(path).resolve()
            if place.exists() and not place.is_file():
                place.write_bytes(data)  # a pipe or a device, or a folder, which refuses
            else:
                _replace(place, data)
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a loop of links
            raise UsageError(
                f"{self.name} cannot be written",
                expected=WRITABLE,
                found=_reason(error),
                where=str(path),
                next_step="name a file in a folder that exists, has room and can be written to",
            ) from error

    def write_into(self, folder: Path, name: str, text: str) -> Path:
        """Writes a file into a folder, which is made where needed; returns the file.

        Raises:
            UsageError: nothing can be written there.
        """
        with contextlib.suppress(OSError):  # the file's own error says what is wrong
            folder.mkdir(parents=True, exist_ok=True)
        self.write(folder / name, text)
        return folder / name


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _replace(place: Path, data: bytes) -> None:
    """Writes beside the file and moves it there in one step."""
    beside = place.with_name(f".{place.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with beside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if place.exists():
            beside.chmod(place.stat().st_mode)
        beside.replace(place)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
