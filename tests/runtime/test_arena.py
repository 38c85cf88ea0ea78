"""Working memory: one block for each call in flight, reused by the next."""

from __future__ import annotations

import threading

import torch

from onetrip.runtime.arena import ALIGNMENT, Arena, Block
from onetrip.runtime.pages import HUGE, advise_huge


def test_the_next_call_gets_the_same_block() -> None:
    arena = Arena()
    with arena.lease(1000) as first:
        pointer = first.pointer
    with arena.lease(800) as second:
        assert second.pointer == pointer
    with arena.lease(5000) as grown:
        assert grown.nbytes == 5000
    assert arena.idle_bytes == 5000, "the block that was too small is gone"
    arena.release()
    assert arena.idle_bytes == 0


def test_calls_at_once_get_blocks_of_their_own() -> None:
    arena = Arena()
    with arena.lease(256) as outer, arena.lease(256) as inner:
        assert abs(outer.pointer - inner.pointer) >= 256
    assert arena.idle_bytes == 512


def test_a_call_that_raises_gives_its_block_back() -> None:
    arena = Arena()
    try:
        with arena.lease(256):
            raise ValueError
    except ValueError:
        pass
    assert arena.idle_bytes == 256


def test_tensors_stand_at_their_offsets() -> None:
    block = Block(4096)
    assert block.pointer % ALIGNMENT == 0
    a = block.tensor(128, (4, 8), (8, 1), torch.float32)
    b = block.tensor(128 + 4 * 8, (3,), (2,), torch.float32)
    assert a.data_ptr() == block.pointer + 128
    a.copy_(torch.arange(32.0).view(4, 8))
    assert b.tolist() == [8.0, 10.0, 12.0]
    last = block.tensor(4096 - 8, (1,), (1,), torch.int64)
    assert last.data_ptr() == block.pointer + 4088


def test_threads_do_not_meet() -> None:
    arena, wrong = Arena(), []

    def work(mark: int) -> None:
        for _ in range(200):
            with arena.lease(4096) as block:
                t = block.tensor(0, (512,), (1,), torch.int64).fill_(mark)
                if not t.eq(mark).all():
                    wrong.append(mark)

    threads = [threading.Thread(target=work, args=(m,)) for m in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not wrong and arena.idle_bytes <= 4 * 4096


def test_huge_pages_are_asked_for_only_where_whole_ones_fit() -> None:
    assert not advise_huge(HUGE, HUGE - 1)
    assert not advise_huge(HUGE + 1, HUGE)
    big = torch.UntypedStorage(8 * HUGE)
    advise_huge(big.data_ptr(), big.nbytes())
    t = torch.empty(0, dtype=torch.uint8).set_(big)
    assert t.fill_(3).eq(3).all()
