"""Parcels: what is packed comes out, in few bytes."""

from __future__ import annotations

import numpy as np
import pytest

wire = pytest.importorskip("sb3_extra_buffers.distributed.wire")


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.int64, np.float32, ">f8"])
@pytest.mark.parametrize("shape", [(0, 3), (1,), (63, 2, 5), (1000,)])
def test_arrays_come_out_as_they_went_in(dtype, shape):
    random = np.random.default_rng(0)
    arrays = {"a": random.integers(0, 2, shape).astype(dtype), "b/c": random.normal(size=7)[::2]}
    parcel = wire.pack(arrays)
    found = wire.unpack(parcel)
    assert list(found) == ["a", "b/c"]
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    assert parcel.nbytes == parcel.data.size + 3 * 8
    assert parcel.offsets[-1] == parcel.data.size


def test_bits_of_floats_survive():
    values = np.array([np.nan, -0.0, np.inf, -np.inf, 1e-45], np.float32)
    values[0] = np.frombuffer(b"\x01\x00\xc0\x7f", np.float32)[0]
    assert wire.unpack(wire.pack({"a": values}))["a"].tobytes() == values.tobytes()


def test_rows_come_some_at_a_time():
    random = np.random.default_rng(0)
    arrays = {"a": random.integers(0, 3, (100, 2, 500)).astype(np.uint8), "b": random.normal(size=(100, 1))}
    rows = wire.Rows(wire.pack(arrays))
    at = 0
    for n in (1, 0, 63, 36):
        found = rows.take(n)
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array[at : at + n])
        at += n
    with pytest.raises(ValueError, match="a has no 1 rows more"):
        rows.take(1)
