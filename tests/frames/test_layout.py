"""`Layout`: an observation cut into frames and put together again."""

import numpy as np
import pytest

from sb3_extra_buffers.frames.layout import Layout, stack_axis

SHAPES = [
    ((4, 6, 5), 4, 0),
    ((4, 6, 5), 2, 0),
    ((4, 6, 5), 1, 0),
    ((6, 5, 4), 4, -1),
    ((6, 5, 12), 4, -1),
    ((12, 6, 5), 4, 0),
    ((8,), 4, 0),
    ((8,), 4, -1),
    ((), 1, 0),
    ((1,), 1, 0),
]


def observations(shape: tuple[int, ...], dtype: type, n: int) -> np.ndarray:
    values = np.arange(n * int(np.prod(shape))) % 251
    return values.astype(dtype).reshape(n, *shape)


@pytest.mark.parametrize("dtype", [np.uint8, bool, np.int16, np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize(("shape", "stack", "axis"), SHAPES)
def test_joining_what_was_split(shape, stack, axis, dtype, n):
    layout, obs = Layout(shape, np.dtype(dtype), stack, axis), observations(shape, dtype, n)
    frames = layout.split(obs)
    assert frames.dtype == np.uint8
    assert frames.shape == (n, stack, layout.frame_bytes)
    assert layout.frame_bytes * stack == obs[:1].nbytes or n == 0
    joined = layout.join(np.ascontiguousarray(frames))
    assert joined.shape == obs.shape
    assert joined.dtype == obs.dtype
    assert joined.tobytes() == obs.tobytes()


@pytest.mark.parametrize(("shape", "stack", "axis"), SHAPES[:6])
def test_frames_are_the_parts_of_the_stack(shape, stack, axis):
    obs = observations(shape, np.uint8, 2)
    frames = Layout(shape, obs.dtype, stack, axis).split(obs)
    parts = np.split(obs, stack, axis=1 if axis == 0 else -1)
    for s, part in enumerate(parts):
        assert frames[:, s].tobytes() == part.tobytes()


@pytest.mark.parametrize("view", [lambda x: x[::-1], lambda x: x[..., ::-1], lambda x: x.swapaxes(1, 2)])
def test_strided_observations(view):
    obs = view(observations((4, 6, 6), np.float32, 3).swapaxes(1, 2).copy())
    layout = Layout(obs.shape[1:], obs.dtype, 2, 0)
    assert layout.join(np.ascontiguousarray(layout.split(obs))).tobytes() == obs.tobytes()


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, bool])
@pytest.mark.parametrize("n", [0, 1, 3])
def test_pixels_of_channel_last_memory(dtype, n):
    memory = observations((6, 5, 3), dtype, n)
    pixels = Layout((3, 6, 5), np.dtype(dtype)).split_pixels(memory.transpose(0, 3, 1, 2))
    assert pixels.shape == (n, 1, 30, 3)
    assert n == 0 or np.shares_memory(pixels, memory)
    assert pixels.tobytes() == memory.tobytes()


@pytest.mark.parametrize(
    ("shape", "dtype", "stack", "view"),
    [
        ((3, 6, 5), np.uint8, 1, lambda x: x),  # channel-first memory
        ((3, 6, 5), np.int16, 1, lambda x: np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)),
        ((3, 6, 5), np.uint8, 3, lambda x: np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)),
        ((6, 5), np.uint8, 1, lambda x: x),
    ],
)
def test_what_does_not_come_pixel_by_pixel(shape, dtype, stack, view):
    assert Layout(shape, np.dtype(dtype), stack).split_pixels(view(observations(shape, dtype, 2))) is None


@pytest.mark.parametrize("stack", [0, -1, 3, 5])
def test_a_stack_divides_the_channels(stack):
    with pytest.raises(ValueError, match="frame_stack"):
        Layout((4, 6, 5), np.dtype(np.uint8), stack)


@pytest.mark.parametrize(
    ("shape", "stack", "axis"), [((4, 84, 84), 4, 0), ((84, 84, 4), 4, 0), ((85, 83, 4), 4, -1), ((), 1, 0)]
)
def test_the_axis_of_a_stack(shape, stack, axis):
    assert stack_axis(shape, stack) == axis


@pytest.mark.parametrize(
    ("shape", "dtype", "stack", "axis", "picture"),
    [
        ((3, 120, 160), np.uint8, 1, 0, (160, 3, True)),
        ((120, 160, 3), np.uint8, 1, 0, (480, 3, False)),
        ((12, 84, 90), np.uint8, 4, 0, (90, 3, True)),
        ((84, 90, 12), np.uint8, 4, -1, (270, 3, False)),
        ((4, 84, 84), np.uint8, 4, 0, (84, 1, True)),
        ((84, 84, 4), np.uint8, 4, -1, (84, 1, False)),
        ((1, 20, 30), bool, 1, 0, (30, 1, True)),
        ((3, 20, 30), np.float32, 1, 0, (120, 1, True)),
        ((20, 30, 3), np.float32, 1, 0, (360, 1, False)),
    ],
)
def test_what_a_frame_looks_like(shape, dtype, stack, axis, picture):
    found = Layout(shape, np.dtype(dtype), stack, axis).picture
    assert tuple(found[key] for key in ("row_bytes", "channels", "planar")) == picture


@pytest.mark.parametrize(
    ("shape", "dtype", "row_bytes"),
    [((), np.uint8, 1), ((300,), np.float32, 4), ((20, 30), np.uint8, 30), ((20, 30), np.int16, 60)],
)
def test_what_is_no_picture_has_one_channel(shape, dtype, row_bytes):
    assert Layout(shape, np.dtype(dtype)).picture == {"row_bytes": row_bytes, "channels": 1}
