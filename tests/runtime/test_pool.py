"""Reused output pages: never while somebody may look, always when nobody can."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import threading
import weakref

import pytest
import torch

from onetrip.runtime.pool import SMALLEST, OutputPool, empty_strided, outputs

N = SMALLEST  # elements: 4 * SMALLEST bytes of float32
BYTES = 4 * N


@pytest.fixture
def pool() -> OutputPool:
    return OutputPool(limit=64 * BYTES)


def take(pool: OutputPool) -> torch.Tensor:
    return pool.empty((N // 64, 64), (64, 1), torch.float32, BYTES)


def test_a_dropped_outputs_pages_come_back(pool: OutputPool) -> None:
    a = take(pool)
    pages = a.data_ptr()
    del a
    assert take(pool).data_ptr() == pages
    assert pool.held_bytes == BYTES


def test_a_device_that_a_context_asks_for_changes_nothing(pool: OutputPool) -> None:
    with torch.device("meta"):
        made = take(pool)
        again = take(pool)
    assert made.device == again.device == torch.device("cpu")
    assert made.data_ptr() and made.data_ptr() != again.data_ptr()


KEEPERS = {
    "tensor": lambda t: t,
    "view": lambda t: t[3:, 1],
    "detached": lambda t: t.detach(),
    "storage": lambda t: t.untyped_storage(),
    "numpy": lambda t: t.numpy(),
    "numpy view": lambda t: t.numpy()[::2],
    "dlpack": lambda t: torch.from_dlpack(t),
    "memory view": lambda t: memoryview(t.numpy()),
    "other type": lambda t: t.view(torch.int32),
    "parameter": lambda t: torch.nn.Parameter(t),
    "autograd": lambda t: (torch.ones_like(t, requires_grad=True) * t).grad_fn,
}


@pytest.mark.parametrize("keeper", KEEPERS)
def test_pages_that_anything_refers_to_are_left_alone(pool: OutputPool, keeper: str) -> None:
    a = take(pool).fill_(7)
    pages = a.data_ptr()
    kept = KEEPERS[keeper](a)
    del a
    others = [take(pool).fill_(1) for _ in range(3)]
    assert pages not in {o.data_ptr() for o in others}
    del kept
    assert pages in {take(pool).data_ptr(), *(o.data_ptr() for o in (take(pool),))}


def test_outputs_are_ordinary_tensors(pool: OutputPool) -> None:
    a = take(pool)
    assert a.is_contiguous() and a._base is None and a.is_leaf and not a.requires_grad
    assert a.untyped_storage().nbytes() == BYTES and a.storage_offset() == 0
    assert type(a) is torch.Tensor
    a.fill_(2).requires_grad_()
    (a * a).sum().backward()
    assert a.grad is not None and a.grad.eq(4).all()
    assert torch.equal(pickle.loads(pickle.dumps(a)), a)
    assert torch.equal(copy.deepcopy(a), a)
    assert weakref.ref(a)() is a


def test_strides_are_kept(pool: OutputPool) -> None:
    a = pool.empty((N // 64, 64), (1, N // 64), torch.float32, BYTES)
    assert a.stride() == (1, N // 64)


@pytest.mark.parametrize("size", [2 * N, N // 2, 0])
def test_a_resized_storage_is_forgotten(pool: OutputPool, size: int) -> None:
    a = take(pool)
    a.untyped_storage().resize_(4 * size)
    del a
    b = take(pool).fill_(3)
    assert b.untyped_storage().nbytes() == BYTES and b.eq(3).all()
    assert pool.held_bytes == BYTES


def test_resizing_a_tensor_up_and_down_is_safe(pool: OutputPool) -> None:
    a = take(pool)
    a.resize_(3 * N).fill_(1)
    del a
    assert take(pool).fill_(2).eq(2).all()


def test_shared_memory_is_forgotten(pool: OutputPool) -> None:
    a = take(pool).fill_(5)
    a.share_memory_()
    shared = a.data_ptr()
    del a
    b = take(pool)
    assert b.data_ptr() != shared and not b.is_shared()


def test_small_outputs_do_not_enter(pool: OutputPool) -> None:
    assert pool.empty((4, 4), (4, 1), torch.float32, 64).shape == (4, 4)
    assert pool.held_bytes == 0


def test_the_pool_is_bounded_and_forgets_what_was_used_longest_ago() -> None:
    pool = OutputPool(limit=4 * BYTES)
    old = take(pool)
    kept = [pool.storage(BYTES + 64 * i) for i in range(1, 6)]
    assert pool.held_bytes <= 4 * BYTES
    pages = old.data_ptr()
    del old
    assert take(pool).data_ptr() != pages or pool.held_bytes <= 4 * BYTES
    assert len({s.data_ptr() for s in kept}) == 5
    assert pool.storage(5 * BYTES).nbytes() == 5 * BYTES
    assert pool.held_bytes <= 4 * BYTES, "a storage above the bound is not kept"


def test_a_bound_of_zero_turns_reuse_off() -> None:
    pool = OutputPool(limit=0)
    assert take(pool).fill_(1).eq(1).all()
    assert pool.held_bytes == 0


def test_release_forgets_and_harms_nobody(pool: OutputPool) -> None:
    a = take(pool).fill_(9)
    pool.release()
    assert pool.held_bytes == 0
    others = [take(pool).fill_(1) for _ in range(3)]
    assert a.eq(9).all() and len(others) == 3


def test_threads_never_share_pages(pool: OutputPool) -> None:
    wrong: list[int] = []

    def work(mark: int) -> None:
        for _ in range(60):
            a = take(pool).fill_(mark)
            b = take(pool).fill_(-mark)
            if not (a.eq(mark).all() and b.eq(-mark).all()):
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(m,)) for m in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not wrong
    assert pool.held_bytes <= 4 * 3 * BYTES, "a, b, and the a that the next one replaces"


def _child(pool: OutputPool, queue: multiprocessing.SimpleQueue[tuple[int, bool]]) -> None:
    torch.set_num_threads(1)  # GNU OpenMP's own threads do not survive a fork
    held = pool.held_bytes
    queue.put((held, bool(take(pool).fill_(2).eq(2).all())))


def test_a_forked_child_starts_with_an_empty_pool(pool: OutputPool) -> None:
    a = take(pool).fill_(1)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_child, args=(pool, queue), daemon=True)
    with pool._lock:  # as if another thread were allocating at that moment
        child.start()
    child.join(60)
    assert child.exitcode == 0
    assert queue.get() == (0, True)
    assert a.eq(1).all()


@pytest.mark.parametrize(
    ("shape", "stride"),
    [((256, 512), (512, 1)), ((512, 256), (1, 512)), ((0, 7), (7, 1)), ((), ()), ((64, 3), (8, 2)),
     ((300, 1, 400), (400, 5, 1))],
)  # fmt: skip
def test_empty_strided_is_torchs(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.int64):
        a, b = empty_strided(shape, stride, dtype), torch.empty_strided(shape, stride, dtype=dtype)
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
        assert a.untyped_storage().nbytes() == b.untyped_storage().nbytes()
    outputs.release()
