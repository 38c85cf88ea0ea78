"""A content-addressed cache on disk: what a text was compiled to, kept for the next process.

An entry is a folder named by its key, made whole elsewhere and moved into place by one rename, so
that processes never see half of one. A list of SHA-256 sums inside it finds a damaged entry, which
is removed and made again. Nothing is pickled. This module knows no compiler.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import platformdirs

from onetrip.base import knobs
from onetrip.base.errors import CacheError

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")

SUMS = "SHA256SUMS"
LOCK = ".lock"
"""In the root: held while a damaged entry is looked at again and taken away."""
_JSON = "value.json"


def content_key(parts: Iterable[str]) -> str:
    """One key for texts in order; moving a character from one text to the next changes it."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def default_root() -> Path:
    """ONETRIP_CACHE_DIR, else the user's cache folder."""
    asked = knobs.CACHE_DIR.get()
    return Path(asked) if asked else Path(platformdirs.user_cache_dir("onetrip"))


def _sums(folder: Path) -> str:
    """Checksums of a folder's files, in the format of `sha256sum`.

    Folders inside are not part of an entry: Python puts one beside a module that it imports.
    """
    names = sorted(p.name for p in folder.iterdir() if p.name != SUMS and p.is_file())
    rows = []
    for name in names:
        with (folder / name).open("rb") as file:
            rows.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n")
    return "".join(rows)


def _is_sound(folder: Path) -> bool:
    try:
        return (folder / SUMS).read_text(encoding="utf-8") == _sums(folder)
    except (OSError, UnicodeDecodeError):
        return False


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Within, no other process that asks for the same is in here; does nothing where the system
    or the file system knows no locks."""
    with place.open("ab") as file:
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Cache:
    """Entries under one root folder; any number of threads and processes may share it.

    Args:
        root: the folder; None takes `default_root()`. If it cannot be written, a warning is given
            once and entries go to a private folder that is deleted when the process ends.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self.root = Path(root) if root is not None else default_root()
        self._sound: set[str] = set()
        self._lock = threading.Lock()
        self._private = False

    def folder(self, key: str) -> Path:
        """Where the entry of `key` stands, present or not."""
        return self.root / key[:2] / key

    def get(self, key: str) -> Path | None:
        """The entry's folder, or None; a damaged entry is removed and counts as absent."""
        folder = self.folder(key)
        if key in self._sound and folder.is_dir():
            return folder
        if not folder.exists():  # asked first: another process may move it into place meanwhile
            return None
        if _is_sound(folder) or not self._remove(folder):
            self._sound.add(key)
            return folder
        return None

    def put(self, key: str, producer: Callable[[Path], None]) -> Path:
        """The entry's folder; if absent, `producer(folder)` fills a new one first.

        Two producers of one key may run at once; the entry that arrives first stays.

        Raises:
            CacheError: neither the root nor a private folder can be written.
            Whatever `producer` raises, except OSError, which is taken for a full disk.
        """
        found = self.get(key)
        if found is not None:
            return found
        try:
            return self._make(key, producer)
        except OSError as error:
            self._retreat(error)
        try:
            return self._make(key, producer)
        except OSError as error:
            raise CacheError(
                "no folder can hold compiled kernels",
                expected="a folder with free space and write permission",
                found=str(error),
                where=str(self.root),
                next_step="set ONETRIP_CACHE_DIR to such a folder",
            ) from error

    def put_json(self, key: str, value: object) -> Path:
        """Keep `value` as JSON text."""
        data = msgspec.json.encode(value)

        def write(folder: Path) -> None:
            (folder / _JSON).write_bytes(data)

        return self.put(key, write)

    def get_json(self, key: str, kind: type[T]) -> T | None:
        """The kept value as `kind`; None when absent or of another shape."""
        folder = self.get(key)
        if folder is None:
            return None
        try:
            return msgspec.json.decode((folder / _JSON).read_bytes(), type=kind)
        except (OSError, msgspec.MsgspecError):
            return None

    def _make(self, key: str, producer: Callable[[Path], None]) -> Path:
        folder = self.folder(key)
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=folder.parent))
        try:
            producer(draft)
            (draft / SUMS).write_text(_sums(draft), encoding="utf-8")
            try:
                draft.rename(folder)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                other = self.get(key)
                if other is None:
                    draft.rename(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        self._sound.add(key)
        return folder

    def _remove(self, folder: Path) -> bool:
        """Whether the entry was damaged; if so, it is taken away in one rename.

        No reader meets half of it, and what another process made in its place stays.
        """
        self._sound.discard(folder.name)
        try:
            with _alone(self.root / LOCK):
                if _is_sound(folder):
                    return False
                grave = Path(tempfile.mkdtemp(prefix=".damaged-", dir=folder.parent))
                with suppress(FileNotFoundError):
                    folder.rename(grave / folder.name)
            shutil.rmtree(grave, ignore_errors=True)
        except OSError as error:
            self._retreat(error)
        return True

    def _retreat(self, error: OSError) -> None:
        """Work in a private folder from now on."""
        with self._lock:
            if self._private:
                return
            warnings.warn(
                f"the kernel cache {self.root} cannot be written ({error.strerror or error}); "
                "kernels of this process are kept in a private folder and deleted at its end. "
                "Set ONETRIP_CACHE_DIR to a writable folder to keep them.",
                stacklevel=3,
            )
            self.root = Path(tempfile.mkdtemp(prefix="onetrip-"))
            self._private = True
            self._sound.clear()
            atexit.register(shutil.rmtree, self.root, ignore_errors=True)
