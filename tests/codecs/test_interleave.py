"""Filter `interleave`: the inner codec sees pixels, everybody else sees planes."""

import numpy as np
import pytest

from sb3_extra_buffers.codecs import get_codec


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_the_inner_codec_sees_pixels(channels):
    planes = np.arange(channels * 5, dtype=np.uint8).reshape(channels, 5)
    coder = get_codec("none", {"filter": "interleave"}, channels=channels).coder(planes.size)
    encoded = coder.encode(planes.reshape(1, -1), np.zeros(1, np.int64))
    assert np.array_equal(encoded.data, planes.T.reshape(-1))
    out = np.full((1, planes.size), 0xA5, np.uint8)
    coder.decode(encoded.data, np.zeros(1, np.int64), encoded.lengths, encoded.references, out)
    assert np.array_equal(out[0], planes.reshape(-1))


@pytest.mark.parametrize(("size", "planar"), [(16, True), (15, False)])
def test_what_is_no_row_of_planes_is_left_as_it_is(size, planar):
    frame = np.arange(size, dtype=np.uint8)
    codec = get_codec("none", {"filter": "interleave"}, channels=3, planar=planar)
    assert codec.encode(frame) == frame.tobytes()
    assert codec.coder(size).encode(frame[None], np.zeros(1, np.int64)).data.tobytes() == frame.tobytes()


def test_colours_compress_better_than_their_channels():
    rng = np.random.default_rng(0)
    palette = rng.integers(0, 256, (900, 3), np.uint8)
    numbers = np.repeat(rng.integers(0, 900, (1, 2000)), 3, axis=1)
    frames = np.ascontiguousarray(palette[numbers].transpose(0, 2, 1)).reshape(1, -1)
    sizes = [
        get_codec("zstd3", kwargs, channels=3).coder(frames.size).encode(frames, np.zeros(1, np.int64)).data.size
        for kwargs in ({"filter": "interleave"}, {})
    ]
    assert sizes[0] < 0.8 * sizes[1]


def test_pixels_of_one_byte_are_an_error():
    with pytest.raises(ValueError, match="several bytes, not 1"):
        get_codec("zstd3", {"filter": "interleave"}, channels=1)
