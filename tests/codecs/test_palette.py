"""Filter `palette`: exact whatever the colours are, compiled and not, and earlier payloads stay good."""

import contextlib
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_extra_buffers.codecs import CodecError, Coder, Encoded, get_codec, optional

repeatable = settings(max_examples=40)


@contextlib.contextmanager
def no_numba():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optional, "has_numba", lambda: False)
        yield


def open_coder(pixels: int, channels: int = 3, planar: bool = True, method: str = "gzip1", **kwargs: object) -> Coder:
    codec = get_codec(method, {"filter": "palette", **kwargs}, channels=channels, planar=planar)
    return codec.coder(pixels * channels)


def decoded(coder: Coder, encoded: Encoded) -> np.ndarray:
    offsets = np.cumsum(encoded.lengths) - encoded.lengths
    out = np.full((len(offsets), coder.frame_bytes), 0xA5, np.uint8)
    coder.decode(encoded.data, offsets, encoded.lengths, encoded.references, out)
    return out


def pictures(n: int, pixels: int, colours: int, channels: int = 3, planar: bool = True, seed: int = 0) -> np.ndarray:
    """Return frames `[n, pixels * channels]` of random pixels of at most so many random colours."""
    rng = np.random.default_rng(seed)
    palette = rng.integers(0, 256, (colours, channels), np.uint8)
    frames = palette[rng.integers(0, colours, (n, pixels))]  # [n, pixels, channels]
    return np.ascontiguousarray(frames.transpose(0, 2, 1) if planar else frames).reshape(n, -1)


def encoded_exactly(coder: Coder, frames: np.ndarray) -> Encoded:
    before = frames.copy()
    encoded = coder.encode(frames, np.zeros(len(frames), np.int64))
    assert np.array_equal(frames, before)
    assert encoded.lengths.max() <= coder.frame_bytes
    assert np.array_equal(decoded(coder, encoded), frames)
    return encoded


@pytest.mark.parametrize("numba", [True, False])
@pytest.mark.parametrize("planar", [True, False])
@pytest.mark.parametrize("channels", [2, 3, 4])
@pytest.mark.parametrize("method", ["none", "near", "zstd3", "delta", "delta/2", "rle", "lz4-block"])
def test_few_colours_take_a_byte_each(method, channels, planar, numba):
    with contextlib.nullcontext() if numba else no_numba():
        coder = open_coder(1000, channels, planar, method)
        for n in (1, 2, 3, 4, 9, 40):
            encoded = encoded_exactly(coder, pictures(n, 1000, 60, channels, planar))
            assert encoded.lengths.max() <= 1000
        assert coder.known.tolist() == [61]  # black is always there


@pytest.mark.parametrize("planar", [True, False])
def test_kernel_equals_reference(planar):
    coders = [open_coder(900, planar=planar)]
    with no_numba():
        coders.append(open_coder(900, planar=planar))
    for seed, colours in enumerate([5, 250, 3, 255, 256, 900, 100, 255, 5000]):
        frames = pictures(4, 900, colours, planar=planar, seed=seed)
        ours, truth = (encoded_exactly(coder, frames) for coder in coders)
        assert ours.data.tobytes() == truth.data.tobytes()
        assert np.array_equal(ours.references, truth.references)
        assert all(np.array_equal(getattr(coders[0], name), getattr(coders[1], name)) for name in ("colours", "known"))
    assert len(coders[0].known) > 2


@pytest.mark.parametrize("planar", [True, False])
def test_more_than_256_colours_in_a_frame(planar):
    """Such a frame goes on as it is, also in the midst of others, and leaves no trace in the palettes."""
    coder = open_coder(2000, planar=planar)
    few, many = pictures(3, 2000, 100, planar=planar), pictures(2, 2000, 20_000, planar=planar)
    first = encoded_exactly(coder, few)
    before = coder.colours.copy(), coder.known.copy()
    both = encoded_exactly(coder, np.concatenate([few[:2], many, few[2:]]))
    assert (both.references & 255).tolist() == [0, 0, 255, 255, 0]
    encoded_exactly(coder, many)
    assert np.array_equal(coder.colours, before[0])
    assert np.array_equal(coder.known, before[1])
    assert np.array_equal(decoded(coder, first), few)
    encoded_exactly(coder, few)


def test_exactly_256_colours():
    colours = np.arange(256, dtype=np.uint8)
    frame = np.stack([colours, colours[::-1], colours // 2]).reshape(1, -1)
    frame[0, [0, 256, 512]] = 0  # black, which is always there
    coder = open_coder(256)
    assert encoded_exactly(coder, frame).references[0] == 0
    assert coder.known.tolist() == [256]
    frame[0, 5] ^= 1
    assert encoded_exactly(coder, frame).references[0] == 1  # another palette


def test_another_scene_has_another_palette_and_the_first_comes_back():
    coder = open_coder(3000)
    scenes = [pictures(3, 3000, 200, seed=seed) for seed in range(5)]
    payloads = [encoded_exactly(coder, scene) for scene in scenes]
    assert [int(one.references[0]) for one in payloads] == [0, 1, 2, 3, 4]
    for scene, one in zip(scenes, payloads, strict=True):
        assert np.array_equal(decoded(coder, one), scene)
        assert np.array_equal(encoded_exactly(coder, scene).references, one.references)
    every, lengths, references = (np.concatenate(part) for part in zip(*payloads, strict=True))
    assert np.array_equal(decoded(coder, Encoded(every, lengths, references)), np.concatenate(scenes))
    assert len(coder.colours) == 5


def test_there_is_an_end_of_palettes():
    coder = open_coder(3000)
    for seed in range(20):
        encoded = encoded_exactly(coder, pictures(1, 3000, 200, seed=seed))
    assert encoded.references[0] & 255 == 255
    assert len(coder.colours) == 16


def test_no_new_palette_without_room():
    coder = open_coder(3000)
    encoded_exactly(coder, pictures(1, 3000, 200))
    coder.learning = False
    before = coder.nbytes
    assert encoded_exactly(coder, pictures(1, 3000, 200, seed=1)).references[0] & 255 == 255
    assert coder.nbytes == before


@pytest.mark.parametrize("cut", [1, 5, 9])
def test_a_pickled_coder_goes_on_alike(cut):
    coder = open_coder(500, method="delta")
    frames = np.concatenate([pictures(2, 500, 150, seed=seed) for seed in range(5)])
    first = encoded_exactly(coder, frames[:cut])
    copy = pickle.loads(pickle.dumps(coder))
    assert copy.nbytes == coder.nbytes
    assert np.array_equal(decoded(copy, first), frames[:cut])
    ours, theirs = encoded_exactly(coder, frames[cut:]), encoded_exactly(copy, frames[cut:])
    assert ours.data.tobytes() == theirs.data.tobytes()
    assert np.array_equal(ours.references, theirs.references)


def test_the_inner_codec_hears_what_is_released():
    coder = open_coder(500, method="delta")
    few, many = pictures(60, 500, 50), pictures(20, 500, 5000)
    for frames in (few, many):
        references = encoded_exactly(coder, frames).references
        coder.release(references)
    for inner in (coder.inner, coder.whole.inner):
        alive = np.zeros(len(inner.uses), np.int64)
        alive[0] = 1
        np.add.at(alive, inner.candidates[inner.last_used >= 0], 1)
        assert np.array_equal(inner.uses, alive)


@repeatable
@given(
    pixels=st.integers(1, 70),
    colours=st.integers(1, 400),
    n=st.integers(1, 12),
    channels=st.integers(2, 4),
    planar=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_any_pictures(pixels, colours, n, channels, planar, seed):
    coder = open_coder(pixels, channels, planar, "zstd3")
    for turn in range(3):
        encoded_exactly(coder, pictures(n, pixels, colours, channels, planar, seed + turn))


@pytest.mark.parametrize("reference", [1, 3, 254, -2, 10**6])
def test_a_palette_that_is_not_there_is_an_error(reference):
    coder = open_coder(100)
    encoded = encoded_exactly(coder, pictures(2, 100, 9))
    with pytest.raises(CodecError, match="palette"):
        decoded(coder, encoded._replace(references=np.array([0, reference])))


@pytest.mark.parametrize("numba", [True, False])
def test_colours_of_a_look_up_that_was_interrupted_keep_their_numbers(numba):
    """Ctrl-C comes as soon as the kernel is done. The frame comes again, and then one with other new colours."""
    with contextlib.nullcontext() if numba else no_numba():
        coder = open_coder(100)
        encoded_exactly(coder, pictures(1, 100, 9))
        again, later = pictures(1, 100, 20, seed=1), pictures(1, 100, 20, seed=2)
        find = coder._find

        def interrupted(*args: object) -> bool:
            find(*args)
            raise KeyboardInterrupt

        coder._find = interrupted
        with pytest.raises(KeyboardInterrupt):
            coder.encode(again, np.zeros(1, np.int64))
        coder._find = find
        encoded = encoded_exactly(coder, again)
        encoded_exactly(coder, later)
        assert np.array_equal(decoded(coder, encoded), again)


def test_a_palette_is_added_whole_or_not_at_all():
    """Ctrl-C before every call of the look-up, and after it."""
    for calls in range(1, 6):
        coder = open_coder(3000)
        encoded_exactly(coder, pictures(1, 3000, 200))
        find, n = coder._find, [0]

        def interrupted(*args: object, find=find, n=n, calls=calls) -> bool:
            n[0] += 1
            found = find(*args)
            if n[0] == calls:
                raise KeyboardInterrupt
            return found

        coder._find = interrupted
        with contextlib.suppress(KeyboardInterrupt):
            encoded_exactly(coder, pictures(1, 3000, 200, seed=1))
            encoded_exactly(coder, pictures(1, 3000, 200, seed=2))
        coder._find = find
        assert len(coder.colours) == len(coder.known) == len(coder._slots)
        assert coder.known.min() > 0
        for seed in range(3):
            encoded_exactly(pickle.loads(pickle.dumps(coder)), pictures(1, 3000, 200, seed=seed))


@pytest.mark.parametrize("channels", [3.0, 2.5, np.int64(3), "3", None])
@pytest.mark.parametrize("kind", ["palette", "interleave"])
def test_channels_are_a_whole_number(kind, channels):
    """A file may say anything."""
    with pytest.raises(ValueError, match="bytes, not"):
        get_codec("zstd3", {"filter": kind}, channels=channels)


def test_numbers_that_would_lie_beyond_the_heap_are_an_error():
    coder = open_coder(100, method="none")
    encoded = encoded_exactly(coder, pictures(1, 100, 9))
    out = np.empty((1, 300), np.uint8)
    for start in (1, 100, 2**63 - 5, 2**63 - 100, -1):
        with pytest.raises(CodecError, match="outside"):
            coder.decode(encoded.data, np.array([start]), encoded.lengths, encoded.references, out)


@pytest.mark.parametrize("channels", [0, 1, 5])
def test_pixels_of_other_sizes_are_an_error(channels):
    with pytest.raises(ValueError, match=str(channels)):
        get_codec("zstd3", {"filter": "palette"}, channels=channels)
