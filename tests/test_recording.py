"""Record buffers: one face, circular, exact."""

import numpy as np
import pytest

from sb3_extra_buffers.recording import BaseRecordBuffer, DummyRecordBuffer, FramelessRecordBuffer, RecordBuffer

RNG = np.random.default_rng(0)
SIZE, RES, CHANNELS = 5, (6, 7), 3


def frame(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (*RES, CHANNELS), np.uint8)


@pytest.mark.parametrize("steps", [0, 1, 4, 5, 6, 13])
def test_a_ring_of_everything(steps):
    buffer = RecordBuffer(RES, CHANNELS, SIZE, [np.uint8, np.float64, np.float32, np.float32])
    for i in range(steps):
        buffer.add(frame(i), i / 3, i, (i, -i))
    assert len(buffer) == min(steps, SIZE)
    assert buffer.frames.shape == (SIZE, CHANNELS, *RES)
    for i in range(max(0, steps - SIZE), steps):
        row = i % SIZE
        assert np.array_equal(buffer.frames[row], frame(i).transpose(2, 0, 1))
        assert buffer.rewards[row] == i / 3
        assert buffer.actions[row] == i
        assert buffer.features[row].tolist() == [i, -i]


def test_the_three_take_the_same_calls():
    for kind in (RecordBuffer, FramelessRecordBuffer, DummyRecordBuffer):
        buffer = kind(res=RES, ch_num=CHANNELS, size=SIZE)
        assert isinstance(buffer, BaseRecordBuffer)
        buffer.add(frame(0), 1.5, 2)
        buffer.add(frame(1), reward=0.5, action=3, features=())
        assert len(buffer) == (0 if kind is DummyRecordBuffer else 2)
        assert hasattr(buffer, "frames") == (kind is RecordBuffer)


def test_features_of_different_dtypes():
    buffer = FramelessRecordBuffer(RES, CHANNELS, SIZE, [np.uint8, np.float32, np.int64, np.float64, np.bool_])
    buffer.add(None, 0, 0, (2**60, 0.1, True))
    assert buffer.features[0].tolist() == (2**60, 0.1, True)


def test_a_grey_frame_may_leave_out_its_channel():
    buffer = RecordBuffer(RES, 1, SIZE)
    buffer.add(frame(0)[..., 0], 0, 0)
    assert np.array_equal(buffer.frames[0, 0], frame(0)[..., 0])


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"frame": np.zeros((7, 6, 3), np.uint8)}, ValueError),
        ({"frame": np.zeros((3, 6, 7), np.uint8)}, ValueError),
        ({"frame": np.full((6, 7, 3), 300)}, ValueError),
        ({"frame": np.full((6, 7, 3), 0.5)}, ValueError),
        ({"features": (1,)}, ValueError),
        ({"features": (1, 2, 3)}, ValueError),
        ({"reward": "much"}, ValueError),
        ({"action": "left"}, ValueError),
        ({"features": ("x", 1)}, ValueError),
    ],
)
def test_bad_input_records_nothing(bad, error):
    buffer = RecordBuffer(RES, CHANNELS, SIZE, [np.uint8, np.float32, np.float32, np.float32])
    step = {"frame": frame(0), "reward": 1.0, "action": 1, "features": (1, 2)}
    buffer.add(**step)
    before = buffer.frames.copy(), buffer.rewards.copy(), buffer.actions.copy()
    with pytest.raises(error):
        buffer.add(**{**step, **bad})
    assert len(buffer) == 1
    after = buffer.frames, buffer.rewards, buffer.actions
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("arguments", [{"size": 0}, {"ch_num": 0}, {"res": (0, 4)}, {"dtypes": [np.uint8]}])
def test_bad_arguments(arguments):
    with pytest.raises(ValueError, match=r"\d"):
        RecordBuffer(**{"res": RES, "ch_num": CHANNELS, "size": SIZE, **arguments})


def test_the_snippet_of_the_docs():
    buffer = RecordBuffer(res=(84, 84), ch_num=4, size=40_000)
    image, reward, action = RNG.integers(0, 256, (84, 84, 4), np.uint8), 1.0, 3
    buffer.add(image, reward, action)
    assert np.array_equal(buffer.frames[0], image.transpose(2, 0, 1))
