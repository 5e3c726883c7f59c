"""What `auto` decides: how observations are stacked, and which codec suits them."""

import numpy as np
import pytest

from sb3_extra_buffers.codecs import get_codec, optional
from sb3_extra_buffers.frames.auto import SMALL, choose_codec, find_stack

RNG = np.random.default_rng(0)


def steps(n: int, envs: int, frame: tuple[int, ...], stack: int, dtype: type, last: bool) -> np.ndarray:
    """Return observations `[n, envs, *obs]` of frames with channels, stacked along the first or last axis."""
    frames = RNG.integers(0, 200, (n + stack - 1, envs, *frame)).astype(dtype)
    axis = -1 if last else 1
    return np.stack([np.concatenate(frames[i : i + stack], axis=axis) for i in range(n)])


def as_bytes(obs: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(obs).view(np.uint8)


def found(before: np.ndarray, after: np.ndarray) -> tuple[int, int] | None:
    return find_stack(as_bytes(before), as_bytes(after), before.dtype.itemsize)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
@pytest.mark.parametrize(
    ("frame", "stack", "last", "answer"),
    [
        ((1, 20, 16), 4, False, (4, 0)),
        ((1, 20, 16), 2, False, (2, 0)),
        ((20, 16, 1), 4, True, (4, -1)),
        ((3, 20, 16), 4, False, (4, 0)),
        ((20, 16, 3), 4, True, (4, -1)),
        ((20, 16, 3), 3, True, (3, -1)),
        ((3, 20, 16), 3, False, (3, 0)),
        ((300,), 4, False, (4, 0)),
    ],
)
def test_stacks_are_found(dtype, frame, stack, last, answer):
    obs = steps(3, 2, frame, stack, dtype, last)
    assert found(obs[0], obs[1]) == answer
    assert found(obs[1], obs[2]) == answer


def test_one_env_that_shows_it_is_enough():
    """The others stand still, or have just been reset."""
    obs = steps(2, 4, (1, 20, 16), 4, np.uint8, last=False)
    obs[1, 0] = obs[0, 0]
    obs[1, 1] = RNG.integers(0, 200, obs[1, 1].shape)
    obs[:, 2] = 7
    assert found(obs[0], obs[1]) == (4, 0)


@pytest.mark.parametrize("shape", [(3, 20, 16), (20, 16, 3), (4, 20, 16), (1, 20, 16), (20, 16), (500,), (1,)])
def test_no_stack_in_single_frames(shape):
    before, after = RNG.integers(0, 200, (2, 3, *shape)).astype(np.uint8)
    assert found(before, after) is None


def test_frames_that_stand_still_show_nothing():
    before = np.repeat(RNG.integers(0, 200, (2, 1, 20, 16)).astype(np.uint8), 4, axis=1)
    assert found(before, before) is None
    zeros = np.zeros_like(before)
    assert found(zeros, zeros) is None


def test_the_same_observation_again_shows_nothing():
    obs = steps(1, 2, (1, 20, 16), 4, np.uint8, last=False)[0]
    assert found(obs, obs) is None


def test_frames_too_small_to_manage_are_left_together():
    small = int(SMALL**0.5) - 1
    obs = steps(2, 2, (1, small, small), 4, np.uint8, last=False)
    assert found(obs[0], obs[1]) is None


def test_nan_counts_as_its_bytes():
    obs = steps(2, 2, (1, 20, 16), 4, np.float32, last=False)
    obs[obs < 100] = np.nan
    assert found(obs[0], obs[1]) == (4, 0)


def test_no_observations():
    nothing = np.empty((0, 4, 20, 16), np.uint8)
    assert found(nothing, nothing) is None


# The codec.


def sprites(n: int) -> np.ndarray:
    """Return blocks of frames `[n, 1, bytes]` of a game: little changes from one to the next."""
    frames = np.repeat(RNG.integers(0, 200, (1, 1, 7056)).astype(np.uint8), n, axis=0)
    for i, frame in enumerate(frames):
        frame[0, 50 * i : 50 * i + 40] = i
    return frames


def scrolling(n: int) -> np.ndarray:
    """Return frames `[n, 1, bytes]` that differ everywhere but are smooth in themselves."""
    y, x = np.mgrid[:84, :84]
    return np.stack([((x // 6 + y // 9 + i) * 7 % 251).astype(np.uint8).reshape(1, -1) for i in range(n)])


def test_games_get_delta():
    assert choose_codec([sprites(32)], get_codec) == get_codec("delta")


def test_no_data_gets_delta():
    assert choose_codec([], get_codec) == get_codec("delta")
    assert choose_codec([np.empty((0, 4, 7056), np.uint8)], get_codec) == get_codec("delta")


def test_pictures_that_scroll_get_zstd():
    assert choose_codec([scrolling(32)], get_codec).name == "zstd"


def test_noise_gets_delta():
    noise = RNG.integers(0, 256, (32, 1, 7056)).astype(np.uint8)
    assert choose_codec([noise], get_codec) == get_codec("delta")


def of_layout(**picture):
    """Return what opens codecs for frames of this layout, as `ObservationStore` does."""
    return lambda method, **settings: get_codec(method, settings, **picture)


def masks(n: int) -> np.ndarray:
    """Return frames `[n, 1, bytes]` of 84 x 84 with discs of a label, elsewhere in each."""
    y, x = np.mgrid[:84, :84]
    frames = np.zeros((n, 84, 84), np.uint8)
    for frame in frames:
        for label in range(1, 5):
            centre_y, centre_x = RNG.integers(0, 84, 2)
            frame[(y - centre_y) ** 2 + (x - centre_x) ** 2 < RNG.integers(20, 600)] = label
    return frames.reshape(n, 1, -1)


def test_masks_get_the_rows_above():
    codec = choose_codec([masks(32)], of_layout(row_bytes=84, channels=1))
    assert codec == get_codec("delta/2", {"keys": 0}, row_bytes=84)


def test_masks_that_hardly_move_get_delta():
    still = np.repeat(masks(1), 32, axis=0)
    still[:, 0, 5] = np.arange(32)
    assert choose_codec([still], of_layout(row_bytes=84, channels=1)) == get_codec("delta")


def test_masks_without_numba_get_no_slow_codec(monkeypatch):
    monkeypatch.setattr(optional, "has_numba", lambda: False)
    assert choose_codec([masks(32)], of_layout(row_bytes=84, channels=1)).name in ("delta", "zstd")


@pytest.mark.parametrize("planar", [True, False])
def test_pictures_of_few_colours_get_a_palette(planar):
    palette = RNG.integers(0, 256, (100, 3), np.uint8)
    frames = palette[RNG.integers(0, 100, (32, 1800))]  # [n, pixels, channels]
    blocks = [np.ascontiguousarray(frames.transpose(0, 2, 1) if planar else frames).reshape(32, 1, -1)]
    codec = choose_codec(blocks, of_layout(row_bytes=30, channels=3, planar=planar))
    assert codec.name == "palette"
    assert codec.planar is planar


def test_without_zstd_it_is_delta(monkeypatch):
    monkeypatch.setattr(optional, "has_zstd", lambda: False)
    assert choose_codec([scrolling(32)], get_codec) == get_codec("delta")


def test_data_is_not_changed():
    blocks = [sprites(8), scrolling(8)]
    before = [block.copy() for block in blocks]
    choose_codec(blocks, get_codec)
    assert all(np.array_equal(a, b) for a, b in zip(blocks, before, strict=True))
