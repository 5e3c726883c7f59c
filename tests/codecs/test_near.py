"""`near`: the kernels do what the reference does, with vector instructions and without, and so do old payloads."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_extra_buffers.codecs import CodecError, Coder, Encoded, get_codec, jit, near, optional
from sb3_extra_buffers.codecs.near import Near

SHAPES = [(1, 1), (3, 7), (9, 63), (5, 64), (40, 65), (12, 100), (120, 160), (3, 333), (200, 1)]  # rows, bytes of each

repeatable = settings(max_examples=60)


def coders(frame_bytes: int, width: int) -> list[Coder]:
    """Return three coders: as this processor has it, without vector instructions, and without numba."""
    found = [Near(width).coder(frame_bytes)]
    for module, name in ((jit, "has_vectors"), (optional, "has_numba")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, name, lambda: False)
            found.append(Near(width).coder(frame_bytes))
    return found


def pictures(n: int, rows: int, width: int, seed: int = 0) -> np.ndarray:
    """Return frames `[n, bytes]`: of walls, of stripes, of one value, and of noise, from left to right."""
    rng = np.random.default_rng(seed)
    frames = np.empty((n, rows, width), np.uint8)
    quarter = max(width // 4, 1)
    frames[...] = rng.integers(0, 256, (n, 1, width))
    frames[:, :, quarter : 2 * quarter] = rng.integers(0, 256, (n, rows, 1))
    frames[:, :, 2 * quarter : 3 * quarter] = 7
    frames[:, :, 3 * quarter :] = rng.integers(0, 3, (n, rows, max(width - 3 * quarter, 0)))
    frames[:, rows // 2 :, : width // 2] ^= 1
    return frames.reshape(n, -1)


def encoded(coder: Coder, frames: np.ndarray) -> Encoded:
    before = frames.copy()
    result = coder.encode(frames, np.zeros(len(frames), np.int64))
    assert np.array_equal(frames, before)
    assert result.lengths.max(initial=0) <= coder.frame_bytes
    assert result.lengths.sum() == result.data.size
    return result


def samples(rows: int, width: int) -> np.ndarray:
    size, rng = rows * width, np.random.default_rng(1)
    return np.concatenate(
        [
            pictures(3, rows, width),
            np.zeros((1, size), np.uint8),
            np.full((1, size), 9, np.uint8),
            rng.integers(0, 256, (2, size), np.uint8),
            np.tile(rng.integers(0, 256, width, np.uint8), rows)[None],
            np.repeat(rng.integers(0, 256, rows, np.uint8), width)[None],
            np.arange(size, dtype=np.uint8)[None],
        ]
    )


@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_kernels_equal_the_reference(rows, width):
    """Each byte of the output is written, and no other, whatever was there before."""
    frames = samples(rows, width)
    ours = coders(rows * width, width)
    payloads = [encoded(coder, frames) for coder in ours]
    for other in payloads[:2]:
        assert other.data.tobytes() == payloads[2].data.tobytes()
        assert np.array_equal(other.lengths, payloads[2].lengths)
    n = len(frames)
    where = np.random.default_rng(0).permutation(n)
    offsets = (np.cumsum(payloads[0].lengths) - payloads[0].lengths)[where]
    sources = np.full(n, -1)
    sources[-1] = 1 + 0  # a copy of what is decoded first
    for coder in ours:
        for poison in (0, 0xA5):
            for heap in (payloads[0].data.copy(), np.frombuffer(payloads[0].data.tobytes(), np.uint8)):
                out = np.full((n + 2, rows * width), poison, np.uint8)
                lengths, references = payloads[0].lengths[where], np.zeros(n, np.int64)
                rows_of = np.arange(n) + 1
                assert coder.decode_part(heap, offsets, lengths, references, rows_of, sources, out) == -1
                assert np.array_equal(out[1:n], frames[where][:-1])
                assert np.array_equal(out[n], out[1])
                assert (out[[0, n + 1]] == poison).all()


@repeatable
@given(data=st.data(), width=st.sampled_from([1, 3, 64, 70]), rows=st.integers(1, 5))
def test_any_pictures(data, width, rows):
    values = st.lists(st.sampled_from([0, 0, 0, 1, 1, 255]), min_size=width * rows, max_size=width * rows)
    frame = np.array(data.draw(values), np.uint8)[None]
    payloads = []
    for coder in coders(frame.size, width):
        payloads.append(encoded(coder, frame))
        out = np.full_like(frame, 0xA5)
        zero = np.zeros(1, np.int64)
        coder.decode(payloads[0].data, zero, payloads[0].lengths, zero, out)
        assert np.array_equal(out, frame)
    assert len({payload.data.tobytes() for payload in payloads}) == 1


def test_what_it_leaves():
    """A bit for each byte; another one for each that is not as above; a byte where it is not as the one before."""
    rows, width = 128, 64
    frame = np.zeros((rows, width), np.uint8)
    coder = Near(width).coder(frame.size)
    assert encoded(coder, frame.reshape(1, -1)).lengths == rows * 8
    frame[5:] = 3
    assert encoded(coder, frame.reshape(1, -1)).lengths == rows * 8 + 8 + 1
    frame[9:, ::2] = 4
    assert encoded(coder, frame.reshape(1, -1)).lengths == rows * 8 + 2 * 8 + 2
    frame[:] = np.random.default_rng(0).integers(0, 256, frame.shape)
    assert encoded(coder, frame.reshape(1, -1)).lengths == frame.size  # the frame itself


@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_there_is_room_for_any_payload(rows, width):
    """Nothing is written beyond what was asked for, also of frames that do not get smaller."""
    noise = np.random.default_rng(0).integers(0, 256, (5, rows * width), np.uint8)
    for coder in coders(rows * width, width):
        room = near.room(5, rows * width)
        memory, lengths = np.full(room + 200, 0xA5, np.uint8), np.zeros(5, np.int64)
        assert coder._encode(noise, coder._width, memory[:room], lengths) == lengths.sum() <= noise.size
        assert (memory[room:] == 0xA5).all()


@pytest.mark.parametrize(("rows", "width"), [(24, 40), (24, 70), (7, 65)])
def test_damaged_payloads_do_no_harm(rows, width):
    """All refuse the same ones, make the same of the others, and write no other byte."""
    ours = coders(rows * width, width)
    payload = encoded(ours[0], pictures(1, rows, width)).data
    rng, refused = np.random.default_rng(0), 0
    end = -(-rows * width // 64) * 8
    for i in range(600):
        damaged = payload.copy()
        if i % 4 == 0:
            damaged = damaged[: rng.integers(0, damaged.size)]
        elif i % 4 == 1:
            damaged[rng.integers(0, damaged.size, 3)] ^= np.uint8(1 << rng.integers(0, 8))
        elif i % 4 == 2:
            damaged[end - 1 - rng.integers(0, 2)] ^= np.uint8(0x80 >> rng.integers(0, 8))  # bits of no byte
        else:
            at = end + rng.integers(0, 40)  # as many bits as before
            damaged[at] = damaged[at] << 1 | damaged[at] >> 7
        answers = []
        for coder in ours:
            memory = np.full((3, rows * width), 0xA5, np.uint8)
            where = np.zeros(1, np.int64), np.array([damaged.size]), np.zeros(1, np.int64)
            bad = coder.decode_part(damaged, *where, np.array([1]), np.array([-1]), memory)
            assert (memory[[0, 2]] == 0xA5).all()
            answers.append((bad, memory[1].tobytes() if bad < 0 else None))
        assert answers[0] == answers[1] == answers[2]
        refused += answers[0][0] == 0
    assert 100 < refused < 600


@pytest.mark.parametrize(("start", "length"), [(-1, 50), (60, 50), (2**62, 50), (0, -1), (0, 101)])
def test_payloads_that_are_not_there(start, length):
    for coder in coders(6400, 80):
        with pytest.raises(CodecError):
            coder.decode(
                np.zeros(100, np.uint8),
                np.array([start]),
                np.array([length]),
                np.zeros(1, np.int64),
                np.zeros((1, 6400), np.uint8),
            )


def test_behind_a_palette():
    """Where colours repeat it leaves a fraction of what the palette alone does."""
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 256, (30, 3), np.uint8)
    rows = colours[rng.integers(0, 30, (4, 1, 80))].repeat(60, axis=1)  # [n, height, width, channels]
    frames = np.ascontiguousarray(rows.transpose(0, 3, 1, 2)).reshape(4, -1)
    picture = {"channels": 3, "planar": True, "row_bytes": 80}
    sizes = {}
    for method in ("near", "none"):
        codec = get_codec(method, {"filter": "palette"}, **picture)
        payloads = encoded(codec.coder(frames.shape[1]), frames)
        sizes[method] = payloads.lengths.sum()
    assert codec.inner == get_codec("none")
    assert 6 * sizes["near"] < sizes["none"]
    named = get_codec("near", {"filter": "palette"}, channels=3, planar=False, row_bytes=240).named
    assert named == Near(80)


def test_pickled():
    coder = Near(70).coder(700)
    again = pickle.loads(pickle.dumps(coder))
    frames = pictures(3, 10, 70)
    assert encoded(again, frames).data.tobytes() == encoded(coder, frames).data.tobytes()
    assert coder.nbytes == 0


def test_rows_longer_than_the_frame():
    """As a file may say; nothing is made so large."""
    frames = pictures(2, 10, 70)
    for coder, short in zip(coders(700, 1 << 60), coders(700, 700), strict=True):
        assert encoded(coder, frames).data.tobytes() == encoded(short, frames).data.tobytes()


@pytest.mark.parametrize("row_bytes", [0, -1, 2.0, True, None])
def test_settings(row_bytes):
    with pytest.raises(ValueError, match="at least 1 byte"):
        Near(row_bytes)


def test_what_is_measured_here_is_what_is_named():
    """Three coders are three kernels, where the processor has vectors."""
    found = {coder._decode for coder in coders(700, 70)}
    assert len(found) == 1 + optional.has_numba() + jit.has_vectors()
