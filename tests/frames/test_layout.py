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


@pytest.mark.parametrize("stack", [0, -1, 3, 5])
def test_a_stack_divides_the_channels(stack):
    with pytest.raises(ValueError, match="frame_stack"):
        Layout((4, 6, 5), np.dtype(np.uint8), stack)


@pytest.mark.parametrize(
    ("shape", "stack", "axis"), [((4, 84, 84), 4, 0), ((84, 84, 4), 4, 0), ((85, 83, 4), 4, -1), ((), 1, 0)]
)
def test_the_axis_of_a_stack(shape, stack, axis):
    assert stack_axis(shape, stack) == axis
