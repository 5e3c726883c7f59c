"""`delta/2`: the compiled kernels do exactly what their references do, codes are learned, and old payloads decode."""

import contextlib
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_extra_buffers.codecs import CodecError, Coder, Encoded, get_codec, jit, optional

pytestmark = pytest.mark.skipif(not optional.has_numba(), reason="compares the compiled kernels with NumPy")

repeatable = settings(max_examples=30)
with_vectors_and_without = pytest.mark.parametrize("vectors", [True, False] if jit.has_vectors() else [False])


@contextlib.contextmanager
def no_numba():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optional, "has_numba", lambda: False)
        yield


def twins(size: int, keys: int, row_bytes: int, vectors: bool = True) -> tuple[Coder, Coder]:
    """Return two new coders: the compiled one, if wanted without vector instructions, and the one without numba."""
    codec = get_codec("delta/2", {"keys": keys}, row_bytes=row_bytes)
    with no_numba():
        reference = codec.coder(size)
    with pytest.MonkeyPatch.context() as patch:
        if not vectors:
            patch.setattr(jit, "has_vectors", lambda: False)
        return codec.coder(size), reference


def state(coder: Coder) -> dict[str, object]:
    """Return everything the coder knows, in comparable form."""
    return {
        name: state(value)
        if isinstance(value, Coder)
        else (value.dtype, value.shape, value.tobytes())
        if isinstance(value, np.ndarray)
        else value
        for name, value in coder.__getstate__().items()
    }


def decoded(coder: Coder, encoded: Encoded) -> np.ndarray:
    offsets = np.cumsum(encoded.lengths) - encoded.lengths
    out = np.full((len(offsets), coder.frame_bytes), 0xA5, np.uint8)
    coder.decode(encoded.data, offsets, encoded.lengths, encoded.references, out)
    return out


def assert_encode_alike(kernel: Coder, reference: Coder, frames: np.ndarray, streams: np.ndarray) -> Encoded:
    ours, truth = kernel.encode(frames, streams), reference.encode(frames, streams)
    assert np.array_equal(ours.lengths, truth.lengths)
    assert np.array_equal(ours.references, truth.references)
    assert ours.data.tobytes() == truth.data.tobytes()
    assert state(kernel) == state(reference)
    for reader in (kernel, reference):
        assert np.array_equal(decoded(reader, ours), frames)
    return ours


def game(n: int, size: int, seed: int = 0, scene: int = 40) -> np.ndarray:
    """Return frames `[n, size]`: sprites of random bytes, and of one value, before scenes that change and come back."""
    rng = np.random.default_rng(seed)
    scenes = rng.integers(0, 256, (3, size), np.uint8)
    sprite = rng.integers(0, 256, 9, np.uint8)
    frames = np.empty((n, size), np.uint8)
    for i in range(n):
        frames[i] = scenes[i // scene % 3]
        for start, values in ((7 * i % size, sprite), ((3 * i + 11) % size, np.full(5, i % 256, np.uint8))):
            part = frames[i, start : start + len(values)]
            part[:] = values[: len(part)]
    return frames


def masks(n: int, height: int, width: int, seed: int = 0) -> np.ndarray:
    """Return frames `[n, height * width]` of discs that overlap and move."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    frames = np.zeros((n, height, width), np.uint8)
    for frame in frames:
        for _ in range(4):
            centre_y, centre_x, label = rng.integers(height), rng.integers(width), rng.integers(1, 9)
            frame[(y - centre_y) ** 2 + (x - centre_x) ** 2 < rng.integers(4, 60)] = label
    return frames.reshape(n, -1)


def test_vectors_are_another_kernel():
    """Where the processor has them."""
    found = {twins(700, 0, 70, vectors)[0]._changed for vectors in (True, False)}
    assert len(found) == 1 + jit.has_vectors()


@with_vectors_and_without
@pytest.mark.parametrize("keys", [0, 1, 16])
@pytest.mark.parametrize(("size", "row_bytes"), [(1, 1), (3, 5), (63, 9), (64, 1), (101, 10), (600, 600), (1003, 50)])
def test_kernel_equals_reference(size, row_bytes, keys, vectors):
    kernel, reference = twins(size, keys, row_bytes, vectors)
    frames = game(180, size, seed=size, scene=12)
    for start, stop in [(0, 1), (1, 4), (4, 60), (60, 180)]:
        assert_encode_alike(kernel, reference, frames[start:stop], np.arange(start, stop) % 3)


@with_vectors_and_without
@pytest.mark.parametrize("keys", [0, 4])
def test_kernel_equals_reference_on_masks_and_anything_else(keys, vectors):
    rng = np.random.default_rng(0)
    kernel, reference = twins(30 * 25, keys, 25, vectors)
    blocks = [
        masks(150, 30, 25),
        rng.integers(0, 256, (3, 750), np.uint8),
        np.zeros((2, 750), np.uint8),
        np.full((2, 750), 9, np.uint8),
        (np.arange(750) // 3 % 256).astype(np.uint8)[None],
        masks(5, 30, 25, seed=1) + np.uint8(100),  # labels that were never seen: escapes
    ]
    for block in blocks:
        assert_encode_alike(kernel, reference, block, np.zeros(len(block), np.int64))


@repeatable
@given(
    changes=st.lists(st.tuples(st.integers(0, 1499), st.integers(1, 900), st.integers(0, 255)), max_size=8),
    keys=st.sampled_from([0, 2]),
    row_bytes=st.sampled_from([1, 30, 700, 5000]),
)
def test_numbers_of_any_size(changes, keys, row_bytes):
    """Runs and gaps on both sides of 224 and of powers of two above it."""
    frames = np.zeros((2, 1500), np.uint8)
    for start, size, value in changes:
        frames[1, start : start + size] = value
    assert_encode_alike(*twins(1500, keys, row_bytes), frames, np.zeros(2, np.int64))


@with_vectors_and_without
@pytest.mark.parametrize(("size", "keys"), [(128, 0), (130, 1)])
def test_spans_and_gaps_around_64_bytes(size, keys, vectors):
    """Every pattern of eight bytes, in every place around the border of a word of bits and at the end."""
    starts = [*range(57, 67), *range(size - 8, size - 5)]
    frames = np.zeros((len(starts), 256, size), np.uint8)
    for some, start in zip(frames, starts, strict=True):
        bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
        some[:, start : start + 8] = bits[:, : size - start] * np.arange(1, 9, dtype=np.uint8)[: size - start]
    frames = frames.reshape(-1, size)
    assert_encode_alike(*twins(size, keys, size, vectors), frames, np.zeros(len(frames), np.int64))


def test_large_frames():
    frames = np.zeros((2, 300_001), np.uint8)
    frames[0, [0, 70_000, 299_999, 300_000]] = 1, 2, 3, 4
    frames[1, 5:200_000] = 7
    encoded = assert_encode_alike(*twins(300_001, 0, 400_000), frames, np.zeros(2, np.int64))
    assert encoded.lengths.max() < 30


def test_codes_are_learned():
    kernel, _ = twins(7000, 0, 100)
    frames = masks(2300, 70, 100)
    encoded = kernel.encode(frames, np.zeros(len(frames), np.int64))
    assert np.array_equal(decoded(kernel, encoded), frames)
    assert encoded.lengths[128:].mean() < 0.75 * encoded.lengths[:128].mean()
    assert kernel.nbytes < 170_000  # what was counted is gone


def test_masks_are_a_fraction_of_their_runs():
    frames = masks(400, 70, 100)
    sizes = {}
    for codec in (get_codec("delta/2", {"keys": 0}, row_bytes=100), get_codec("rle")):
        sizes[codec.name] = codec.coder(7000).encode(frames, np.zeros(400, np.int64)).data.size
    assert 2 * sizes["delta/2"] < sizes["rle"]


def test_games_are_half_of_delta():
    frames = game(600, 3000)
    sizes = {}
    for method in ("delta", "delta/2"):
        coder = get_codec(method).coder(3000)
        sizes[method] = coder.encode(frames, np.zeros(600, np.int64)).lengths[130:].mean()
    assert 2 * sizes["delta/2"] < sizes["delta"]


def test_keys_are_let_go():
    kernel, reference = twins(400, 4, 20)
    before = kernel.keys.uses.sum()
    encoded = assert_encode_alike(kernel, reference, game(200, 400, scene=10), np.zeros(200, np.int64))
    kernel.release(encoded.references)
    used = np.zeros(len(kernel.keys.uses), np.int64)
    used[0] = 1
    np.add.at(used, kernel.keys.candidates[kernel.keys.last_used >= 0], 1)
    assert before == 2
    assert np.array_equal(kernel.keys.uses, used)


def test_nothing_is_learned_without_room():
    kernel, reference = twins(750, 0, 25)
    kernel.learning = reference.learning = False
    before = kernel.nbytes
    encoded = assert_encode_alike(kernel, reference, masks(300, 30, 25), np.zeros(300, np.int64))
    assert kernel.nbytes == before
    assert len(kernel.lengths) == 1
    assert not encoded.references.any()
    growth = kernel.growth_bytes(1)
    kernel.learning = True
    kernel.encode(masks(130, 30, 25), np.zeros(130, np.int64))
    assert before < kernel.nbytes <= before + growth


@pytest.mark.parametrize("to_reference", [False, True])
def test_a_pickled_coder_goes_on_alike_with_numba_and_without(to_reference):
    kernel, reference = twins(750, 3, 25)
    frames, streams = masks(200, 30, 25), np.arange(200) % 2
    first = assert_encode_alike(kernel, reference, frames[:140], streams[:140])
    if to_reference:
        with no_numba():
            copy = pickle.loads(pickle.dumps(kernel))
    else:
        copy = pickle.loads(pickle.dumps(reference))
    assert state(copy) == state(kernel)
    assert copy.nbytes == kernel.nbytes
    assert np.array_equal(decoded(copy, first), frames[:140])
    assert_encode_alike(copy, reference if not to_reference else kernel, frames[140:], streams[140:])


def trained(size: int) -> tuple[Coder, Coder]:
    coders = twins(size, 2, 8)
    for coder in coders:
        coder.encode(game(130, size, scene=30), np.zeros(130, np.int64))
    return coders


TRAINED = {size: trained(size) for size in (5, 63, 300)} if optional.has_numba() else {}


@settings(repeatable, max_examples=300)
@given(
    size=st.sampled_from([5, 63, 300]),
    heap=st.binary(min_size=0, max_size=120),
    head=st.integers(0, 5),
    where=st.lists(st.tuples(st.integers(-2, 120), st.integers(-2, 70), st.integers(-1, 4)), min_size=1, max_size=4),
)
def test_damaged_payloads_are_seen_by_both(size, heap, head, where):
    heap = bytes([head]) + heap
    where = [(0, len(heap), 0), *where]
    offsets, lengths, references = (np.array(column, np.int64) for column in zip(*where, strict=True))
    results = []
    for coder in TRAINED[size]:
        memory = np.full((len(where) + 2, size), 0xA5, np.uint8)
        try:
            coder.decode(np.frombuffer(heap, np.uint8), offsets, lengths, references, memory[1:-1])
            results.append(memory.tobytes())
        except CodecError:
            results.append(None)
        assert (memory[[0, -1]] == 0xA5).all()
    assert results[0] == results[1]


@repeatable
@given(
    seed=st.integers(0, 1000),
    mutations=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4),
    cut=st.one_of(st.none(), st.integers(0, 10**6)),
)
def test_mutated_payloads_are_seen_by_both(seed, mutations, cut):
    kernel, reference = TRAINED[300]
    frame = game(1, 300, seed)
    encoded = pickle.loads(pickle.dumps(kernel)).encode(frame, np.zeros(1, np.int64))
    payload = bytearray(encoded.data.tobytes())
    for place, value in mutations:
        if payload:
            payload[place % len(payload)] = value
    if cut is not None:
        del payload[cut % (len(payload) + 1) :]
    damaged = Encoded(np.frombuffer(bytes(payload), np.uint8), np.array([len(payload)]), np.zeros(1, np.int64))
    results = []
    for coder in (kernel, reference):
        try:
            results.append(decoded(coder, damaged).tobytes())
        except CodecError:
            results.append(None)
    assert results[0] == results[1]


# Rows of 4 bytes, codes of set 0.
PAYLOADS = {
    "no change": ("", "0000000000000000"),
    "one byte": ("00 05 00 07 ff", "0000000000070000"),
    "two bytes": ("00 01 01 0702 ff", "0007090000000000"),
    "three alike": ("00 01 04 07 ff", "0007070700000000"),
    "the row above": ("01 01 01 0702 ff", "0007090000070900"),
    "as long as the frame: the frame": ("0102030405060708", "0102030405060708"),
}


@pytest.mark.parametrize("numba", [True, False])
@pytest.mark.parametrize(("payload", "frame"), PAYLOADS.values(), ids=PAYLOADS.keys())
def test_stored_payloads_decode_forever(payload, frame, numba):
    out = np.full(8, 0xA5, np.uint8)
    with contextlib.nullcontext() if numba else no_numba():
        get_codec("delta/2", row_bytes=4).decode(np.frombuffer(bytes.fromhex(payload), np.uint8), out)
    assert out.tobytes().hex() == frame


@pytest.mark.parametrize("numba", [True, False])
def test_numbers_above_224(numba):
    """Expected are 224, then 225 = 224 + 1, then 290 = 224 + 0b1000010, each before a 1."""
    out = np.full(2000, 0xA5, np.uint8)
    text = "".join(f"{byte:08b}" for byte in (0xE0, 0x00, 0x01, 0xE1, 0x00, 0x01, 0xE7)) + "000010"
    text += "".join(f"{byte:08b}" for byte in (0x00, 0x01, 0xFF))
    data = bytes([0]) + int(text.ljust(-(-len(text) // 8) * 8, "0"), 2).to_bytes(-(-len(text) // 8), "big")
    with contextlib.nullcontext() if numba else no_numba():
        get_codec("delta/2").decode(np.frombuffer(data, np.uint8), out)
    assert np.flatnonzero(out).tolist() == [224, 224 + 1 + 225, 224 + 1 + 225 + 1 + 290]
    assert out.max() == 1


@pytest.mark.parametrize(
    "payload",
    ["00", "0001", "000100", "00010007", "0009ff", "000010ff", "0001ff", "02ff", "00ff00", "00e1", "00fe"],
    ids=[
        "no end",
        "no span",
        "no byte",
        "no end after a span",
        "skips past the end",
        "spans past the end",
        "the end in the place of a span",
        "no such code set",
        "a byte too many",
        "a cut number",
        "a cut number of many bits",
    ],
)
def test_damaged_payloads_are_errors(payload):
    for numba in (True, False):
        with contextlib.nullcontext() if numba else no_numba(), pytest.raises(CodecError, match="delta"):
            get_codec("delta/2", row_bytes=4).decode(
                np.frombuffer(bytes.fromhex(payload), np.uint8), np.empty(8, np.uint8)
            )


def test_settings_that_cannot_be_are_errors():
    with pytest.raises(ValueError, match="keys=-1"):
        get_codec("delta/2", {"keys": -1})
    with pytest.raises(ValueError, match="row_bytes=0"):
        get_codec("delta/2", row_bytes=0)
