"""Steps of storing: what they say of observations and candidates is what those were, however little room there is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sb3_extra_buffers.frames import matching

N_STREAMS = 3
WAYS = {
    "kernel": matching.overlap(),
    "reference": matching.overlap_reference,
    "kernel, interleaved": matching.overlap_interleaved(),
    "reference, interleaved": matching._overlap_interleaved_reference,
}


def words(numbers: Any, n_bytes: int, pool: np.ndarray, interleaved: bool) -> np.ndarray:
    """Return observations of the pool's frames `[n, stack]` as a way takes them."""
    frames = pool[np.array(numbers)]
    if interleaved:
        return np.ascontiguousarray(frames[..., :n_bytes].transpose(0, 2, 1)).view(np.uint32)[..., 0]
    return frames.view(np.uint64)


@given(st.data())
@pytest.mark.parametrize("n_bytes", [5, 24, 700])
@pytest.mark.parametrize("way", WAYS)
def test_codes_say_what_it_was(way: str, n_bytes: int, data: st.DataObject) -> None:
    """Candidates are given room one by one; the step is called again and goes on where it was."""
    overlap, interleaved = WAYS[way], "interleaved" in way
    stack = 4 if interleaved else data.draw(st.sampled_from([1, 2, 4]), "stack")
    pool = np.zeros((3, -(-n_bytes // 8) * 8), np.uint8)
    pool[:, :n_bytes] = np.random.default_rng(0).integers(0, 256, (3, n_bytes))
    pool[2, : n_bytes - 1] = pool[1, : n_bytes - 1]  # the last byte differs
    block = st.lists(
        st.lists(st.integers(0, 2), min_size=stack, max_size=stack), min_size=N_STREAMS, max_size=N_STREAMS
    )
    recent = words(last := data.draw(block, "last"), n_bytes, pool, interleaved)
    recent_codes = 1 + np.arange(N_STREAMS * stack).reshape(N_STREAMS, stack)
    known = {1 + i: number for i, number in enumerate(np.array(last).reshape(-1).tolist())}
    room = data.draw(st.integers(0, 3), "room")
    candidates, sources = np.zeros((room, pool.shape[1]), np.uint8), np.zeros(room, np.int64)
    progress, streams, stored = np.zeros(2, np.int64), np.arange(N_STREAMS), np.zeros(0, np.int64)
    for turn in range(data.draw(st.integers(1, 3), "turns")):
        given = [data.draw(block, f"block {turn}") for _ in range(data.draw(st.integers(1, 2), "blocks"))]
        first, *others = (words(one, n_bytes, pool, interleaved) for one in given)
        second = others[0] if others else first[:0]
        codes, progress[1] = np.zeros((2, N_STREAMS, stack), np.int64), 0
        for _ in range(2 * N_STREAMS * stack + 1):
            out = candidates if interleaved else candidates.view(np.uint64)
            arrays = (first, second, streams, recent, recent_codes, codes, out, sources, progress)
            if overlap(*arrays):
                break
            candidates = np.concatenate([candidates, np.zeros((1, pool.shape[1]), np.uint8)])
            sources = np.append(sources, 0)
        else:
            pytest.fail("it does not go on")
        k = int(progress[0])
        stored = np.array([int((pool == candidate).all(axis=1).argmax()) for candidate in candidates[:k]], np.int64)
        assert (pool[stored] == candidates[:k]).all()
        for b, one in enumerate(given):
            said = [[known[code] if code > 0 else stored[-1 - code] for code in row] for row in codes[b].tolist()]
            assert said == one
            for i, row in enumerate(codes[b]):
                assert (sources[-1 - row[row < 0]] == i).all()
        np.testing.assert_array_equal(recent, words(given[-1], n_bytes, pool, interleaved))
        np.testing.assert_array_equal(recent_codes, codes[len(given) - 1])


@given(st.data())
@pytest.mark.parametrize("tell", [matching.tell(), matching.tell_reference], ids=["kernel", "reference"])
def test_payloads_of_new_frames_are_left(tell: Any, data: st.DataObject) -> None:
    """Equal ones are those of the same length and bytes, even if another begins with them or ends the heap."""
    payload = st.binary(max_size=3)
    stored = data.draw(st.lists(payload, min_size=1, max_size=5), "stored")
    given = data.draw(st.lists(payload, min_size=1, max_size=6), "given")
    sizes, lengths = ([len(one) for one in some] for some in (given, stored))
    heap = np.frombuffer(b"".join(stored), np.uint8).copy()
    offsets = np.array([0, *np.cumsum([0, *lengths[:-1]])])  # of id 0 as well
    hints = np.array([data.draw(st.sampled_from([-1, *range(1, len(stored) + 1)])) for _ in given])
    same_as = np.array([data.draw(st.sampled_from([-1, *range(j + 1)])) for j in range(len(given))])
    is_known = [hint > 0 and stored[hint - 1] == one for hint, one in zip(hints, given, strict=True)]
    new = [one for j, one in enumerate(given) if same_as[j] == j and not is_known[j]]
    payloads, left = np.frombuffer(b"".join(given) + b"..", np.uint8).copy(), np.array(sizes)
    n = tell(payloads, left, heap, offsets, np.array([0, *lengths], np.uint32), same_as, hints)
    assert left[:n].tolist() == [len(one) for one in new]
    assert payloads.tobytes().startswith(b"".join(new))
    assert payloads.tobytes().endswith(b"..")
    assert ((hints > 0) == is_known).all()
