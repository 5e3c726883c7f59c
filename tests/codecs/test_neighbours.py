"""Before `zstd`, one byte a pixel: exact in each way that frames may go, and kernels do what their references do."""

import contextlib
import pickle

import numpy as np
import pytest

from sb3_extra_buffers.codecs import CodecError, Coder, Encoded, get_codec, neighbours, optional
from sb3_extra_buffers.codecs.like import Like
from sb3_extra_buffers.codecs.neighbours import LEARNED_AFTER, Neighbours
from sb3_extra_buffers.codecs.zstd import Zstd
from sb3_extra_buffers.frames import checks

pytestmark = [
    pytest.mark.skipif(not optional.has_numba(), reason="compares the compiled kernels with NumPy"),
    pytest.mark.skipif(not optional.has_zstd(), reason="stands before zstd"),
]

ROWS, COLUMNS, CODES = 0, 1, 2
SHAPES = [(2, 3), (2, 100), (3, 70), (4, 5), (5, 7), (7, 40), (9, 3), (63, 10), (30, 100), (1000, 2)]
SHAPE = (24, 40)


@contextlib.contextmanager
def no_numba():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optional, "has_numba", lambda: False)
        yield


def twins(shape: tuple[int, int] = SHAPE) -> tuple[Coder, Coder]:
    """Return two new coders: the compiled one, and the one without numba."""
    codec = Neighbours(Zstd(3, 0), shape[1])
    with no_numba():
        reference = codec.coder(shape[0] * shape[1])
    return codec.coder(shape[0] * shape[1]), reference


def textures(n: int, shape: tuple[int, int] = SHAPE, seed: int = 0, colours: int = 40) -> np.ndarray:
    """Return frames `[n, pixels]` that repeat nowhere, but each pixel is near the one on its left."""
    rng = np.random.default_rng(seed)
    steps = rng.choice([0, 0, 0, 0, 1, 1, 255, 5], (n, *shape)).astype(np.uint8)
    return (np.cumsum(steps, axis=2, dtype=np.uint8) % np.uint8(colours)).reshape(n, -1)


def walls(n: int, shape: tuple[int, int] = SHAPE, seed: int = 0) -> np.ndarray:
    """Return frames `[n, pixels]` of which each column goes on downwards."""
    columns = np.random.default_rng(seed).integers(0, 256, (n, 1, shape[1]), np.uint8)
    return np.tile(columns, (1, shape[0], 1)).reshape(n, -1)


def stripes(n: int, shape: tuple[int, int] = SHAPE, seed: int = 0) -> np.ndarray:
    """Return frames `[n, pixels]` of one value a row."""
    rows = np.random.default_rng(seed).integers(0, 256, (n, shape[0], 1), np.uint8)
    return np.tile(rows, (1, 1, shape[1])).reshape(n, -1)


def noise(n: int, shape: tuple[int, int] = SHAPE, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, shape[0] * shape[1]), np.uint8)


def encoded(coder: Coder, frames: np.ndarray, streams: int = 2) -> Encoded:
    before = frames.copy()
    result = coder.encode(frames, np.arange(len(frames)) % streams)
    assert np.array_equal(frames, before)
    assert result.lengths.max() <= coder.frame_bytes
    return result


def decoded(coder: Coder, payloads: Encoded) -> np.ndarray:
    offsets = np.cumsum(payloads.lengths) - payloads.lengths
    out = np.full((len(offsets), coder.frame_bytes), 0xA5, np.uint8)
    coder.decode(payloads.data, offsets, payloads.lengths, payloads.references, out)
    return out


def ways(payloads: Encoded) -> set[int]:
    return set(np.minimum(payloads.references & 255, CODES).tolist())


@pytest.mark.parametrize("shape", [(1, 9), (8, 8), (7, 40), (16, 9), (9, 16), (23, 41), (40, 24)])
def test_turned_and_turned_back(shape):
    kernel, reference = twins()
    frames = noise(2, shape)
    for one in (kernel, reference):
        turned, back = np.full((2, 4, frames.shape[1]), 0xA5, np.uint8)
        one._turn(frames, shape[0], np.array([2, 1]), turned)
        assert np.array_equal(turned[[2, 1]].reshape(2, *shape[::-1]), frames.reshape(2, *shape).transpose(0, 2, 1))
        assert (turned[[0, 3]] == 0xA5).all()
        one._turn(turned, shape[1], np.arange(4), back)
        assert np.array_equal(back[[2, 1]], frames)


def test_a_payload_that_would_be_as_long_as_the_frame():
    """Codes are no way for such a frame."""
    coder, _ = twins()
    encoded(coder, textures(600), 1)
    assert CODES not in ways(encoded(coder, noise(40), 1))
    assert CODES in ways(encoded(coder, textures(40), 1))


def test_frames_go_the_way_that_suits_them():
    coder, _ = twins()
    blocks = [
        textures(LEARNED_AFTER[-1]),
        textures(64, seed=1),
        walls(64),
        stripes(64),
        noise(64),
        textures(64, seed=2),
    ]
    found = []
    for frames in blocks:
        payloads = encoded(coder, frames)
        assert np.array_equal(decoded(coder, payloads), frames)
        found.append(payloads)
    assert len(coder.sets) == 2
    last = [ways(Encoded(one.data, one.lengths[32:], one.references[32:])) for one in found[1:]]
    assert last == [{CODES}, {ROWS}, {COLUMNS}, {ROWS}, {CODES}]
    every = Encoded(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
    shuffled = np.random.default_rng(0).permutation(len(every.lengths))
    offsets = np.cumsum(every.lengths) - every.lengths
    out = np.empty((len(shuffled), coder.frame_bytes), np.uint8)
    coder.decode(every.data, offsets[shuffled], every.lengths[shuffled], every.references[shuffled], out)
    assert np.array_equal(out, np.concatenate(blocks)[shuffled])


def test_a_frame_among_others_is_a_copy_or_its_own():
    """Rows that are copied, and rows that nobody names."""
    coder, _ = twins()
    frames = np.concatenate([textures(600), walls(40)])
    payloads = encoded(coder, frames, 1)
    some = np.array([639, 3, 300, 599, 3, 70])
    offsets = np.cumsum(payloads.lengths) - payloads.lengths
    out = np.full((8, coder.frame_bytes), 0xA5, np.uint8)
    rows, sources = np.array([6, 1, 0, 3, 4, 2]), np.array([-1, -1, -1, -1, 1, -1])
    where = offsets[some], payloads.lengths[some], payloads.references[some]
    assert coder.decode_part(payloads.data, *where, rows, sources, out) == -1
    assert np.array_equal(out[rows], frames[some])
    assert (out[[5, 7]] == 0xA5).all()


def test_frames_of_a_step_are_written_in_one_call():
    """Each as it is alone; and if one of them would be too long, the others go in codes all the same."""
    coder, _ = twins()
    encoded(coder, textures(600), 4)
    frames = textures(4, seed=5)
    together = encoded(coder, frames, 4)
    assert ways(together) == {CODES}
    alone = [coder._in_codes(frame[None]) for frame in frames]
    assert together.data.tobytes() == np.concatenate([one.data for one in alone]).tobytes()
    assert together.lengths.tolist() == [one.data.size for one in alone]
    frames[2] = noise(1)[0]
    mixed = encoded(coder, frames, 4)
    assert [way == CODES for way in np.minimum(mixed.references & 255, CODES)] == [True, True, False, True]
    assert np.array_equal(decoded(coder, mixed), frames)


def test_ways_are_tried_again():
    """Often where two of them leave about as much, rarely where one leaves far less; then frames may be of any kind."""
    coder, _ = twins()
    encoded(coder, textures(600), 1)
    tries = []
    try_rows = coder._in_rows
    coder._in_rows = lambda frame: tries.append(1) or try_rows(frame)
    for seed in range(neighbours._TRIED_RARELY + 1):
        encoded(coder, textures(1, seed=seed), 1)
    assert 1 <= len(tries) <= 2
    encoded(coder, walls(neighbours._TRIED_RARELY), 1)
    assert CODES not in ways(encoded(coder, walls(1), 1))


def test_codes_leave_less_than_zstd():
    coder, _ = twins()
    payloads = encoded(coder, textures(600))
    plain = Zstd(3, 0).coder(coder.frame_bytes).encode(textures(600), np.zeros(600, np.int64))
    assert payloads.lengths[-80:].mean() < 0.8 * plain.lengths[-80:].mean()


def test_codes_are_kept_only_if_they_leave_less():
    coder, _ = twins()
    encoded(coder, walls(LEARNED_AFTER[-1] + 1))
    assert coder.sets == []
    assert coder.nbytes == 0  # what was learned from is gone


@pytest.mark.parametrize("dictionary_bytes", [0, 2000])
def test_what_is_learned_is_counted_as_memory(dictionary_bytes):
    """It never grows by more than was said before, and nothing is there before the first frame."""
    coder = Neighbours(Zstd(3, dictionary_bytes), SHAPE[1]).coder(SHAPE[0] * SHAPE[1])
    assert coder.nbytes == coder.inner.nbytes
    for start in range(0, 700, 4):
        before, room = coder.nbytes, coder.growth_bytes(4)
        encoded(coder, textures(4, seed=start))
        assert coder.nbytes <= before + room
    assert len(coder.sets) == 2
    assert coder.samples.size == 0
    assert coder.nbytes > sum(map(len, coder.sets)) + coder.inner.nbytes
    assert coder.growth_bytes(4) == coder.inner.growth_bytes(4)


def test_nothing_is_learned_where_there_is_no_room():
    coder, _ = twins()
    coder.learning = False
    assert CODES not in ways(encoded(coder, textures(700)))
    assert coder.seen == coder.nbytes == 0


def test_pickled_in_the_midst_of_learning():
    coder, _ = twins()
    frames = textures(700)
    first = encoded(coder, frames[:300])
    again = pickle.loads(pickle.dumps(coder))
    for one in (coder, again):
        rest = encoded(one, frames[300:])
        assert np.array_equal(decoded(one, first), frames[:300])
        assert np.array_equal(decoded(one, rest), frames[300:])
    assert again.sets == coder.sets
    assert again.nbytes == coder.nbytes


@pytest.mark.parametrize("which", range(2))
def test_codes_that_could_not_be_learned(monkeypatch, which):
    """Ctrl-C, or no memory, while codes are made: frames go on being added, and saved; the next ones are learned."""
    coder, fresh = twins()[0], twins()[0]
    learn = neighbours.contexts.learned
    calls = []

    def fails(*args):
        calls.append(args)
        if len(calls) == which + 1:
            raise MemoryError
        return learn(*args)

    monkeypatch.setattr(neighbours.contexts, "learned", fails)
    frames = textures(700)
    for i in range(700):
        try:
            payload = encoded(coder, frames[i : i + 1], 1)
        except MemoryError:
            assert i + 1 == LEARNED_AFTER[which]
            checks.coder(fresh, coder.__getstate__())
        else:
            assert np.array_equal(decoded(coder, payload), frames[i : i + 1])
    checks.coder(fresh, coder.__getstate__())
    assert len(calls) == 2
    assert len(coder.sets) == 1
    assert coder.samples.size == 0


def test_without_numba_nothing_is_learned_but_all_is_read():
    kernel, reference = twins()
    frames = textures(600)
    payloads = encoded(kernel, frames)
    with no_numba():
        reference = pickle.loads(pickle.dumps(kernel))
        some = slice(480, 600, 10)
        offsets = (np.cumsum(payloads.lengths) - payloads.lengths)[some]
        out = np.empty((12, kernel.frame_bytes), np.uint8)
        reference.decode(payloads.data, offsets, payloads.lengths[some], payloads.references[some], out)
        assert np.array_equal(out, frames[some])
        assert CODES not in ways(encoded(reference, frames))  # nor written: that would take too long
        fresh = Neighbours(Zstd(3, 0), SHAPE[1]).coder(kernel.frame_bytes)
        assert np.array_equal(decoded(fresh, encoded(fresh, frames)), frames)
        assert fresh.sets == []
        assert fresh.nbytes == 0


def test_no_frames_at_all():
    coder, _ = twins()
    payloads = coder.encode(np.empty((0, coder.frame_bytes), np.uint8), np.empty(0, np.int64))
    assert [part.size for part in payloads] == [0, 0, 0]


@pytest.mark.parametrize(("start", "length"), [(-1, 50), (0, 11), (0, 959), (60, 50), (2**62, 50), (0, -1)])
def test_payloads_that_are_not_there(start, length):
    coder, _ = twins()
    encoded(coder, textures(600))
    out = np.zeros((1, coder.frame_bytes), np.uint8)
    with pytest.raises(CodecError):
        coder.decode(np.zeros(100, np.uint8), np.array([start]), np.array([length]), np.array([CODES]), out)


def test_codes_that_are_not_there():
    coder, _ = twins()
    out = np.zeros((1, coder.frame_bytes), np.uint8)
    with pytest.raises(CodecError, match="codes that are not there"):
        coder.decode(np.zeros(100, np.uint8), np.zeros(1, np.int64), np.array([50]), np.array([CODES]), out)


@pytest.mark.parametrize(("frame_bytes", "row_bytes"), [(100, 1), (100, 100), (100, 7), (100, 200)])
def test_frames_without_rows_are_left_to_zstd(frame_bytes, row_bytes):
    coder = Neighbours(Zstd(3), row_bytes).coder(frame_bytes)
    assert type(coder) is type(Zstd(3).coder(frame_bytes))


def test_settings():
    with pytest.raises(ValueError, match="before zstd"):
        Neighbours(get_codec("gzip1"))
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(ValueError, match="at least 1 byte"):
            Neighbours(Zstd(3), wrong)
    palette = get_codec("zstd3", {"filter": "palette"}, channels=3, planar=False, row_bytes=480)
    assert palette.inner == Like(Neighbours(Zstd(3), 160))
    assert palette.adapted(planar=True, row_bytes=160).inner == Like(Neighbours(Zstd(3), 160))
    assert palette.without.inner == Zstd(3)


def test_forged_states_are_refused():
    coder, _ = twins()
    encoded(coder, textures(600))
    fresh, _ = twins()
    good = coder.__getstate__()
    checks.coder(fresh, good)
    half, _ = twins()
    encoded(half, textures(300))
    fewer = half.__getstate__()
    checks.coder(fresh, fewer)
    forged = [
        {**good, "sets": [good["sets"][0]] * 5},
        {**good, "seen": -1},
        {**good, "seen": LEARNED_AFTER[-1] + 1},
        {**good, "spent": -1},
        {**good, "sets": [good["sets"][0][:-1]]},
        {**good, "sets": [good["sets"][0][:256]]},
        {**fewer, "samples": fewer["samples"][:-1]},
        {**fewer, "samples": fewer["samples"][:, :-1]},
        {**fewer, "sampled": len(fewer["samples"]) + 1},
        {**fewer, "sampled": -1},
    ]
    for state in forged:
        with pytest.raises(ValueError):  # noqa: PT011 - they say different things
            checks.coder(fresh, state)
