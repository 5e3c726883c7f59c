"""`Heap` and `Budget`: payloads stay where they were put, segments are used again, limits hold."""

import pickle
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_extra_buffers.frames.heap import Budget, Heap, StoreFullError


def payloads(lengths: list[int], seed: int) -> tuple[np.ndarray, np.ndarray, list[bytes]]:
    parts = [np.random.default_rng([seed, i]).integers(0, 256, n, np.uint8).tobytes() for i, n in enumerate(lengths)]
    return np.frombuffer(b"".join(parts), np.uint8), np.array(lengths, np.int64), parts


def release(heap: Heap, offsets: np.ndarray) -> None:
    for segment in (offsets // heap.segment_bytes).tolist():
        heap.alive[segment] -= 1
        if heap.alive[segment] == 0:
            heap.reopen(np.array([segment]))


def read(heap: Heap, offset: int, length: int) -> bytes:
    return heap.data[offset : offset + length].tobytes()


@settings(max_examples=150)
@given(
    frame_bytes=st.sampled_from([1, 7, 100, 5000, 100_000]),
    batches=st.lists(
        st.lists(st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1)), min_size=1, max_size=6),
        min_size=1,
        max_size=20,
    ),
    releases=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 4)), min_size=20, max_size=20),
    pickled=st.integers(0, 20),
)
def test_payloads_stay_what_they_are(frame_bytes, batches, releases, pickled):
    """Appended and released in any order; no payload lies over another, none reaches outside the heap."""
    heap = Heap(frame_bytes, Budget())
    alive: dict[int, tuple[int, bytes]] = {}
    number = 0
    for turn, batch in enumerate(batches):
        data, lengths, parts = payloads([int(part * frame_bytes) for part in batch], turn)
        for offset, part in zip(heap.append(data, lengths).tolist(), parts, strict=True):
            alive[number] = (offset, part)
            number += 1
        which, n = releases[turn]
        for _ in range(min(n, len(alive))):
            offset, _ = alive.pop(sorted(alive)[which % len(alive)])
            release(heap, np.array([offset]))
        if turn == pickled:
            heap = pickle.loads(pickle.dumps(heap))
        for offset, part in alive.values():
            assert 0 <= offset <= offset + len(part) <= heap.data.size
            assert read(heap, offset, len(part)) == part


@pytest.mark.parametrize("frame_bytes", [128, 7056, 100_000])
def test_empty_payloads(frame_bytes):
    heap = Heap(frame_bytes, Budget())
    nothing, zero = np.empty(0, np.uint8), np.zeros(1, np.int64)
    offsets = [heap.append(nothing, zero)]
    full = heap.segment_bytes // frame_bytes
    for turn in range(3):  # segments filled to the last byte, empty payloads in between
        data, lengths, parts = payloads([frame_bytes] * full, turn)
        kept = heap.append(data, lengths)
        offsets.append(heap.append(nothing, zero))
        both, lengths, more = payloads([frame_bytes] * full + [0], turn + 10)
        kept_too = heap.append(both, lengths)
        for offset in offsets:
            release(heap, offset)
        offsets = []
        assert [read(heap, int(offset), frame_bytes) for offset in kept] == parts
        assert [read(heap, int(offset), frame_bytes) for offset in kept_too[:-1]] == more[:-1]
        release(heap, kept)
        release(heap, kept_too)
    assert heap.data.nbytes <= 4 * heap.segment_bytes


def test_appending_nothing():
    heap = Heap(100, Budget())
    assert len(heap.append(np.empty(0, np.uint8), np.empty(0, np.int64))) == 0
    assert heap.data.nbytes == 0


def test_a_ring_takes_what_is_alive_and_a_segment_or_two():
    heap, ring, rng = Heap(500, Budget()), deque(), np.random.default_rng(0)
    sizes, alive = [], 0
    for turn in range(4000):
        data, lengths, parts = payloads(rng.integers(0, 501, 2).tolist(), turn)
        offsets = heap.append(data, lengths)
        ring.append((offsets, parts))
        alive += data.size
        if len(ring) > 300:
            offsets, parts = ring.popleft()
            assert [read(heap, int(o), len(p)) for o, p in zip(offsets, parts, strict=True)] == parts
            release(heap, offsets)
            alive -= sum(map(len, parts))
        sizes.append(heap.nbytes)
    assert sizes[-1] <= sizes[600] + 2 * heap.segment_bytes
    assert sizes[-1] <= 1.1 * alive + 4 * heap.segment_bytes


def test_incompressible_frames_leave_no_gaps():
    for frame_bytes in (100, 7056, 50_000):
        heap = Heap(frame_bytes, Budget())
        for turn in range(100):
            data, lengths, _ = payloads([frame_bytes], turn)
            heap.append(data, lengths)
        assert heap.nbytes <= 100 * frame_bytes * (1 + 1 / 128) + 5000


def test_a_full_heap_is_as_it_was():
    budget = Budget(60_000)
    heap = Heap(1000, budget)
    budget.owners.add(heap)
    held = []

    def fill() -> None:
        for turn in range(100):
            data, lengths, parts = payloads([1000], turn)
            held.append((heap.append(data, lengths)[0], parts[0]))

    with pytest.raises(StoreFullError, match="max_bytes=60,000"):
        fill()
    assert len(held) >= 50
    assert heap.nbytes <= 60_000
    before = heap.alive.tolist()
    data, lengths, _ = payloads([1000] * 60, 99)
    with pytest.raises(StoreFullError):
        heap.append(data, lengths)
    assert heap.alive.tolist() == before
    for offset, part in held:
        assert read(heap, int(offset), 1000) == part
        release(heap, np.array([offset]))
    for turn in range(10):
        data, lengths, parts = payloads([1000], turn + 200)
        assert read(heap, int(heap.append(data, lengths)[0]), 1000) == parts[0]


@pytest.mark.parametrize("method", ["_open_segment", "_ensure"])
@pytest.mark.parametrize("before", [True, False])
def test_a_heap_is_as_it_was_after_an_interrupt(monkeypatch, method, before):
    """Ctrl-C comes while several segments are filled: none of it stays, and the heap goes on as another one does."""
    heap, other = Heap(5000, Budget()), Heap(5000, Budget())
    begun, rest = payloads([4000] * 2, 0), payloads([4000] * 20, 1)
    for one in (heap, other):
        one.append(*begun[:2])
    state, alive, calls = heap.state, heap.alive[: heap.n_segments].tolist(), []
    usual = getattr(Heap, method)

    def interrupted(self, *args):
        calls.append(args)
        if before and len(calls) == 2:
            raise KeyboardInterrupt
        usual(self, *args)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Heap, method, interrupted)
        with pytest.raises(KeyboardInterrupt):
            heap.append(*rest[:2])
    assert heap.state == state
    assert heap.alive[: heap.n_segments].tolist() == alive
    mark = heap.mark()
    offsets = heap.append(*rest[:2])
    assert offsets.tolist() == other.append(*rest[:2]).tolist()
    assert heap.written_since(mark)[offsets // heap.segment_bytes].all()
    assert [read(heap, offset, 4000) for offset in offsets.tolist()] == rest[2]


class Owner:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


def test_a_budget_adds_up_what_its_owners_have():
    budget = Budget(100)
    one, two = Owner(30), Owner(30)
    budget.owners.add(one)
    budget.owners.add(two)
    for limit in (budget, pickle.loads(pickle.dumps((budget, one, two)))[0]):
        limit.check(40)
        with pytest.raises(StoreFullError, match="need 120 bytes, more than max_bytes=100"):
            budget.check(60)
    del one  # what is gone needs nothing
    budget.check(60)
    assert issubclass(StoreFullError, MemoryError)


@pytest.mark.parametrize(
    ("max_bytes", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_a_budget_is_a_number_of_bytes(max_bytes, error):
    with pytest.raises(error, match="max_bytes"):
        Budget(max_bytes)


def test_no_limit():
    budget = Budget()
    budget.check(1 << 60)
    assert budget.max_bytes is None
