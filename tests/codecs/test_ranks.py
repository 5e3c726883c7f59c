"""Behind a palette, before `near`: kernels do what the reference does, and whatever was learned, frames come back."""

import contextlib
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_extra_buffers.codecs import CodecError, Coder, Encoded, get_codec, jit, optional, ranks
from sb3_extra_buffers.codecs.near import Near
from sb3_extra_buffers.codecs.ranks import LEARNED_AFTER, SET_BYTES, Ranks
from sb3_extra_buffers.frames import checks

pytestmark = pytest.mark.skipif(not optional.has_numba(), reason="compares the compiled kernels with NumPy")

SHAPES = [(2, 1), (3, 7), (9, 63), (5, 64), (40, 65), (12, 100), (120, 160), (3, 333), (200, 1)]  # rows, bytes of each
SHAPE = (24, 70)

repeatable = settings(max_examples=60)


@contextlib.contextmanager
def without(what: str):
    """Without vector instructions, or without numba."""
    module = {"has_vectors": jit, "has_numba": optional}[what]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, what, lambda: False)
        yield


def coders(shape: tuple[int, int], sets: list[bytes]) -> list[Coder]:
    """Return three coders that have learned this: as this processor has it, without vectors, and without numba."""
    codec, size = Ranks(Near(shape[1]), shape[1]), shape[0] * shape[1]
    found = [codec.coder(size)]
    with without("has_vectors"):
        found.append(codec.coder(size))
    with without("has_numba"):
        found.append(codec.coder(size))
    for coder, context in zip(
        found, (contextlib.nullcontext(), without("has_vectors"), without("has_numba")), strict=True
    ):
        with context:
            coder.__setstate__({**coder.__getstate__(), "sets": sets, "seen": LEARNED_AFTER[-1]})
    found[2]._writer = found[0]._writer  # it would not write otherwise
    return found


def textures(n: int, shape: tuple[int, int] = SHAPE, seed: int = 0) -> np.ndarray:
    """Return frames `[n, pixels]` that repeat nowhere; below each pixel is often one of the same sixteen."""
    rng = np.random.default_rng(seed)
    steps = rng.choice([0, 0, 0, 1, 1, 2, 2, 3, 5, 8, 9, 13, 15], (n, *shape)).astype(np.uint8)
    pixels = np.cumsum(steps, axis=1, dtype=np.uint8) % np.uint8(16)
    groups = np.cumsum(rng.random((n, *shape)) < 0.03, axis=1, dtype=np.uint8) % np.uint8(6)
    return (16 * groups + pixels).reshape(n, -1)


def walls(n: int, shape: tuple[int, int] = SHAPE, seed: int = 0) -> np.ndarray:
    """Return frames `[n, pixels]` of which each column goes on downwards."""
    columns = np.random.default_rng(seed).integers(0, 256, (n, 1, shape[1]), np.uint8)
    return np.tile(columns, (1, shape[0], 1)).reshape(n, -1)


def noise(n: int, shape: tuple[int, int] = SHAPE, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, shape[0] * shape[1]), np.uint8)


def a_set(frames: np.ndarray, width: int, three: bool | None = None) -> bytes:
    """Return what is learned from frames; or of which three are the likeliest, or four."""
    pairs = frames[:, :-width].astype(np.int64) << 8 | frames[:, width:]
    counts = np.bincount(pairs.reshape(-1), minlength=1 << 16).astype(np.uint32)
    if three is None:
        return ranks.learned(counts)[0]
    followed = counts.reshape(256, 256).astype(np.float64)
    return ranks._set(followed, np.argsort(-followed, axis=1, kind="stable")[:, : 3 if three else 4])[0]


def any_set(rng: np.random.Generator) -> bytes:
    """Return a set of which nothing is likely: bytes may be in it twice."""
    table = rng.integers(0, 256, SET_BYTES).astype(np.uint8)
    table[1024:1280] &= 0xF1
    table[-1] = rng.integers(0, 2)
    return table.tobytes()


def drawn_from(learned: bytes, n: int, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Return frames `[n, pixels]` of which nearly all pixels are those that a set names."""
    table = np.frombuffer(learned, np.uint8)
    likely, three = table[:1024].reshape(4, 256), int(table[-1])
    among = table[1280:-1].reshape(32, 16)
    classes = (table[1024:1280] >> 4) + 16 * (table[1024:1280] & 1)
    frames = np.zeros((n, shape[0] + 1, shape[1]), np.uint8)
    for y in range(1, shape[0] + 1):
        above = frames[:, y - 1]
        told = likely[rng.choice([three, three, 1, 2, 3], above.shape), above]
        other = among[classes[above], rng.integers(0, 15, above.shape)]
        here = np.where(rng.random(above.shape) < 0.15, other, told)
        frames[:, y] = np.where(rng.random(above.shape) < 0.02, rng.integers(0, 256, above.shape), here)
    return frames[:, 1:].reshape(n, -1)


def encoded(coder: Coder, frames: np.ndarray) -> Encoded:
    before = frames.copy()
    result = coder.encode(frames, np.arange(len(frames)) % 2)
    assert np.array_equal(frames, before)
    assert result.lengths.max(initial=0) <= coder.frame_bytes
    assert result.lengths.sum() == result.data.size
    return result


def decoded(coder: Coder, payloads: Encoded) -> np.ndarray:
    offsets = np.cumsum(payloads.lengths) - payloads.lengths
    out = np.full((len(offsets), coder.frame_bytes), 0xA5, np.uint8)
    coder.decode(payloads.data, offsets, payloads.lengths, payloads.references, out)
    return out


def sets_of(payloads: Encoded) -> list[int]:
    return (payloads.references & 255).tolist()


@pytest.mark.parametrize("three", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["learned", "any"])
def test_kernels_equal_the_reference(shape, three, kind):
    """Each byte of the output is written, and no other, whatever was there before."""
    size, rng = shape[0] * shape[1], np.random.default_rng(0)
    if kind == "any":
        learned = any_set(rng)[:-1] + bytes([three])
        frames = drawn_from(learned, 6, shape, rng)
    else:
        learned = a_set(textures(20, shape, 1), shape[1], three)
        frames = textures(6, shape)
    n_told, others = len(frames), [walls(2, shape), noise(2, shape), np.zeros((1, size), np.uint8)]
    frames = np.concatenate([frames, *others])
    ours, writer, wrote = coders(shape, [learned]), ranks.writer(ranks.opened(learned)), []
    for coder in ours:
        data, lengths = np.full(frames.size + 100, 0xA5, np.uint8), np.empty(len(frames), np.int64)
        used = coder._encode(frames, shape[1], writer, data[: frames.size], lengths)
        assert (data[frames.size :] == 0xA5).all()
        wrote.append((data[:used].tobytes(), lengths.tolist()))
    assert wrote[0] == wrote[1] == wrote[2]
    heap, told = data[:used].copy(), (lengths < size).nonzero()[0]
    assert size < 1000 or told.size >= n_told
    offsets = (np.cumsum(lengths[told]) - lengths[told])[::-1].copy()
    for coder in ours:
        for poison in (0, 0xA5):
            out = np.full((len(told) + 3, size), poison, np.uint8)
            rows, sources = np.append(np.arange(len(told)) + 1, len(told) + 1), np.full(len(told) + 1, -1)
            sources[-1] = 1  # a copy of what is decoded first
            where = np.append(offsets, 0), np.append(lengths[told][::-1], 0), np.ones(len(rows), np.int64)
            if told.size:
                for one in (heap, np.frombuffer(heap.tobytes(), np.uint8)):
                    assert coder.decode_part(one, *where, rows, sources, out) == -1
                    assert np.array_equal(out[1:-2], frames[told][::-1])
                    assert np.array_equal(out[-2], out[1])
                    assert (out[[0, -1]] == poison).all()


@repeatable
@given(data=st.data(), width=st.sampled_from([1, 3, 64, 70]), rows=st.integers(2, 5), seed=st.integers(0, 10**6))
def test_any_pictures_and_any_set(data, width, rows, seed):
    values = st.lists(st.sampled_from([0, 0, 0, 1, 1, 2, 77, 255]), min_size=width * rows, max_size=width * rows)
    rng = np.random.default_rng(seed)
    learned = any_set(rng) if seed % 2 else a_set(rng.integers(0, 3, (4, width * rows)).astype(np.uint8), width)
    drawn = drawn_from(learned, 2, (rows, width), rng)
    frames = np.concatenate([np.array(data.draw(values), np.uint8)[None], drawn])
    for coder in coders((rows, width), [learned]):
        assert np.array_equal(decoded(coder, encoded(coder, frames)), frames)


@pytest.mark.parametrize("three", [True, False])
def test_what_it_leaves(three):
    """A bit for each pixel, or two; with four likely ones two more for those that are not the likeliest; and so on."""
    followed = np.zeros((256, 256))
    followed[np.arange(256), np.arange(256)] = 100
    for i in range(1, 25):
        followed[np.arange(256), (np.arange(256) + i) % 256] = 50 - i
    likely = np.argsort(-followed, axis=1)[:, : 3 if three else 4]
    learned, _ = ranks._set(followed, likely)
    shape = (64, 64)
    coder = coders(shape, [learned])[0]
    base = 1024 if three else 512

    def size(*steps: int) -> int:
        frame = np.zeros(shape, np.uint8)
        for k, step in enumerate(steps):
            frame[k + 1 :] += np.uint8(step)
        lengths = np.empty(1, np.int64)
        coder._encode(frame.reshape(1, -1), shape[1], coder._writer, np.empty(frame.size, np.uint8), lengths)
        return int(lengths[0])

    assert size() == base
    assert size(1) == base + (0 if three else 2 * 8)  # 64 pixels below others
    assert size(1, 2) == base + (0 if three else 4 * 8)
    other = 4 * 64 // 8 + (0 if three else 2 * 8)
    assert size(200) == base + other + 64  # told itself
    table = np.frombuffer(learned, np.uint8)
    of_class = table[1280:-1].reshape(2, 16, 16)[table[1024] & 1, table[1024] >> 4, :15]
    assert size(int(next(one for one in of_class if one not in table[:1024:256]))) == base + other


@pytest.mark.parametrize("shape", [(24, 40), (24, 70), (7, 65)])
def test_damaged_payloads_do_no_harm(shape):
    """All refuse the same ones, make the same of the others, and write no other byte."""
    rng, refused, size = np.random.default_rng(0), 0, shape[0] * shape[1]
    for three in (True, False):
        learned = a_set(textures(20, shape, 1), shape[1], three)
        ours = coders(shape, [learned])
        payload = encoded(ours[0], textures(1, shape))
        assert sets_of(payload) == [1]
        for i in range(500):
            damaged = payload.data.copy()
            if i % 4 == 0:
                damaged = damaged[: rng.integers(0, damaged.size)]
            elif i % 4 == 1:
                damaged[rng.integers(0, damaged.size, 3)] ^= np.uint8(1 << rng.integers(0, 8))
            elif i % 4 == 2:
                damaged = np.append(damaged, rng.integers(0, 256, rng.integers(1, 70))).astype(np.uint8)
            else:
                at = rng.integers(0, damaged.size)  # as many bits as before
                damaged[at] = damaged[at] << 1 | damaged[at] >> 7
            answers = []
            for coder in ours:
                memory = np.full((3, size), 0xA5, np.uint8)
                where = np.zeros(1, np.int64), np.array([damaged.size]), np.ones(1, np.int64)
                bad = coder.decode_part(damaged, *where, np.array([1]), np.array([-1]), memory)
                assert (memory[[0, 2]] == 0xA5).all()
                answers.append((bad, memory[1].tobytes() if bad < 0 else None))
            assert answers[0] == answers[1] == answers[2]
            refused += answers[0][0] == 0
    assert 200 < refused < 1000


@pytest.mark.parametrize("three", [True, False])
def test_payloads_that_are_not_there(three):
    """A good one, of which a byte lies outside the heap, or whose place or length is wrong."""
    shape = (80, 80)
    ours = coders(shape, [a_set(textures(20, shape, 1), 80, three)])
    payload = encoded(ours[0], textures(1, shape))
    n = payload.data.size
    assert sets_of(payload) == [1]
    for coder in ours:
        for heap, start, length in (
            (payload.data[:-1].copy(), 0, n),
            (payload.data, 1, n),
            (payload.data, -1, n),
            (payload.data, 2**62, n),
            (payload.data, 2**63 - 1, n),
            (payload.data, 0, -1),
            (payload.data, 0, n - 1),
            (np.append(payload.data, 0).astype(np.uint8), 0, n + 1),
            (np.zeros(6400, np.uint8), 0, 6400),
        ):
            where = np.array([start]), np.array([length]), np.ones(1, np.int64)
            with pytest.raises(CodecError):
                coder.decode(heap, *where, np.zeros((1, 6400), np.uint8))


def test_sets_that_are_not_there():
    coder = Ranks(Near(70), 70).coder(7000)
    with pytest.raises(CodecError, match="a set that is not there"):
        coder.decode(np.zeros(9000, np.uint8), *np.array([[0], [5000], [1]]), np.zeros((1, 7000), np.uint8))


def test_it_learns_and_leaves_less_than_near():
    """Frames of all times are read, in any order, and those that are near's better stay with it."""
    coder = Ranks(Near(SHAPE[1]), SHAPE[1]).coder(SHAPE[0] * SHAPE[1])
    blocks = [textures(600), walls(5), noise(5), textures(5, seed=1), np.zeros((2, coder.frame_bytes), np.uint8)]
    found = [encoded(coder, frames) for frames in blocks]
    assert len(coder.sets) >= 1
    assert coder.counts.size == 0
    assert sets_of(found[0])[: LEARNED_AFTER[0]] == [0] * LEARNED_AFTER[0]
    assert set(sets_of(found[0])[LEARNED_AFTER[0] :]) <= {1, 2}
    assert set(sets_of(found[2])) == {0}
    assert set(sets_of(found[3])) == {len(coder.sets)}
    for payloads, frames in zip(found, blocks, strict=True):
        near = coder.inner.encode(frames, np.zeros(len(frames), np.int64))
        assert (payloads.lengths <= near.lengths).all()
        assert np.array_equal(decoded(coder, payloads), frames)
    near = coder.inner.encode(blocks[3], np.zeros(5, np.int64))
    assert found[3].lengths.sum() < 0.8 * near.lengths.sum()
    every = Encoded(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
    shuffled = np.random.default_rng(0).permutation(len(every.lengths))
    offsets, out = np.cumsum(every.lengths) - every.lengths, np.empty((len(shuffled), coder.frame_bytes), np.uint8)
    coder.decode(every.data, offsets[shuffled], every.lengths[shuffled], every.references[shuffled], out)
    assert np.array_equal(out, np.concatenate(blocks)[shuffled])


def test_frames_are_told_by_near_if_that_is_less():
    """One among others; the others stay as they are."""
    shape = SHAPE
    coder = coders(shape, [a_set(textures(20), shape[1])])[0]
    frames = textures(6, seed=3)
    plain = encoded(coder, frames)
    frames[2], frames[4] = noise(1)[0], np.repeat(np.arange(24, dtype=np.uint8) * 7, 70)
    mixed = encoded(coder, frames)
    assert sets_of(plain) == [1] * 6
    assert sets_of(mixed)[2] == 0
    assert [sets_of(mixed)[i] for i in (0, 1, 3, 5)] == [1] * 4
    assert mixed.lengths[2] == coder.frame_bytes
    assert np.array_equal(decoded(coder, mixed), frames)


def test_what_was_learned_is_kept_only_if_it_leaves_less():
    coder = Ranks(Near(SHAPE[1]), SHAPE[1]).coder(SHAPE[0] * SHAPE[1])
    encoded(coder, noise(LEARNED_AFTER[-1] + 1))
    assert coder.sets == []
    assert coder.nbytes == 0  # what was counted is gone


def test_steps_of_any_size_learn_the_same():
    frames = textures(600)
    found = []
    for step in (1, 4, 7, 600):
        coder = Ranks(Near(SHAPE[1]), SHAPE[1]).coder(frames.shape[1])
        for start in range(0, 600, step):
            encoded(coder, frames[start : start + step])
        found.append(coder.sets)
    assert found[0] == found[1] == found[2] == found[3]


def test_what_is_learned_is_counted_as_memory():
    """It never grows by more than was said before, and nothing is there before the first frame."""
    coder = Ranks(Near(SHAPE[1]), SHAPE[1]).coder(SHAPE[0] * SHAPE[1])
    assert coder.nbytes == 0
    for start in range(0, 560, 4):
        before, room = coder.nbytes, coder.growth_bytes(4)
        encoded(coder, textures(4, seed=start))
        assert coder.nbytes <= before + room
    assert coder.sets
    assert coder.nbytes == sum(map(len, coder.sets)) + coder._writer.nbytes
    assert coder.counts.size == 0
    assert coder._writer.nbytes == ranks._WRITER_BYTES
    assert coder.growth_bytes(4) == 0


def test_nothing_is_learned_where_there_is_no_room():
    coder = Ranks(Near(SHAPE[1]), SHAPE[1]).coder(SHAPE[0] * SHAPE[1])
    coder.learning = False
    assert set(sets_of(encoded(coder, textures(600)))) == {0}
    assert coder.seen == coder.nbytes == 0


def test_pickled_in_the_midst_of_learning():
    coder = Ranks(Near(SHAPE[1]), SHAPE[1]).coder(SHAPE[0] * SHAPE[1])
    frames = textures(700)
    first = encoded(coder, frames[:300])
    again = pickle.loads(pickle.dumps(coder))
    rest = [encoded(one, frames[300:]) for one in (coder, again)]
    assert rest[0].data.tobytes() == rest[1].data.tobytes()
    for one in (coder, again):
        assert np.array_equal(decoded(one, first), frames[:300])
        assert np.array_equal(decoded(one, rest[0]), frames[300:])
    assert again.sets == coder.sets
    assert again.nbytes == coder.nbytes


def test_a_set_that_comes_is_not_refused_for_the_counts_that_go():
    """At the last one, less is needed than before."""
    coder = Ranks(Near(SHAPE[1]), SHAPE[1]).coder(SHAPE[0] * SHAPE[1])
    encoded(coder, textures(LEARNED_AFTER[-1] - 2))
    assert coder.counts.size
    assert coder.growth_bytes(4) == 0
    assert coder.growth_bytes(1) == 0
    with without("has_numba"):
        assert Ranks(Near(SHAPE[1]), SHAPE[1]).coder(SHAPE[0] * SHAPE[1]).growth_bytes(600) == 0


def test_parts_of_a_large_frame_are_counted_everywhere():
    """Of each env, too: none of them is always counted in the same place."""
    coder = Ranks(Near(160), 160).coder(19200)
    frame = np.zeros((120, 160), np.uint8)
    frame[:] = np.arange(120)[:, None]
    for nth in range(LEARNED_AFTER[0] - 1):
        given = frame if nth % 4 == 1 else np.zeros_like(frame)
        encoded(coder, given.reshape(1, -1))
    seen = coder.counts.reshape(256, 256)[np.arange(119), np.arange(1, 120)]
    assert (seen[5:-5] > 0).all()


@pytest.mark.parametrize("which", range(2))
def test_sets_that_could_not_be_learned(monkeypatch, which):
    """Ctrl-C, or no memory, meanwhile: frames go on being added, and saved; the next set is learned."""
    coder, fresh = (Ranks(Near(SHAPE[1]), SHAPE[1]).coder(SHAPE[0] * SHAPE[1]) for _ in range(2))
    learn, calls = ranks.learned, []

    def fails(*args):
        calls.append(args)
        if len(calls) == which + 1:
            raise MemoryError
        return learn(*args)

    monkeypatch.setattr(ranks, "learned", fails)
    frames = textures(600)
    for i in range(600):
        try:
            payload = encoded(coder, frames[i : i + 1])
        except MemoryError:
            assert i + 1 == LEARNED_AFTER[which]
            checks.coder(fresh, coder.__getstate__())
        else:
            assert np.array_equal(decoded(coder, payload), frames[i : i + 1])
    checks.coder(fresh, coder.__getstate__())
    assert len(calls) == 2
    assert len(coder.sets) == 1
    assert coder.counts.size == 0


def test_without_numba_nothing_is_learned_but_all_is_read():
    kernel = Ranks(Near(SHAPE[1]), SHAPE[1]).coder(SHAPE[0] * SHAPE[1])
    frames = textures(540)
    payloads = encoded(kernel, frames)
    with without("has_numba"):
        reference = pickle.loads(pickle.dumps(kernel))
        assert np.array_equal(decoded(reference, payloads), frames)
        assert set(sets_of(encoded(reference, frames[:9]))) == {0}  # nor written: that would take too long
        fresh = Ranks(Near(SHAPE[1]), SHAPE[1]).coder(kernel.frame_bytes)
        assert np.array_equal(decoded(fresh, encoded(fresh, frames)), frames)
        assert fresh.sets == []


def test_no_frames_at_all():
    for coder in (Ranks(Near(70), 70).coder(7000), coders((100, 70), [a_set(textures(3), 70)])[0]):
        payloads = coder.encode(np.empty((0, 7000), np.uint8), np.empty(0, np.int64))
        assert [part.size for part in payloads] == [0, 0, 0]


@pytest.mark.parametrize("row_bytes", [100, 101, 10**9])
def test_frames_of_one_row_are_left_to_near(row_bytes):
    coder = Ranks(Near(row_bytes), row_bytes).coder(100)
    assert type(coder) is type(Near(1).coder(100))


def test_settings():
    with pytest.raises(ValueError, match="before near"):
        Ranks(get_codec("gzip1"))
    for wrong in (0, -1, 2.0, True, None):
        with pytest.raises(ValueError, match="at least 1 byte"):
            Ranks(Near(3), wrong)
    palette = get_codec("near", {"filter": "palette"}, channels=3, planar=False, row_bytes=480)
    assert palette.inner == Ranks(Near(160), 160)
    assert palette.adapted(planar=True, row_bytes=160).inner == Ranks(Near(160), 160)
    assert palette.without.inner == palette.named == Near(160)


def test_forged_states_are_refused():
    coder, fresh = (Ranks(Near(SHAPE[1]), SHAPE[1]).coder(SHAPE[0] * SHAPE[1]) for _ in range(2))
    encoded(coder, textures(540))
    good = coder.__getstate__()
    checks.coder(fresh, good)
    no_class = bytearray(good["sets"][0])
    no_class[1024] |= 8
    forged = [
        {**good, "sets": [good["sets"][0]] * 3},
        {**good, "sets": [good["sets"][0][:-1]]},
        {**good, "sets": [good["sets"][0][:-1] + b"\2"]},
        {**good, "sets": [bytes(no_class)]},
        {**good, "seen": -1},
        {**good, "seen": LEARNED_AFTER[-1] + 1},
        {**good, "spent": -1},
        {**good, "counts": np.zeros(65535, np.uint32)},
        {**good, "seen": 0},
    ]
    for state in forged:
        with pytest.raises(ValueError):  # noqa: PT011 - they say different things
            checks.coder(fresh, state)
    for named in ([len(good["sets"]) + 1], [-1]):
        with pytest.raises(ValueError, match="not there"):
            checks.references(coder, np.array(named))


def test_what_is_measured_here_is_what_is_named():
    """Three coders are three kernels, where the processor has vectors."""
    found = {coder._decode for coder in coders((10, 70), [a_set(textures(3), 70)])}
    assert len(found) == 2 + jit.has_vectors()
