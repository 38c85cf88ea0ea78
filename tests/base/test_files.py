"""Files of a user: whole or not at all, with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onetrip.base.errors import UsageError
from onetrip.base.files import File

NOTE = File("the note", "JSON", "write it again")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    NOTE.write(tmp_path / "a.json", '["ü"]\n')
    data = NOTE.read(tmp_path / "a.json")
    assert NOTE.decoded(data, json.loads, "a.json") == ["ü"]
    assert NOTE.write_into(tmp_path / "new" / "folder", "b.json", "1").read_text() == "1"


@pytest.mark.parametrize("path", ["none.json", "no/none.json", "folder", "a\0b"])
def test_what_cannot_be_read_is_named(tmp_path: Path, path: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="the note cannot be read") as caught:
        NOTE.read(tmp_path / path)
    error = caught.value
    assert error.where == str(tmp_path / path) and error.found
    assert (error.expected, error.next_step) == ("JSON", "write it again")


@pytest.mark.parametrize("data", [b"\xff", b"{", "[" * 100_000])
def test_what_cannot_be_decoded_is_named(data: str | bytes) -> None:
    with pytest.raises(UsageError, match="the note cannot be read") as caught:
        NOTE.decoded(data, json.loads, "a.json")
    assert caught.value.where == "a.json" and caught.value.found


def test_a_file_in_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for write in (
        lambda: NOTE.write(tmp_path / "file" / "a", "1"),
        lambda: NOTE.write_into(tmp_path / "file", "a", "1"),
    ):
        with pytest.raises(UsageError, match="the note cannot be written"):
            write()
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
