"""Casts: nothing is lost unasked; what is asked for clips and never wraps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sb3_extra_buffers.frames.cast import clipped_cast, exact_cast, narrows

INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
FLOATS = [np.float16, np.float32, np.float64]
DTYPES = [np.dtype(kind) for kind in (bool, *INTEGERS, *FLOATS)]
repeatable = settings(max_examples=30)


def targets(kinds: str):
    """Parametrise over every dtype of these kinds."""
    return pytest.mark.parametrize("target", [dtype for dtype in DTYPES if dtype.kind in kinds], ids=str)


def limits(dtype: np.dtype) -> tuple[int, int]:
    return (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


def edges(source: np.dtype) -> np.ndarray:
    """Return the values around which casts go wrong, those that `source` has."""
    values: list[float] = [0, 1, -1, 2, 0.5, -0.5, 254.9, 255.5, np.nan, np.inf, -np.inf, -0.0, 65_504, 65_536, 1e300]
    for dtype in DTYPES[:-3]:
        low, high = limits(dtype)
        values += [low, low - 1, high, high + 1]
    if source.kind == "f":
        with np.errstate(over="ignore"):
            return np.array(values, np.float64).astype(source)
    low, high = limits(source)
    return np.array([v for v in values if v == v and abs(v) != np.inf and v == int(v) and low <= v <= high], source)


def fits(value: np.generic, dtype: np.dtype) -> bool:
    if value.dtype.kind == "f" and (not np.isfinite(value) or value != np.floor(value)):
        return False
    low, high = limits(dtype)
    return low <= int(value) <= high


@targets("biu")
def test_integers_and_booleans_take_only_what_they_can_hold(target):
    for source in DTYPES:
        for value in edges(source):
            given = np.array([0, value, 1], source)
            if fits(value, target):
                cast = exact_cast(given, target)
                assert cast.dtype == target
                assert [int(v) for v in cast] == [0, int(value), 1]
            else:
                with pytest.raises(ValueError, match=f"{target} cannot hold"):
                    exact_cast(given, target)


@targets("f")
def test_floats_round_as_numpy_does(target):
    for source in DTYPES:
        given = edges(source)
        given = given[np.abs(given.astype(np.float64)) <= 65_504] if target == np.float16 else given
        given = given[~(np.abs(given.astype(np.float64)) > 1e38)] if target == np.float32 else given
        assert exact_cast(given, target).tobytes() == given.astype(target).tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_same_dtype_is_not_touched(dtype):
    given = edges(dtype)
    assert exact_cast(given, dtype) is given


def test_nan_payloads_survive():
    given = np.array([0x7FF8000000000001, 0xFFF0000000000123, 0x8000000000000000], np.uint64).view(np.float64)
    assert exact_cast(given, np.dtype(np.float64)).tobytes() == given.tobytes()


@pytest.mark.parametrize("values", [["a"], [None], [1j], [b"x"], [{}]])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_what_is_no_number_is_a_type_error(values, dtype):
    with pytest.raises(TypeError, match="dtype"):
        exact_cast(np.array(values), np.dtype(dtype))


def test_the_error_names_the_value():
    with pytest.raises(ValueError, match=r"256") as caught:
        exact_cast(np.array([[1, 256], [3, 4]]), np.dtype(np.uint8))
    assert "uint8" in str(caught.value)


def test_nothing_at_all():
    for dtype in DTYPES:
        assert exact_cast(np.empty((0, 3)), dtype).shape == (0, 3)
        assert clipped_cast(np.empty((0, 3)), dtype).shape == (0, 3)


@targets("biuf")
def test_clipping_never_wraps(target):
    for source in DTYPES:
        given = edges(source)
        cast = clipped_cast(given, target)
        assert cast.dtype == target
        assert cast.shape == given.shape
        for before, after in zip(given, cast, strict=True):
            if target.kind == "b":
                assert bool(after) == bool(before != 0)
            elif target.kind in "iu":
                low, high = limits(target)
                if source.kind == "f" and np.isnan(before):
                    assert after == 0
                elif source.kind == "f" and np.isinf(before):
                    assert int(after) == (high if before > 0 else low)
                else:
                    assert int(after) == min(max(int(before), low), high)  # fractions are cut off
            elif source.kind == "f" and np.isnan(before):
                assert np.isnan(after)
            elif source.kind == "f" and np.isinf(before):
                assert after == before
            else:
                most = float(np.finfo(target).max)
                assert after == target.type(min(max(float(before), -most), most))


@repeatable
@given(given=arrays(np.float64, (7,), elements=st.floats(allow_nan=False, width=64)))
def test_any_float_clips_to_any_integer(given):
    for kind in INTEGERS:
        low, high = limits(np.dtype(kind))
        expected = [low if v == -np.inf else high if v == np.inf else min(max(int(v), low), high) for v in given]
        assert [int(v) for v in clipped_cast(given, np.dtype(kind))] == expected


@repeatable
@given(given=arrays(np.int64, (7,), elements=st.integers(-(2**63), 2**63 - 1)))
def test_any_integer_clips_to_any_integer(given):
    for kind in INTEGERS:
        low, high = limits(np.dtype(kind))
        expected = [min(max(int(v), low), high) for v in given]
        assert [int(v) for v in clipped_cast(given, np.dtype(kind))] == expected


@pytest.mark.parametrize(
    ("source", "target", "loses"),
    [
        (np.uint8, np.uint8, False),
        (np.uint8, np.float16, False),
        (np.uint8, np.int16, False),
        (np.float32, np.float64, False),
        (bool, np.uint8, False),
        (np.float32, np.uint8, True),
        (np.float64, np.float32, True),
        (np.int16, np.uint8, True),
        (np.uint8, np.int8, True),
        (np.int32, np.float64, False),
        (np.int64, np.float64, True),  # 2**53 + 1, though NumPy calls this cast safe
        (np.uint64, np.float64, True),
        (np.int64, np.float32, True),
    ],
)
def test_what_narrows(source, target, loses):
    assert narrows(np.dtype(source), np.dtype(target)) is loses
