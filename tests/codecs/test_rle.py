"""`rle` and `rle-jit`: one format; the compiled loops do what NumPy does, and old payloads decode forever."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_extra_buffers.codecs import CodecError, get_codec, optional

repeatable = settings(max_examples=40)
RUNS_TYPES = [None, np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int64]
METHODS = ["rle", "rle-jit"] if optional.has_numba() else ["rle"]

runs_of = st.lists(st.tuples(st.integers(1, 700), st.integers(0, 3)), min_size=1, max_size=12)


def frame_of(runs: list[tuple[int, int]], item_bytes: int) -> np.ndarray:
    """Return the bytes of a frame of runs `(length, value)`."""
    lengths, values = zip(*runs, strict=True)
    items = np.repeat(np.array(values, f"<u{item_bytes}") << np.uint8(8 * item_bytes - 3), lengths)
    return items.view(np.uint8)


@pytest.mark.skipif(not optional.has_numba(), reason="compares the compiled kernels with NumPy")
@pytest.mark.parametrize("item_bytes", [1, 2, 4, 8])
@pytest.mark.parametrize("runs_type", RUNS_TYPES)
@repeatable
@given(runs=runs_of)
def test_kernel_equals_reference(item_bytes, runs_type, runs):
    frame = frame_of(runs, item_bytes)
    reference, kernel = (get_codec(m, item_bytes=item_bytes, runs_type=runs_type) for m in ("rle", "rle-jit"))
    payload = reference.encode(frame)
    assert kernel.encode(frame) == payload
    for reader in (reference, kernel):
        out = np.full_like(frame, 0xA5)
        reader.decode(np.frombuffer(payload, np.uint8), out)
        assert out.tobytes() == frame.tobytes()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("longest", [1, 126, 127, 128, 254, 255, 256, 257, 509, 510, 511, 1000])
@pytest.mark.parametrize(("runs_type", "limit"), [(np.uint8, 255), (np.int8, 127)])
def test_runs_longer_than_their_type_are_split(method, longest, runs_type, limit):
    codec = get_codec(method, runs_type=runs_type)
    frame = np.concatenate([np.full(longest, 7), np.full(longest, 9), [7]]).astype(np.uint8)
    payload = codec.encode(frame)
    assert len(payload) == 2 * (2 * -(-longest // limit) + 1)
    out = np.empty_like(frame)
    codec.decode(np.frombuffer(payload, np.uint8), out)
    assert out.tobytes() == frame.tobytes()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_values_that_equal_each_other_but_not_in_their_bytes(method, dtype):
    unsigned = np.dtype(f"<u{np.dtype(dtype).itemsize}")
    nans = np.full(3, np.nan, dtype)
    nans[1:].view(unsigned)[...] ^= 1  # another NaN payload
    frame = np.concatenate([np.array([0.0, -0.0, -0.0, np.inf, -np.inf], dtype), nans]).view(np.uint8)
    codec = get_codec(method, item_bytes=np.dtype(dtype).itemsize)
    out = np.empty_like(frame)
    codec.decode(np.frombuffer(codec.encode(frame), np.uint8), out)
    assert out.tobytes() == frame.tobytes()


# payload, settings, frame
PAYLOADS = {
    "bytes": ("0307 0509", {}, "050505" + "09" * 7),
    "one run of a large frame": ("2c01 07", {}, "07" * 300),
    "a run of each byte": ("01010101 01020304", {}, "01020304"),
    "floats": ("0201 0000803f 000000c0", {"item_bytes": 4}, "0000803f0000803f000000c0"),
    "split runs": ("ff2d 0707", {"runs_type": np.uint8}, "07" * 300),
    "wide runs": ("0300000000000000 05", {"runs_type": np.int64}, "050505"),
    "wide items": ("02 0102030405060708", {"item_bytes": 8}, "01020304050607080102030405060708"),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("payload", "options", "frame"), PAYLOADS.values(), ids=PAYLOADS.keys())
def test_stored_payloads_decode_forever(method, payload, options, frame):
    codec = get_codec(method, **options)
    out = np.full(len(frame) // 2, 0xA5, np.uint8)
    codec.decode(np.frombuffer(bytes.fromhex(payload), np.uint8), out)
    assert out.tobytes().hex() == frame
    assert codec.encode(np.frombuffer(bytes.fromhex(frame), np.uint8)).hex() == payload.replace(" ", "")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("payload", "options"),
    [
        ("", {}),
        ("0a", {}),  # half a run
        ("0b07", {}),  # a byte too many
        ("0907", {}),  # a byte too few
        ("0a000709", {}),  # a run of nothing
        ("f61407 0709 07".replace(" ", ""), {}),
        ("f614 0709", {"runs_type": np.int8}),  # -10 + 20
        ("00" * 7 + "80" + "0a" + "00" * 6 + "80" + "0709", {"runs_type": np.int64}),  # sums that overflow
        ("ff" * 8 + "0b" + "00" * 7 + "0709", {"runs_type": np.uint64}),
    ],
)
def test_damaged_payloads_are_errors(method, payload, options):
    out = np.empty(10, np.uint8)
    with pytest.raises(CodecError, match="rle"):
        get_codec(method, **options).decode(np.frombuffer(bytes.fromhex(payload), np.uint8), out)
