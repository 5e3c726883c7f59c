"""`delta`: the compiled kernels do exactly what their NumPy references do, and old payloads decode forever."""

import contextlib
import pickle
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_extra_buffers.codecs import CodecError, Coder, Encoded, base, delta, get_codec, optional

pytestmark = pytest.mark.skipif(not optional.has_numba(), reason="compares the compiled kernels with NumPy")

repeatable = settings(max_examples=30)


@contextlib.contextmanager
def no_numba():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optional, "has_numba", lambda: False)
        yield


def twins(size: int, keys: int = 16) -> tuple[Coder, Coder]:
    """Return two new coders: the compiled one, and the one in NumPy."""
    codec = get_codec("delta", {"keys": keys})
    with no_numba():
        reference = codec.coder(size)
    return codec.coder(size), reference


def state(coder: Coder) -> dict[str, object]:
    """Return everything the coder knows, in comparable form."""
    return {
        name: (value.dtype, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value
        for name, value in coder.__getstate__().items()
    }


def decoded(coder: Coder, encoded: Encoded) -> np.ndarray:
    offsets = np.cumsum(encoded.lengths) - encoded.lengths
    out = np.full((len(offsets), coder.frame_bytes), 0xA5, np.uint8)
    coder.decode(encoded.data, offsets, encoded.lengths, encoded.references, out)
    return out


def game(n: int, size: int, streams: int = 1, scene: int = 40, seed: int = 0, sprite: int = 12) -> np.ndarray:
    """Return frames `[n, size]` of `streams` interleaved envs: sprites move before scenes that change and come back."""
    rng = np.random.default_rng(seed)
    scenes = rng.integers(0, 256, (3, size), np.uint8)
    frames = np.empty((n, size), np.uint8)
    for i in range(n):
        step, env = divmod(i, streams)
        frames[i] = scenes[(step // scene + env) % 3]
        start = (7 * step + 31 * env) % size
        frames[i, start : start + sprite] = step % 5
    return frames


def assert_encode_alike(kernel: Coder, reference: Coder, frames: np.ndarray, streams: np.ndarray) -> Encoded:
    ours, truth = kernel.encode(frames, streams), reference.encode(frames, streams)
    assert np.array_equal(ours.lengths, truth.lengths)
    assert np.array_equal(ours.references, truth.references)
    assert ours.data.tobytes() == truth.data.tobytes()
    assert state(kernel) == state(reference)
    for reader in (kernel, reference):
        assert np.array_equal(decoded(reader, ours), frames)
    return ours


@pytest.mark.parametrize("keys", [1, 2, 16])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 63, 64, 101, 250, 1000, 1003])
def test_kernel_equals_reference(size, keys):
    kernel, reference = twins(size, keys)
    frames = game(180, size, streams=3, scene=12, seed=size)
    for start, stop in [(0, 1), (1, 4), (4, 60), (60, 180)]:
        assert_encode_alike(kernel, reference, frames[start:stop], np.arange(start, stop) % 3)


@repeatable
@given(
    size=st.sampled_from([5, 63, 100, 256]),
    keys=st.sampled_from([1, 2, 3, 16]),
    streams=st.integers(1, 4),
    scene=st.integers(1, 30),
    seed=st.integers(0, 10**6),
    batches=st.lists(st.integers(1, 12), min_size=1, max_size=15),
    lifetime=st.integers(0, 30),
)
def test_kernel_equals_reference_while_frames_come_and_go(size, keys, streams, scene, seed, batches, lifetime):
    """Frames live for `lifetime` batches; those alive decode exactly, whatever became of the keys of the dead."""
    kernel, reference = twins(size, keys)
    frames = game(sum(batches), size, streams, scene, seed)
    alive: deque[tuple[np.ndarray, Encoded]] = deque()
    start = 0
    for n in batches:
        block = frames[start : start + n]
        alive.append((block, assert_encode_alike(kernel, reference, block, np.arange(start, start + n) % streams)))
        start += n
        if len(alive) > lifetime:
            _, dead = alive.popleft()
            kernel.release(dead.references)
            reference.release(dead.references)
        for block, encoded in alive:
            assert np.array_equal(decoded(kernel, encoded), block)


@pytest.mark.parametrize("size", [262_143, 262_144, 262_145, 262_148, 300_001])
def test_frames_whose_positions_need_two_or_four_bytes(size):
    kernel, reference = twins(size, keys=2)
    frames = game(8, size, scene=100, sprite=1000)
    frames[5, -1] ^= 255  # the very last byte
    encoded = assert_encode_alike(kernel, reference, frames, np.zeros(8, np.int64))
    assert encoded.lengths[-1] < size / 100


def test_both_write_only_what_they_need_of_the_keys():
    """Scenes come and go; keys that nobody needs are overwritten, so memory stays what a few keys take."""
    kernel, reference = twins(400, keys=4)
    rng = np.random.default_rng(0)
    alive: deque[Encoded] = deque()
    for step in range(60):
        scene = rng.integers(0, 256, 400, np.uint8)
        frames = np.repeat(scene[None], 10, axis=0)
        for i, frame in enumerate(frames):
            frame[i : i + 8] = step
        alive.append(assert_encode_alike(kernel, reference, frames, np.zeros(10, np.int64)))
        if len(alive) > 2:
            references = alive.popleft().references
            kernel.release(references)
            reference.release(references)
        # Zeros, 4 candidates, 3 scenes in use, one being replaced; votes and a background take 2 frames.
        assert kernel.nbytes <= 400 * (9 + 2) + 1000


def lengths_one_by_one(frames: np.ndarray) -> np.ndarray:
    kernel, reference = twins(frames.shape[1])
    stream = np.zeros(1, np.int64)
    return np.array([assert_encode_alike(kernel, reference, frame[None], stream).lengths[0] for frame in frames])


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("where", range(14))
def test_arrays_that_belong_together_grow_together(where, error, monkeypatch):
    """There is no memory for one of them, or Ctrl-C is pressed meanwhile: the next call finds nothing by half."""
    coder, _ = twins(500)
    frames, streams = game(40, 500, streams=4), np.arange(40) % 4
    calls = 0

    def refusing(*args):
        nonlocal calls
        calls += 1
        if calls == where + 1:
            raise error
        return base.grown(*args)

    monkeypatch.setattr(delta, "grown", refusing)
    with pytest.raises(error):
        coder.encode(frames, streams)
    for together in (("keys", "uses"), ("backgrounds", "votes", "savings"), ("candidates", "last_used")):
        assert len({len(getattr(coder, name)) for name in together}) == 1
    assert np.array_equal(decoded(coder, coder.encode(frames, streams)), frames)


def test_moving_sprites_leave_no_ghosts_in_the_keys():
    sprite = 16
    lengths = lengths_one_by_one(game(200, 2000, scene=1000, sprite=sprite))
    assert lengths[100:].max() <= 6 * (sprite // 4 + 1)  # the words of the sprite, 6 bytes each


def test_a_scene_that_comes_back_finds_its_key():
    lengths = lengths_one_by_one(game(300, 2000, scene=20))
    assert lengths[60:].max() < 200  # all three scenes were seen by then


def test_one_large_batch_is_as_small_as_many_small_ones():
    frames = game(240, 2000, scene=20)
    encoded = assert_encode_alike(*twins(2000), frames, np.zeros(240, np.int64))
    assert encoded.data.size < 1.2 * lengths_one_by_one(frames).sum()


def test_a_key_serves_other_streams():
    kernel, reference = twins(2000)
    frames = game(60, 2000, scene=1000)
    assert_encode_alike(kernel, reference, frames, np.zeros(60, np.int64))
    other = assert_encode_alike(kernel, reference, game(1, 2000, scene=1000), np.array([7]))
    assert other.lengths[0] <= 6 * 4


@pytest.mark.parametrize("to_reference", [False, True])
def test_a_pickled_coder_goes_on_alike_with_numba_and_without(to_reference):
    kernel, reference = twins(1003, keys=3)
    frames, streams = game(120, 1003, streams=2, scene=10), np.arange(120) % 2
    first = assert_encode_alike(kernel, reference, frames[:50], streams[:50])
    if to_reference:
        with no_numba():
            copy = pickle.loads(pickle.dumps(kernel))
    else:
        copy = pickle.loads(pickle.dumps(reference))
    assert state(copy) == state(kernel)
    assert np.array_equal(decoded(copy, first), frames[:50])
    assert_encode_alike(copy, reference if not to_reference else kernel, frames[50:], streams[50:])


@repeatable
@given(
    size=st.sampled_from([5, 63, 64]),
    heap=st.binary(min_size=0, max_size=120),
    where=st.lists(st.tuples(st.integers(-2, 120), st.integers(-2, 70), st.integers(-1, 4)), min_size=1, max_size=4),
)
def test_damaged_payloads_are_seen_by_both(size, heap, where):
    offsets, lengths, references = (np.array(column, np.int64) for column in zip(*where, strict=True))
    results = []
    for coder in twins(size):
        coder.encode(game(20, size, scene=3), np.zeros(20, np.int64))
        out = np.full((len(where), size), 0xA5, np.uint8)
        try:
            coder.decode(np.frombuffer(heap, np.uint8), offsets, lengths, references, out)
            results.append(out.tobytes())
        except CodecError:
            results.append(None)
    assert results[0] == results[1]


PAYLOADS = {
    "no change": ("", 8, "0000000000000000"),
    "one word": ("010001020304", 8, "0000000001020304"),
    "two words": ("0300 0f00 01020304 ff000080", 64, "00" * 12 + "01020304" + "00" * 44 + "ff000080"),
    "the rest of a word at the end": ("0200 07080900", 11, "0000000000000000070809"),
    "as long as the frame: the frame": ("0102030405060708", 8, "0102030405060708"),
    "four-byte positions": ("00000100 01020304", 262_148, "00" * 262_144 + "01020304"),
}


@pytest.mark.parametrize("numba", [True, False])
@pytest.mark.parametrize(("payload", "size", "frame"), PAYLOADS.values(), ids=PAYLOADS.keys())
def test_stored_payloads_decode_forever(payload, size, frame, numba):
    out = np.full(size, 0xA5, np.uint8)
    with contextlib.nullcontext() if numba else no_numba():
        get_codec("delta").decode(np.frombuffer(bytes.fromhex(payload), np.uint8), out)
        encoded = get_codec("delta").encode(np.frombuffer(bytes.fromhex(frame), np.uint8))
    assert out.tobytes().hex() == frame
    assert encoded.hex() == payload.replace(" ", "")


@pytest.mark.parametrize(
    "payload",
    ["01", "0100", "0100010203", "01000102030405", "020001020304", "ffff01020304"],
    ids=["cut position", "no word", "cut word", "a byte too many", "first word outside", "last word outside"],
)
def test_damaged_payloads_are_errors(payload):
    for numba in (True, False):
        with contextlib.nullcontext() if numba else no_numba(), pytest.raises(CodecError, match="delta"):
            get_codec("delta").decode(np.frombuffer(bytes.fromhex(payload), np.uint8), np.empty(8, np.uint8))
