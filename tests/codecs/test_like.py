"""`like`: exact, whatever comes back; kernels do what their references do; keys come, go, and are found again."""

import contextlib
import pickle
from collections import deque
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupting import interrupts

from sb3_extra_buffers.codecs import CodecError, Coder, Encoded, get_codec, like, optional
from sb3_extra_buffers.codecs.like import Like
from sb3_extra_buffers.frames import checks
from sb3_extra_buffers.frames.array import CompressedArray

pytestmark = pytest.mark.skipif(not optional.has_numba(), reason="compares the compiled kernels with NumPy")

SIZE = 1920

repeatable = settings(max_examples=60)


@contextlib.contextmanager
def no_numba():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optional, "has_numba", lambda: False)
        yield


def twins(size: int = SIZE, method: str = "gzip1") -> tuple[Coder, Coder]:
    """Return two new coders: the compiled one, and one whose kernels are the references."""
    codec = Like(get_codec(method))
    with no_numba():
        reference = codec.coder(size)
    reference._has_kernels = True  # it takes longer, but here it tries
    return codec.coder(size), reference


def state(coder: Coder) -> dict[str, object]:
    """Return everything the coder knows, in comparable form."""
    return {
        name: (value.dtype, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value
        for name, value in vars(coder).items()
        if isinstance(value, (np.ndarray, int))
        if name != "_has_kernels"
    }


def views(n: int, size: int = SIZE, seed: int = 0) -> np.ndarray:
    """Return frames `[n, size]` of few values, which have nothing in common."""
    return np.random.default_rng(seed).integers(0, 16, (n, size)).astype(np.uint8)


def with_sprites(frames: np.ndarray, seed: int = 0, size: int = 20) -> np.ndarray:
    """Return the frames with something before each."""
    rng, frames = np.random.default_rng(seed), frames.copy()
    for frame in frames:
        start = rng.integers(0, frame.size - size)
        frame[start : start + size] = rng.integers(16, 30)
    return frames


def encoded(coder: Coder, frames: np.ndarray) -> Encoded:
    """Return what all should be: payloads that give the frames again."""
    before = frames.copy()
    result = coder.encode(frames, np.arange(len(frames)) % 4)
    assert np.array_equal(frames, before)
    assert result.lengths.max() <= coder.frame_bytes
    assert result.lengths.sum() == result.data.size
    assert result.references.max() < 1 << 24
    assert np.array_equal(decoded(coder, result), frames)
    return result


def decoded(coder: Coder, payloads: Encoded) -> np.ndarray:
    offsets = np.cumsum(payloads.lengths) - payloads.lengths
    out = np.full((len(offsets), coder.frame_bytes), 0xA5, np.uint8)
    coder.decode(payloads.data, offsets, payloads.lengths, payloads.references, out)
    return out


def by_key(payloads: Encoded) -> list[bool]:
    return (payloads.references & 1 == 1).tolist()


def assert_counted(coder: Coder, alive: list[np.ndarray]) -> None:
    """Check that each key counts who refers to it, and that its memory is its own."""
    uses = np.zeros(len(coder.uses), np.int64)
    np.add.at(uses, coder.keys[coder.keys >= 0], 1)
    for references in alive:
        np.add.at(uses, references[references & 1 == 1] >> 1, 1)
    assert np.array_equal(coder.uses, uses)
    taken = like.rows_of(coder.parts, coder.sizes, coder.rows.shape[1])
    assert sorted([*taken.tolist(), *coder._free_rows.tolist()]) == [*range(len(coder.rows))]
    free_keys = np.flatnonzero(coder.sizes == 0)
    assert coder._free_keys.tolist() == free_keys.tolist()


@pytest.mark.parametrize("size", [1, 7, 63, 64, 65, 511, 512, 513, 1000, 19_200])
def test_kernels_equal_references(size):
    """Each byte of the output is written, and no other, whatever was there before."""
    kernel, reference = twins()
    rng = np.random.default_rng(size)
    keys = views(3, size)
    frames = keys[[0, 1, 2, 0, 1, 2, 0]].copy()
    nth = np.array([0, 1, 2, 0, 1, 2, 1])
    for i, share in enumerate([0, 1 / size, 0.01, 0.3, 1]):
        changed = rng.random(size) < share
        frames[i + 1, changed] ^= 1 + (np.arange(size)[changed] % 7).astype(np.uint8)
    frames[2, -1] ^= 1
    which = np.array([6, 5, 3, 2, 1, 0])
    for most in (0, min(40, size - 1), size - 1):
        written = []
        for coder in (kernel, reference):
            memory, lengths = np.full(6 * most + 9, 0xA5, np.uint8), np.full(6, 77)
            end = coder._tell(frames, which, keys, nth[which], most, memory[:-9], lengths)
            assert (memory[end:] == 0xA5).all()
            written.append((memory[:end], lengths))
        (data, lengths), (other, other_lengths) = written
        assert data.tobytes() == other.tobytes()
        assert np.array_equal(lengths, other_lengths)
        assert lengths.max() <= most
        assert lengths[lengths >= 0].sum() == data.size
        there = np.flatnonzero(lengths >= 0)
        offsets = (np.cumsum(np.maximum(lengths, 0)) - np.maximum(lengths, 0))[there]
        for coder in (kernel, reference):
            for poison in (0, 0xA5):
                for heap in (data.copy(), np.frombuffer(data.tobytes(), np.uint8)):
                    out = np.full((8, size), poison, np.uint8)
                    rows = there + 1
                    assert coder._patch(heap, offsets, lengths[there], nth[which[there]], rows, keys, out) == -1
                    assert np.array_equal(out[rows], frames[which[there]])
                    assert (np.delete(out, rows, axis=0) == poison).all()


@repeatable
@given(
    n_views=st.integers(1, 30),
    seed=st.integers(0, 10**6),
    batches=st.lists(st.integers(1, 12), min_size=1, max_size=15),
    lifetime=st.integers(0, 8),
    most=st.sampled_from([1, 12, 20, 2048]),
)
def test_kernels_equal_references_while_frames_come_and_go(n_views, seed, batches, lifetime, most):
    """Frames live for `lifetime` batches; those alive decode exactly, whatever became of the keys of the dead."""
    rng = np.random.default_rng(seed)
    scenes = views(n_views, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(like, "MOST", most)
        patch.setattr(like, "_AT_ONCE", min(most, 7))
        patch.setattr(like, "_STEP", 3)
        ours = twins()
        alive: deque[tuple[np.ndarray, Encoded]] = deque()
        for n in batches:
            frames = with_sprites(scenes[rng.integers(0, n_views, n)], seed + n, int(rng.integers(1, 300)))
            results = [encoded(coder, frames) for coder in ours]
            assert results[0].data.tobytes() == results[1].data.tobytes()
            assert np.array_equal(results[0].references, results[1].references)
            assert state(ours[0]) == state(ours[1])
            assert len(ours[0].keys) <= most
            alive.append((frames, results[0]))
            if len(alive) > lifetime:
                _, dead = alive.popleft()
                for coder in ours:
                    coder.release(dead.references)
            for block, payloads in alive:
                assert np.array_equal(decoded(ours[0], payloads), block)
        assert_counted(ours[0], [payloads.references for _, payloads in alive])


def test_what_comes_back_takes_little():
    """The second time it becomes a key, from then on only what differs is told."""
    coder, _ = twins()
    scenes = views(8)
    assert by_key(encoded(coder, scenes)) == [False] * 8
    again = encoded(coder, with_sprites(scenes, seed=1))
    assert by_key(again) == [True] * 8
    assert again.lengths.tolist() == [0] * 8
    for seed in range(2, 6):
        later = encoded(coder, with_sprites(scenes, seed=seed))
        assert by_key(later) == [True] * 8
        assert later.lengths.max() < 80
    assert encoded(coder, with_sprites(scenes, seed=1)).lengths.tolist() == [0] * 8  # the keys themselves
    assert coder.sizes[coder.sizes > 0].size == 8


def test_what_comes_back_within_a_batch():
    coder, _ = twins()
    encoded(coder, views(3, seed=9))
    scene = views(1)
    payloads = encoded(coder, with_sprites(scene.repeat(6, axis=0)))
    assert by_key(payloads) == [False, True, True, True, True, True]
    assert payloads.lengths[1] == 0
    assert payloads.lengths[2:].max() < 120


def test_what_never_comes_back_costs_its_marks():
    coder, _ = twins()
    plain = get_codec("gzip1").coder(SIZE)
    for seed in range(60):
        frames = views(50, seed=seed)
        payloads = encoded(coder, frames)
        assert payloads.data.tobytes() == plain.encode(frames, np.zeros(50, np.int64)).data.tobytes()
        assert not payloads.references.any()
    assert len(coder.rows) == 0
    assert coder.nbytes < 2048 * (32 + 3 * 8) + 2000


def test_frames_of_zeros():
    coder, _ = twins()
    out = np.full((3, SIZE), 0xA5, np.uint8)
    nothing = np.zeros(3, np.int64)
    coder.decode(np.zeros(0, np.uint8), nothing, nothing, nothing, out)
    assert not out.any()


def test_noise_is_no_key():
    """Frames that cannot be made smaller, and then come back."""
    coder, _ = twins()
    noise = np.random.default_rng(0).integers(0, 256, (5, SIZE)).astype(np.uint8)
    for _ in range(4):
        payloads = encoded(coder, noise)
    assert payloads.lengths.tolist() == [0] * 5
    whole = encoded(coder, np.random.default_rng(1).integers(0, 256, (2, SIZE)).astype(np.uint8))
    assert whole.lengths.tolist() == [SIZE] * 2


def test_views_that_were_not_seen_for_long_are_forgotten(monkeypatch):
    """Their keys stay as long as frames refer to them, and then give their memory to others."""
    monkeypatch.setattr(like, "MOST", 20)
    monkeypatch.setattr(like, "_AT_ONCE", 5)
    coder, _ = twins()
    alive: deque[tuple[np.ndarray, Encoded]] = deque()
    sizes = []
    for turn in range(60):
        scenes = views(8, seed=turn)
        for seed in range(3):
            frames = with_sprites(scenes, seed)
            alive.append((frames, encoded(coder, frames)))
        while len(alive) > 9:
            coder.release(alive.popleft()[1].references)
        for frames, payloads in alive:
            assert np.array_equal(decoded(coder, payloads), frames)
        assert_counted(coder, [payloads.references for _, payloads in alive])
        sizes.append(coder.nbytes)
    assert sizes[-1] < 1.5 * sizes[6]


def test_keys_of_which_all_frames_are_gone_make_room_for_others():
    """In a small buffer, what was seen long ago is remembered, but keeps no memory."""
    coder, _ = twins()
    sizes = []
    for turn in range(30):
        alive = [encoded(coder, with_sprites(views(8, seed=turn), seed)) for seed in range(3)]
        assert_counted(coder, [payloads.references for payloads in alive])
        sizes.append(coder.rows.size)
        for payloads in alive:
            coder.release(payloads.references)
    assert sizes[-1] <= 1.3 * sizes[0]
    again = encoded(coder, with_sprites(views(8, seed=0), 9))
    assert again.lengths.tolist() == [0] * 8


def test_no_new_memory_without_room():
    coder, _ = twins()
    coder.learning = False
    before = coder.nbytes
    for seed in range(4):
        assert by_key(encoded(coder, with_sprites(views(5), seed))) == [False] * 5
    assert coder.nbytes == before
    coder.learning = True
    for seed in range(3):
        encoded(coder, with_sprites(views(5), seed))
    coder.learning = False
    before = coder.nbytes
    for seed in range(4):
        assert by_key(encoded(coder, with_sprites(views(5), seed))) == [True] * 5
        assert by_key(encoded(coder, with_sprites(views(5, seed=7), seed))) == [False] * 5
    assert coder.nbytes == before


def test_memory_grows_by_no_more_than_it_says():
    coder, _ = twins(method="none")
    for turn in range(40):
        n = 1 + turn % 9
        frames = with_sprites(views(n, seed=turn % 15), turn)
        allowed = coder.nbytes + coder.growth_bytes(n) + coder.missing_bytes(4)
        encoded(coder, frames)
        assert coder.nbytes <= allowed
    assert len(coder.rows) > 32


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_a_pickled_coder_goes_on_alike(cut):
    coder, _ = twins(method="delta")
    blocks = [with_sprites(views(6, seed=turn % 2), turn) for turn in range(9)]
    first = [encoded(coder, block) for block in blocks[:cut]]
    for payloads in first[:-1]:
        coder.release(payloads.references)
    copy = pickle.loads(pickle.dumps(coder))
    assert copy.nbytes == coder.nbytes
    assert np.array_equal(decoded(copy, first[-1]), blocks[cut - 1])
    for block in blocks[cut:]:
        ours, theirs = encoded(coder, block), encoded(copy, block)
        assert ours.data.tobytes() == theirs.data.tobytes()
        assert np.array_equal(ours.references, theirs.references)


def test_the_inner_codec_hears_what_is_released(monkeypatch):
    monkeypatch.setattr(like, "MOST", 12)
    monkeypatch.setattr(like, "_AT_ONCE", 6)
    coder, _ = twins(method="delta")
    for turn in range(30):
        coder.release(encoded(coder, with_sprites(views(6, seed=turn // 4), turn)).references)
        of_keys = coder.references[coder.sizes > 0]
        alive = np.zeros(len(coder.inner.uses), np.int64)
        alive[0] = 1
        np.add.at(alive, coder.inner.candidates[coder.inner.last_used >= 0], 1)
        np.add.at(alive, of_keys, 1)
        assert np.array_equal(coder.inner.uses, alive)
        assert_counted(coder, [])


def test_without_numba_it_reads_but_does_not_try():
    coder, _ = twins()
    blocks = [with_sprites(views(5), seed) for seed in range(4)]
    payloads = [encoded(coder, block) for block in blocks]
    with no_numba():
        copy = pickle.loads(pickle.dumps(coder))
        for block, one in zip(blocks, payloads, strict=True):
            assert np.array_equal(decoded(copy, one), block)
        assert by_key(encoded(copy, blocks[0])) == [False] * 5


def test_damaged_payloads():
    """Kernel and reference refuse the same ones, and read the same in the others."""
    ours = twins(1000)
    rng = np.random.default_rng(0)
    keys = views(1, 1000)
    frame = with_sprites(keys, size=60)
    frame[0, 990:] = 99
    data, length = np.zeros(2000, np.uint8), np.zeros(1, np.int64)
    one = np.zeros(1, np.int64)
    size = ours[0]._tell(frame, one, keys, one, 2000, data, length)
    refused = 0
    for i in range(600):
        damaged = data[:size].copy()
        if i % 4 == 0:
            damaged = damaged[: rng.integers(1, size)]
        elif i % 4 == 1:
            damaged[rng.integers(0, size)] ^= np.uint8(1 << rng.integers(0, 8))
        elif i % 4 == 2:
            at = rng.integers(0, 20)
            damaged[at] = damaged[at] << 1 | damaged[at] >> 7  # as many bits as before
        else:
            damaged = np.append(damaged, np.zeros(rng.integers(1, 5), np.uint8))
        answers = []
        for coder in ours:
            out = np.full((3, 1000), 0xA5, np.uint8)
            bad = coder._patch(damaged, one, np.array([damaged.size]), one, np.array([1]), keys, out)
            assert (out[[0, 2]] == 0xA5).all()
            answers.append((bad, out[1].tobytes() if bad < 0 else None))
        assert answers[0] == answers[1]
        refused += answers[0][0] == 0
    assert 200 < refused < 600


@pytest.mark.parametrize("reference", [9, 201, -1, 2**40 + 1])
def test_keys_that_are_not_there(reference):
    coder, _ = twins()
    for seed in range(3):
        payloads = encoded(coder, with_sprites(views(2), seed))
    with pytest.raises(CodecError, match="key"):
        decoded(coder, payloads._replace(references=np.array([payloads.references[0], reference])))


@pytest.mark.parametrize(("start", "length"), [(-1, 50), (60, 50), (2**62, 50), (0, -1), (0, 5000)])
def test_payloads_that_are_not_there(start, length):
    for coder in twins():
        for seed in range(3):
            encoded(coder, with_sprites(views(2), seed))
        for reference in (0, 1):
            with pytest.raises(CodecError):
                coder.decode(
                    np.ones(100, np.uint8),
                    np.array([start]),
                    np.array([length]),
                    np.array([reference]),
                    np.zeros((1, SIZE), np.uint8),
                )


def test_rows_that_are_copied():
    coder, _ = twins()
    for seed in range(3):
        frames = with_sprites(views(3), seed)
        payloads = encoded(coder, np.concatenate([frames, views(1, seed=20 + seed)]))
    offsets = np.cumsum(payloads.lengths) - payloads.lengths
    out = np.full((6, SIZE), 0xA5, np.uint8)
    which, rows, sources = np.array([0, 3, 1, 0]), np.array([4, 0, 2, 5]), np.array([-1, -1, -1, 4])
    where = offsets[which], payloads.lengths[which], payloads.references[which], rows, sources
    assert coder.decode_part(payloads.data, *where, out) == -1
    expected = np.concatenate([frames, views(1, seed=22)])[which]
    assert np.array_equal(out[rows], expected)
    assert (out[[1, 3]] == 0xA5).all()


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["_look", "_tell", "_behind", "_keep", "_decode_keys", "_make_room"])
def test_interrupted(where, error):
    """No key is counted for less than refers to it, and none stays on its way."""
    coder, _ = twins()
    alive = [encoded(coder, with_sprites(views(4), seed)) for seed in range(3)]
    blocks = [with_sprites(views(4), seed) for seed in range(3)]
    known = getattr(coder, where)

    def interrupted(*args: object) -> object:
        result = known(*args)
        raise error(result)

    for turn in range(3):
        frames = np.concatenate([with_sprites(views(4), 10 + turn), views(3, seed=30), views(3, seed=40 + turn)])
        setattr(coder, where, interrupted)
        with contextlib.suppress(error):
            alive.append(coder.encode(frames, np.zeros(10, np.int64)))
            blocks.append(frames)
        setattr(coder, where, known)
        assert (coder.keys != like.COMING).all()
        uses = np.zeros(len(coder.uses), np.int64)
        np.add.at(uses, coder.keys[coder.keys >= 0], 1)
        for payloads in alive:
            np.add.at(uses, payloads.references[payloads.references & 1 == 1] >> 1, 1)
        assert (coder.uses >= uses).all()
        for block, payloads in zip(blocks, alive, strict=True):
            assert np.array_equal(decoded(coder, payloads), block)
        encoded(coder, frames)


def test_ctrl_c_anywhere():
    """What was encoded before stays what it was, whatever is encoded afterwards."""
    where, was_interrupted = 0, True
    while was_interrupted:
        coder, _ = twins(method="none")
        blocks = [with_sprites(views(4), seed) for seed in range(3)]
        payloads = [encoded(coder, block) for block in blocks]
        coder.release(encoded(coder, with_sprites(views(4, seed=5), 1)).references)
        coder.release(encoded(coder, with_sprites(views(4, seed=5), 2)).references)
        mixed = np.concatenate([with_sprites(views(4), 10), views(2, seed=30), with_sprites(views(2, seed=30), 1)])
        call = partial(coder.encode, mixed, np.zeros(8, np.int64))
        was_interrupted = interrupts(call, where, ("sb3_extra_buffers.codecs.like",))
        assert (coder.keys != like.COMING).all()
        for seed in range(4):
            blocks.append(with_sprites(views(6, seed=40), seed))
            payloads.append(encoded(coder, blocks[-1]))
        for block, one in zip(blocks, payloads, strict=True):
            assert np.array_equal(decoded(coder, one), block)
        where += 3
    assert where > 500


def test_files_that_say_what_cannot_be():
    coder, _ = twins()
    for seed in range(3):
        references = encoded(coder, with_sprites(views(3), seed)).references
    fresh, _ = twins()
    good = coder.__getstate__()
    checks.coder(fresh, good)
    checks.references(coder, references)
    n = len(coder.sizes)
    for wrong in (2 * n + 1, 2 * n + 3, -1):
        with pytest.raises(ValueError, match="not there"):
            checks.references(coder, np.array([wrong]))
    forged = [
        {"keys": np.full_like(coder.keys, n)},
        {"keys": np.full_like(coder.keys, -3)},
        {"keys": coder.keys[1:]},
        {"marks": coder.marks[1:]},
        {"usual": -1},
        {"usual": 65 * SIZE},
        {"sizes": np.full_like(coder.sizes, SIZE + 1)},
        {"sizes": np.full_like(coder.sizes, -1)},
        {"sizes": np.zeros_like(coder.sizes)},
        {"parts": np.full_like(coder.parts, len(coder.rows))},
        {"rows": coder.rows[:, 1:]},
        {"rows": coder.rows[:3]},
        {"uses": coder.uses[1:]},
        {"clock": np.zeros(2, np.int64)},
    ]
    for change in forged:
        with pytest.raises(ValueError):  # noqa: PT011 - they say different things
            checks.coder(twins()[0], {**good, **change})
    coder, _ = twins(method="delta")
    for seed in range(3):
        encoded(coder, with_sprites(views(3), seed))
    with pytest.raises(ValueError, match="not there"):
        checks.coder(coder, {**coder.__getstate__(), "references": coder.references + 9})


def test_small_frames_go_to_the_inner_codec():
    assert type(Like(get_codec("gzip1")).coder(511)) is type(get_codec("gzip1").coder(511))


def test_behind_a_palette():
    """Pictures of few colours that come back, in the usual place: before what stands before zstd."""
    codec = get_codec("zstd3", {"filter": "palette"}, channels=3, planar=True, row_bytes=40)
    assert isinstance(codec.inner, Like)
    assert codec.named == get_codec("zstd3")
    assert codec.adapted(row_bytes=20).inner.inner.row_bytes == 20
    coder = codec.coder(3 * SIZE)
    colours = np.random.default_rng(0).integers(0, 256, (40, 3)).astype(np.uint8)
    sizes = []
    for seed in range(5):
        pictures = colours[with_sprites(views(5), seed)].transpose(0, 2, 1).reshape(5, -1)
        sizes.append(encoded(coder, np.ascontiguousarray(pictures)).lengths.mean())
    assert max(sizes[2:]) < sizes[0] / 8


def test_saved_and_loaded(tmp_path):
    """Rows are overwritten and saved again and again; what is loaded is the same, and goes on."""
    colours = np.random.default_rng(0).integers(0, 256, (40, 3)).astype(np.uint8)
    scenes = views(6)
    picture = {"compression_method": "zstd3", "compression_kwargs": {"filter": "palette"}, "frame_stack": 1}
    made = CompressedArray((20, 2), np.uint8, (3, 40, 48), **picture)
    plain = np.zeros((20, 2, 3, 40, 48), np.uint8)
    path = tmp_path / "array"
    for step in range(100):
        if step == 60:
            scenes = views(6, seed=1)
        frames = with_sprites(scenes[[step % 6, (step + 2) % 6]], seed=step)
        pictures = colours[frames].transpose(0, 2, 1).reshape(2, 3, 40, 48)
        made[step % 20] = plain[step % 20] = pictures
        if step % 15 == 14:
            made.save(path)
            loaded = CompressedArray.load(path)
            assert np.array_equal(loaded[:], plain)
            coder = loaded.store.frames.coder.inner
            assert type(coder) is like.LikeCoder
            assert coder.sizes.any()
            if step > 40:
                made = loaded
    assert np.array_equal(made[:], plain)
