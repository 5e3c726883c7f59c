"""Codes by two neighbours: kernels do what their references do, and whatever is written is read."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_neighbours import SHAPES, noise, textures, walls

from sb3_extra_buffers.codecs import CodecError, contexts, optional
from sb3_extra_buffers.codecs.contexts import Contexts

pytestmark = pytest.mark.skipif(not optional.has_numba(), reason="compares the compiled kernels with NumPy")


def of(frames: np.ndarray, width: int) -> Contexts:
    return Contexts(contexts.learned(frames, width)[0])


def both():
    """Return what is compiled, and what it is compared with: each writes and reads."""
    kernels = contexts.ContextsKernels()
    return (kernels.encode, kernels.decode), (contexts.encode_reference, contexts.decode_reference)


def written(encode, frames: np.ndarray, width: int, codes: Contexts) -> list[np.ndarray]:
    """Return the payloads of frames; nothing is written beyond the room that was asked for."""
    room = contexts.room(len(frames), frames.shape[1])
    memory, lengths = np.full(room + 8, 0xA5, np.uint8), np.zeros(len(frames), np.int64)
    size = encode(frames, width, *codes.to_write(), memory[:room], lengths)
    assert size == lengths.sum() <= room
    assert (memory[room:] == 0xA5).all()
    return np.split(memory[:size].copy(), np.cumsum(lengths)[:-1])


def read(decode, payload: np.ndarray, size: int, width: int, codes: Contexts, poison: int = 0xA5):
    """Return the frame of a payload, or None; no other byte is written."""
    heap, out = np.full(payload.size + 9, poison, np.uint8), np.full((3, size), poison, np.uint8)
    heap[5 : 5 + payload.size] = payload
    where = np.array([5]), np.array([payload.size]), np.array([1])
    bad = decode(heap, *where, width, codes.of_pairs, codes.table, out)
    assert (out[[0, 2]] == poison).all()
    return out[1] if bad == -1 else None


@pytest.mark.parametrize("shape", [(1, 90), (8, 1), *SHAPES])
def test_kernels_equal_references(shape):
    """On frames like those that codes were learned from, and on others."""
    size = shape[0] * shape[1]
    samples = [textures(3, shape), walls(2, shape), noise(2, shape), np.zeros((1, size), np.uint8)]
    frames = np.concatenate(samples)
    (encode, decode), (encode_reference, decode_reference) = both()
    for known in samples:
        codes = of(known, shape[1])
        payloads = written(encode, frames, shape[1], codes)
        for frame, ours, theirs in zip(
            frames, payloads, written(encode_reference, frames, shape[1], codes), strict=True
        ):
            assert ours.tobytes() == theirs.tobytes()
            for one in (decode, decode_reference):
                for poison in (0, 0xA5):
                    found = read(one, ours, size, shape[1], codes, poison)
                    assert (found is None) == (ours.size >= size)  # those are the frame itself
                    assert found is None or found.tobytes() == frame.tobytes()


@settings(max_examples=60)
@given(
    pixels=st.lists(st.sampled_from([7, 7, 7, 7, 8, 8, 200, 255, 0]), min_size=360, max_size=360),
    others=st.lists(st.tuples(st.integers(0, 359), st.integers(0, 255)), max_size=20),
    known=st.integers(1, 4),
    width=st.sampled_from([2, 3, 5, 24, 40, 90, 120, 180]),
)
def test_any_pixels_in_any_codes(pixels, others, known, width):
    """Bytes and pairs that were never seen, contexts of one byte, bands without a row."""
    frame = np.array(pixels, np.uint8)
    rows = 360 // width
    codes = of(frame[: min(known, rows) * width][None].copy(), width)
    for at, value in others:
        frame[at] = value
    (encode, decode), (encode_reference, decode_reference) = both()
    (ours,) = written(encode, frame[None], width, codes)
    (theirs,) = written(encode_reference, frame[None], width, codes)
    assert ours.tobytes() == theirs.tobytes()
    if ours.size < 360:
        for one in (decode, decode_reference):
            assert read(one, ours, 360, width, codes).tobytes() == frame.tobytes()


@pytest.mark.parametrize("shape", SHAPES)
def test_there_is_room_for_any_payload(shape):
    """Of frames of which each byte is escaped, where that is least expected."""
    codes = of(np.full((1, shape[0] * shape[1]), 7, np.uint8), shape[1])
    frames = np.full((3, shape[0] * shape[1]), 9, np.uint8)
    payloads = [written(encode, frames, shape[1], codes) for encode, _ in both()]
    assert payloads[0][0].tobytes() == payloads[1][0].tobytes()
    assert payloads[0][0].size > 2 * frames.shape[1]


def test_what_is_likely_takes_less_than_a_bit():
    frames = np.repeat(textures(1, (24, 4)), 40, axis=1)
    codes = of(frames, 160)
    (payload,) = written(contexts.ContextsKernels().encode, frames, 160, codes)
    assert payload.size < frames.size / 8
    assert abs(contexts.learned(frames, 160)[1] - payload.size) < 16  # about what it says


def test_two_neighbours_tell_more_than_one():
    """Each pixel is the sum of the one above and the one on its left: both together leave nothing open."""
    pixels = np.random.default_rng(0).integers(0, 8, (1, 256, 64), dtype=np.uint8)
    for y in range(1, 256):
        for x in range(1, 64):
            pixels[0, y, x] = (pixels[0, y - 1, x] + pixels[0, y, x - 1]) % 8
    frame = pixels.reshape(1, -1)
    (payload,) = written(contexts.ContextsKernels().encode, frame, 64, of(frame, 64))
    assert payload.size < 0.25 * frame.size * 3 / 8


def test_damaged_payloads_do_no_harm():
    """Kernel and reference refuse the same ones, and write no other byte."""
    shape = (24, 40)
    known = textures(20, shape)
    codes = of(known, shape[1])
    (encode, decode), (_, decode_reference) = both()
    payload = written(encode, known[:1], shape[1], codes)[0]
    rng = np.random.default_rng(0)
    refused = 0
    for i in range(300):
        damaged = payload.copy()
        if i % 3 == 0:
            damaged = damaged[: rng.integers(0, payload.size)]
        elif i % 3 == 1:
            damaged[rng.integers(0, contexts.HEAD)] = rng.integers(0, 256)
        else:
            damaged[rng.integers(contexts.HEAD, payload.size, 3)] = rng.integers(0, 256, 3)
        found = [read(one, damaged, known.shape[1], shape[1], codes) for one in (decode, decode_reference)]
        assert (found[0] is None) == (found[1] is None)
        assert found[0] is None or found[0].tobytes() == found[1].tobytes()
        refused += found[0] is None
        assert i % 3 or found[0] is None
    assert refused > 200


@pytest.mark.parametrize(("start", "length"), [(-1, 50), (0, 15), (0, 960), (60, 50), (2**62, 50), (0, -1)])
def test_payloads_that_are_not_there(start, length):
    codes = of(textures(3), 40)
    for _, decode in both():
        out = np.full((1, 960), 0xA5, np.uint8)
        where = np.array([start]), np.array([length]), np.zeros(1, np.int64)
        assert decode(np.zeros(100, np.uint8), *where, 40, codes.of_pairs, codes.table, out) == 0


def test_sets_that_are_none():
    good = np.frombuffer(contexts.learned(textures(3), 40)[0], np.uint8)
    outside, too_many, without_escape = good.copy(), good.copy(), good.copy()
    outside[0] = 200
    shares = too_many[65536:].view("<u2")
    shares[0] += 1
    shares = without_escape[65536:].view("<u2").reshape(-1, 257)
    shares[0, shares[0].argmax()] += shares[0, 256]
    shares[0, 256] = 0
    for wrong in (outside, too_many, without_escape, good[:-1], good[:65536], np.append(good, good[65536:])):
        if wrong.size != good.size or not np.array_equal(wrong, good):
            with pytest.raises(CodecError):
                Contexts(wrong.tobytes() if wrong.size != 2 * good.size - 65536 else wrong.tobytes() * 3)
