"""Numbers of colours in three looks: every colour that is known is found, no other, and the kernel does the same."""

import contextlib
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_extra_buffers.codecs import Coder, finding, get_codec, jit

repeatable = settings(max_examples=60)
needs_vectors = pytest.mark.skipif(not jit.has_vectors(), reason="this processor does not look up 64 bytes at once")


def as_colours(values: np.ndarray) -> np.ndarray:
    """Return colours `[n, 3]` as a palette has them, `[256]`."""
    words = np.zeros((256, 4), np.uint8)
    words[: len(values), :3] = values
    return words.view("<u4")[:, 0].astype(np.uint32)


def ways() -> list:
    """Return the reference, and the kernel where the processor has the instructions."""
    found = [finding.find_reference]
    if jit.has_vectors():
        from sb3_extra_buffers.codecs import vectors

        data = "uint8[::1]"
        found.append(jit.compiled(vectors.find_kernel, f"boolean({data}, boolean, uint64[::1], {data}, {data})"))
    return found


def frame_of(pixels: np.ndarray, planar: bool) -> np.ndarray:
    return np.ascontiguousarray(pixels.T if planar else pixels).reshape(-1)


SETS = {
    "one": np.array([[0, 0, 0]], np.uint8),
    "grey": np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, axis=1),
    "red": np.stack([np.arange(256), np.zeros(256), np.zeros(256)], axis=1).astype(np.uint8),
    "a cube": np.stack(np.meshgrid(*[np.arange(0, 6)] * 3), axis=-1).reshape(-1, 3).astype(np.uint8),
    "the ends": np.array([[0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 0, 255], [0, 255, 0]], np.uint8),
    "any": np.unique(np.random.default_rng(0).integers(0, 256, (256, 3), np.uint8), axis=0),
}


@pytest.mark.parametrize("planar", [True, False])
@pytest.mark.parametrize("pixels", [64, 65, 127, 128, 700])
@pytest.mark.parametrize("name", SETS)
def test_every_colour_is_found_and_no_other(name, pixels, planar):
    colours = SETS[name]
    tables = finding.tables(as_colours(colours), len(colours))
    assert tables.known == len(colours)
    assert tables.matrices.nbytes + tables.parts.nbytes == finding.BYTES
    rng = np.random.default_rng(1)
    numbers = rng.integers(0, len(colours), pixels).astype(np.uint8)
    frame = frame_of(colours[numbers], planar)
    known = {tuple(colour) for colour in colours.tolist()}
    for find in ways():
        out = np.full(pixels + 2, 0xA5, np.uint8)
        assert find(frame, planar, tables.matrices, tables.parts, out[1:-1])
        assert np.array_equal(out[1:-1], numbers)
        assert (out[[0, -1]] == 0xA5).all()
        for place in (0, 63, pixels // 2, pixels - 1):
            for other in rng.integers(0, 256, (8, 3), np.uint8):
                if tuple(other.tolist()) not in known:
                    wrong = colours[numbers]
                    wrong[place] = other
                    assert not find(frame_of(wrong, planar), planar, tables.matrices, tables.parts, out[1:-1])


def test_a_number_of_no_colour_is_never_right():
    """Black would be taken for one if zeros stood there: palettes but the first have no black until it comes."""
    for n in (1, 3, 100, 255):
        colours = np.random.default_rng(n).integers(1, 256, (n, 3), np.uint8)
        tables = finding.tables(as_colours(colours), n)
        assert np.array_equal(tables.parts[768:].reshape(3, 256)[:, n:], np.repeat(colours[:1].T, 256 - n, axis=1))
        for find in ways():
            assert not find(np.zeros(192, np.uint8), True, tables.matrices, tables.parts, np.empty(64, np.uint8))


@repeatable
@given(st.lists(st.tuples(*[st.integers(0, 255)] * 3), min_size=1, max_size=256, unique=True), st.booleans())
def test_any_colours(colours, planar):
    values = np.array(colours, np.uint8)
    tables = finding.tables(as_colours(values), len(values))
    numbers = np.resize(np.arange(len(values)), max(len(values), 64)).astype(np.uint8)
    for find in ways():
        out = np.empty(numbers.size, np.uint8)
        assert find(frame_of(values[numbers], planar), planar, tables.matrices, tables.parts, out)
        assert np.array_equal(out, numbers)


def test_colours_that_are_there_twice():
    """As a forged file may say: it does not take for ever, and the first is found."""
    colours = as_colours(SETS["any"][:50])
    colours[40:50] = colours[3]
    colours[39] = colours[3] | 0x77000000  # what pixels of three bytes do not have
    tables = finding.tables(colours, 50)
    numbers = np.resize(np.arange(39), 78).astype(np.uint8)
    for find in ways():
        out = np.empty(78, np.uint8)
        assert find(frame_of(SETS["any"][numbers], True), True, tables.matrices, tables.parts, out)
        assert np.array_equal(out, numbers)


def test_products():
    """The rows of a matrix stand in a word from its highest byte to its lowest, the first bit is the lowest."""
    assert np.array_equal(finding.multiplied(np.uint64(0x0102040810204080)), np.arange(256))
    assert np.array_equal(finding.multiplied(np.uint64(0x0100000000000000)), np.arange(256) & 1)
    assert np.array_equal(finding.multiplied(np.uint64(0xFF)) >> 7, [n.bit_count() & 1 for n in range(256)])


def test_it_is_drawn_from_nobody_elses_numbers():
    state = np.random.get_state()[1].copy()
    finding.tables(as_colours(SETS["any"]), 200)
    assert np.array_equal(np.random.get_state()[1], state)


@contextlib.contextmanager
def no_vectors():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit, "has_vectors", lambda: False)
        yield


def open_coder(planar: bool = True) -> Coder:
    return get_codec("none", {"filter": "palette"}, channels=3, planar=planar).coder(300)


@needs_vectors
@pytest.mark.parametrize("planar", [True, False])
def test_a_palette_uses_tables_when_colours_do_not_come_any_more(planar):
    """It makes new ones when there are more colours, and everything stays as it is without them."""
    ours = open_coder(planar)
    with no_vectors():
        plain = open_coder(planar)
    rng = np.random.default_rng(0)
    known = []
    for n in (20, 20, 20, 90, 90, 90, 256, 256, 256, 20):
        frames = np.stack([frame_of(SETS["any"][rng.integers(0, n, 100)], planar) for _ in range(4)])
        one, other = (coder.encode(frames, np.zeros(4, np.int64)) for coder in (ours, plain))
        assert one.data.tobytes() == other.data.tobytes()
        assert np.array_equal(one.references, other.references)
        known.append(ours._tables[0].known if 0 in ours._tables else 0)
        assert known[-1] <= ours.known[0]
    assert known[-1] == ours.known[0] > known[3] > 0
    assert plain._tables == {}
    ours._find = None  # not asked any more
    ours.encode(frames, np.zeros(4, np.int64))


def full_of_palettes() -> tuple[Coder, list[np.ndarray]]:
    """Return a coder that can open no more palettes, and a frame for each."""
    coder, colours = open_coder(), np.stack(np.meshgrid(*[np.arange(17)] * 3), axis=-1).reshape(-1, 3).astype(np.uint8)
    frames = [frame_of(colours[256 * k : 256 * k + 256], True) for k in range(16)]
    coder = get_codec("none", {"filter": "palette"}, channels=3).coder(768)
    coder.colours[0, 1:], coder.known[0] = np.arange(1, 256) << 16, 256
    coder.__setstate__(coder.__getstate__())
    for frame in frames[:15]:
        coder.encode(frame[None], np.zeros(1, np.int64))
    assert len(coder.colours) == 16
    return coder, frames[:15]


@needs_vectors
def test_tables_are_counted_as_memory():
    coder, frames = full_of_palettes()
    assert coder._tables == {}
    for made, frame in enumerate(frames):
        before = coder.nbytes
        assert coder.growth_bytes(1) == finding.BYTES
        for _ in range(2):
            coder.encode(frame[None], np.zeros(1, np.int64))
        assert coder.nbytes == before + finding.BYTES
        assert len(coder._tables) == made + 1
    with no_vectors():
        assert pickle.loads(pickle.dumps(coder)).growth_bytes(5) == 0


@needs_vectors
def test_no_tables_where_there_is_no_room():
    coder, frames = full_of_palettes()
    coder.learning = False
    before = coder.nbytes
    for _ in range(3):
        coder.encode(frames[0][None], np.zeros(1, np.int64))
    assert coder.nbytes == before
