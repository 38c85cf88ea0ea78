"""The cache on disk: whole entries or none, whatever happens to the folder."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from onetrip.base.errors import CacheError
from onetrip.runtime import cache as cache_module
from onetrip.runtime.cache import SUMS, Cache, content_key, default_root

KEY = content_key(["a text"])


def writer(text: str, made: list[str] | None = None) -> Callable[[Path], None]:
    def produce(folder: Path) -> None:
        if made is not None:
            made.append(text)
        (folder / "kernel.so").write_text(text)

    return produce


def test_an_entry_is_made_once(tmp_path: Path) -> None:
    made: list[str] = []
    cache = Cache(tmp_path)
    assert cache.get(KEY) is None
    first = cache.put(KEY, writer("one", made))
    second = Cache(tmp_path).put(KEY, writer("two", made))
    assert first == second == Cache(tmp_path).get(KEY)
    assert (first / "kernel.so").read_text() == "one"
    assert made == ["one"]


def test_keys_tell_texts_and_their_borders_apart() -> None:
    keys = {content_key(p) for p in (["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], [])}
    assert len(keys) == 5


@pytest.mark.parametrize(
    "damage",
    [
        lambda f: (f / "kernel.so").write_text("onX"),
        lambda f: (f / "kernel.so").write_text(""),
        lambda f: (f / "kernel.so").unlink(),
        lambda f: (f / SUMS).unlink(),
        lambda f: (f / SUMS).write_bytes(b"\xff\xfe"),
        lambda f: (f / "stranger").write_text("not in the list"),
    ],
    ids=["changed", "truncated", "gone", "no sums", "sums damaged", "stranger"],
)
def test_a_damaged_entry_is_made_again(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    folder = Cache(tmp_path).put(KEY, writer("one"))
    damage(folder)
    later = Cache(tmp_path)
    assert later.get(KEY) is None
    assert not folder.exists()
    assert (later.put(KEY, writer("one")) / "kernel.so").read_text() == "one"
    assert [p.name for p in folder.parent.iterdir()] == [KEY], "no debris"


def test_a_producer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def produce(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise RuntimeError("the compiler says no")

    cache = Cache(tmp_path)
    with pytest.raises(RuntimeError, match="says no"):
        cache.put(KEY, produce)
    assert cache.get(KEY) is None
    assert list(cache.folder(KEY).parent.iterdir()) == []


def test_the_entry_that_arrives_first_stays(tmp_path: Path) -> None:
    cache = Cache(tmp_path)

    def slow(folder: Path) -> None:
        Cache(tmp_path).put(KEY, writer("fast"))
        writer("slow")(folder)

    assert (cache.put(KEY, slow) / "kernel.so").read_text() == "fast"
    assert [p.name for p in cache.folder(KEY).parent.iterdir()] == [KEY]


def _put_many(root: str) -> None:
    cache = Cache(root)
    for i in range(20):
        folder = cache.put(content_key([str(i)]), writer(str(i)))
        assert (folder / "kernel.so").read_text() == str(i)


def test_what_python_leaves_beside_a_module_is_no_damage(tmp_path: Path) -> None:
    def module(folder: Path) -> None:
        (folder / "made.py").write_text("value = 3\n")

    folder = Cache(tmp_path).put(KEY, module)
    code = "import sys; sys.dont_write_bytecode = False; import made; assert made.value == 3"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, env=_plain_environment())
    assert (folder / "__pycache__").is_dir()
    assert Cache(tmp_path).get(KEY) == folder


def test_an_entry_that_was_made_again_meanwhile_is_not_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Cache(tmp_path).put(KEY, writer("damaged"))
    (folder / "kernel.so").write_text("")
    judge, judged = cache_module._is_sound, []

    def judged_before_another_made_it(place: Path) -> bool:
        judged.append(judge(place))
        if len(judged) == 1:
            shutil.rmtree(place)
            Cache(tmp_path).put(KEY, writer("sound"))
        return judged[-1]

    monkeypatch.setattr(cache_module, "_is_sound", judged_before_another_made_it)
    found = Cache(tmp_path).get(KEY)
    assert judged == [False, True]
    assert found is not None and (found / "kernel.so").read_text() == "sound"


def test_an_entry_that_arrives_while_it_is_looked_for_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exists = Path.exists
    asked = []

    def arrives(place: Path) -> bool:
        if place.name == KEY and not asked:
            asked.append(place)
            Cache(tmp_path).put(KEY, writer("other"))
        return exists(place)

    monkeypatch.setattr(Path, "exists", arrives)
    folder = Cache(tmp_path).put(KEY, writer("ours"))
    assert asked and (folder / "kernel.so").read_text() == "other"


def _plain_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}


def test_several_processes_share_one_root(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_put_many, args=(str(tmp_path),)) for _ in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join(60)
    assert [w.exitcode for w in workers] == [0] * 4
    cache = Cache(tmp_path)
    assert all(cache.get(content_key([str(i)])) for i in range(20))
    assert not list(tmp_path.glob("*/.draft-*"))


def test_a_root_that_cannot_be_written_is_replaced_with_one_warning(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    cache = Cache(blocked / "below")
    with pytest.warns(UserWarning, match="ONETRIP_CACHE_DIR") as caught:
        folder = cache.put(KEY, writer("one"))
    assert len(caught) == 1
    assert (folder / "kernel.so").read_text() == "one"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put(content_key(["another"]), writer("two"))
    assert cache.get(KEY) == folder
    assert not folder.is_relative_to(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_root_is_replaced(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.warns(UserWarning, match="private folder"):
        Cache(tmp_path).put(KEY, writer("one"))


def test_a_disk_full_everywhere_is_an_error_that_names_the_knob(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module.tempfile, "tempdir", str(tmp_path))
    with pytest.warns(UserWarning, match="No space left"), pytest.raises(CacheError) as error:
        Cache(tmp_path / "root").put(KEY, full)
    assert error.value.next_step is not None and "ONETRIP_CACHE_DIR" in error.value.next_step


class Point(msgspec.Struct):
    """A value to keep."""

    x: int
    name: str


def test_values_are_kept_as_json(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert cache.get_json(KEY, Point) is None
    folder = cache.put_json(KEY, Point(3, "three"))
    assert cache.get_json(KEY, Point) == Point(3, "three")
    assert cache.get_json(KEY, list[int]) is None, "another shape counts as absent"
    assert (folder / "value.json").read_text() == '{"x":3,"name":"three"}'


def test_the_knob_names_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONETRIP_CACHE_DIR", str(tmp_path / "here"))
    assert default_root() == Cache().root == tmp_path / "here"
