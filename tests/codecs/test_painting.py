"""Painting: each kernel does what the reference does, on awkward sizes, and writes nothing else."""

import os
import subprocess
import sys

import numpy as np
import pytest

from sb3_extra_buffers.codecs import get_codec, jit, optional, painting

pytestmark = pytest.mark.skipif(not optional.has_numba(), reason="compares the compiled kernels with NumPy")

SIZES = [1, 2, 3, 63, 64, 65, 127, 128, 1000, 1024, 1025, 4096 + 17]


def kernels(planar: bool) -> list[object]:
    """Return what this processor paints with, and what others do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit, "has_vectors", lambda: False)
        other = painting.painting(planar)
    return [painting.painting(planar), other]


@pytest.mark.parametrize("planar", [True, False])
@pytest.mark.parametrize("channels", [2, 3, 4])
@pytest.mark.parametrize("pixels", SIZES)
def test_kernels_equal_the_reference(pixels, channels, planar):
    rng = np.random.default_rng(pixels)
    data = rng.integers(0, 256, 5 * pixels + 7, np.uint8)
    data[: min(256, data.size)] = np.arange(min(256, data.size))  # each number
    colours = rng.integers(0, 1 << 8 * channels, (3, 256), np.uint32)
    starts, palettes, rows = np.array([0, 5, 4 * pixels + 7, 1]), np.array([0, 2, 1, 1]), np.array([3, 0, 5, 1])
    others = starts, pixels, palettes, colours, channels, planar, rows
    for poison in (0, 0xA5):
        expected = np.full((6, channels * pixels), poison, np.uint8)
        painting.paint_reference(data, *others, expected)
        assert (expected[[2, 4]] == poison).all()
        for kernel in kernels(planar):
            for numbers in (data, np.frombuffer(data.tobytes(), np.uint8)):  # a heap may be read-only
                memory = np.full((7, channels * pixels), poison, np.uint8)
                kernel(numbers, *others, memory[:6])
                assert memory[:6].tobytes() == expected.tobytes()
                assert (memory[6] == poison).all()


@pytest.mark.skipif(not jit.has_vectors(), reason="this processor has no such instructions")
def test_both_kernels_are_compared():
    one, other = kernels(True)
    assert one is not other
    assert len(set(kernels(False))) == 1


@pytest.mark.parametrize(
    "settings", [{"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}, {"NUMBA_ENABLE_AVX": "0"}]
)
def test_a_processor_without_the_instructions(settings, tmp_path):
    """Numba compiles for the processor that its variables name: kernels must not use what that one does not have."""
    script = (
        "import numpy as np\n"
        "from sb3_extra_buffers.codecs import get_codec, jit\n"
        "assert not jit.has_vectors()\n"
        "coder = get_codec('none', {'filter': 'palette'}, channels=3).coder(900)\n"
        "frames = np.arange(1800, dtype=np.uint8).reshape(2, 900) // 100\n"
        "out = np.empty_like(frames)\n"
        "encoded = coder.encode(frames, np.zeros(2, np.int64))\n"
        "coder.decode(encoded.data, np.array([0, 300]), encoded.lengths, encoded.references, out)\n"
        "assert np.array_equal(out, frames)\n"
    )
    environment = {**os.environ, **settings, "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


def test_other_threads_are_asked_where_it_pays():
    """Never for a batch of 32 where the processor paints it in less time than it takes to wake one."""
    for planar in (True, False):
        coder = get_codec("none", {"filter": "palette"}, channels=3, planar=planar).coder(900)
        lengths, sources = np.full(2, 300), np.full(2, -1)
        n_bytes, worth = coder.effort(lengths, sources, np.empty((2, 900), np.uint8))
        assert n_bytes == 1800
        assert worth == painting.worth(planar)
    assert painting.worth(True) >= painting.worth(False)
