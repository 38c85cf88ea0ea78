"""The cyclic collector rests within a block, and is afterwards as it was."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from onetrip.base.collector import collector_at_rest


@pytest.fixture(autouse=True)
def left_as_found() -> Iterator[None]:
    was_on = gc.isenabled()
    yield
    assert not was_on or gc.isenabled()
    gc.enable()


@pytest.mark.parametrize("on", [True, False])
def test_it_is_as_before_after_nested_blocks_and_errors(on: bool) -> None:
    (gc.enable if on else gc.disable)()
    with pytest.raises(KeyError), collector_at_rest():
        with collector_at_rest():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled() is on
    gc.enable()


def test_it_rests_until_the_last_of_several_threads_is_done() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with collector_at_rest():
            inside.set()
            assert leave.wait(10)

    thread = threading.Thread(target=other)
    with collector_at_rest():
        thread.start()
        assert inside.wait(10)
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()
