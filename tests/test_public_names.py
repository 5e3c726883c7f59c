"""The names that users import, where they import them from, and what importing them does not do."""

from __future__ import annotations

import importlib
import importlib.resources
import inspect
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from stable_baselines3.common.buffers import (
    DictReplayBuffer,
    DictRolloutBuffer,
    NStepReplayBuffer,
    ReplayBuffer,
    RolloutBuffer,
)
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

import sb3_extra_buffers

NAMES = {
    "sb3_extra_buffers": ["__version__"],
    "sb3_extra_buffers.compressed": [
        "CompressedArray",
        "CompressedDictReplayBuffer",
        "CompressedDictRolloutBuffer",
        "CompressedHerReplayBuffer",
        "CompressedNStepReplayBuffer",
        "CompressedReplayBuffer",
        "CompressedRolloutBuffer",
        "DummyCls",
        "compressed_class",
        "find_buffer_dtypes",
        "find_smallest_dtype",
        "has_igzip",
        "has_lz4",
        "has_numba",
        "has_zstd",
        "init_jit",
    ],
    "sb3_extra_buffers.compressed.contrib": [
        "CompressedMaskableDictRolloutBuffer",
        "CompressedMaskableRolloutBuffer",
        "CompressedRecurrentDictRolloutBuffer",
        "CompressedRecurrentRolloutBuffer",
    ],
    "sb3_extra_buffers.compressed.compression_methods": [
        "COMPRESSION_METHOD_MAP",
        "HAS_NUMBA",
        "has_igzip",
        "has_lz4",
        "has_numba",
        "has_zstd",
    ],
    "sb3_extra_buffers.compressed.compression_methods.compression_methods_numba": ["init_jit"],
    "sb3_extra_buffers.distributed": [
        "CollectorActor",
        "Collectors",
        "DistributedReplayBuffer",
        "RateLimiter",
        "Shard",
    ],
    "sb3_extra_buffers.gpu_buffers": [
        "GpuDictReplayBuffer",
        "GpuDictRolloutBuffer",
        "GpuReplayBuffer",
        "GpuRolloutBuffer",
        "find_gpu_buffer_dtypes",
    ],
    "sb3_extra_buffers.gpu_buffers.compression_methods": ["COMPRESSION_METHOD_MAP", "has_zstd"],
    "sb3_extra_buffers.gpu_buffers.metadata": ["SlotMetadata"],
    "sb3_extra_buffers.gpu_buffers.observation_store": [
        "DenseObservationStore",
        "RawObservationStore",
        "create_observation_store",
    ],
    "sb3_extra_buffers.gpu_buffers.raw_buffer": ["RawBuffer", "SharedRawHeap"],
    "sb3_extra_buffers.gpu_buffers.size_estimation": [
        "estimate_save_ratio",
        "parse_compression_method",
        "validate_compresslevel",
    ],
    "sb3_extra_buffers.gpu_buffers.utils": [
        "estimate_max_slot_bytes",
        "estimate_total_heap_bytes",
        "find_smallest_dtype",
        "numpy_dtype_to_torch",
        "torch_dtype_to_numpy",
    ],
    "sb3_extra_buffers.recording": [
        "BaseRecordBuffer",
        "DummyRecordBuffer",
        "FramelessRecordBuffer",
        "RecordBuffer",
        "Steps",
    ],
    "sb3_extra_buffers.training_utils": ["BufferStatsCallback"],
    "sb3_extra_buffers.training_utils.atari": ["make_env"],
    "sb3_extra_buffers.training_utils.buffer_warmup": ["warm_up"],
    "sb3_extra_buffers.training_utils.doom": ["DoomEnv"],
    "sb3_extra_buffers.training_utils.eval_model": ["eval_model", "report"],
    "sb3_extra_buffers.vec_buf": ["DummyVecRolloutBuffer"],
}

BASES = {
    "CompressedReplayBuffer": ReplayBuffer,
    "CompressedDictReplayBuffer": DictReplayBuffer,
    "CompressedRolloutBuffer": RolloutBuffer,
    "CompressedDictRolloutBuffer": DictRolloutBuffer,
    "CompressedNStepReplayBuffer": NStepReplayBuffer,
    "CompressedHerReplayBuffer": HerReplayBuffer,
    "CompressedMaskableRolloutBuffer": MaskableRolloutBuffer,
    "CompressedMaskableDictRolloutBuffer": MaskableDictRolloutBuffer,
    "CompressedRecurrentRolloutBuffer": RecurrentRolloutBuffer,
    "CompressedRecurrentDictRolloutBuffer": RecurrentDictRolloutBuffer,
}

OPTIONAL = ["numba", "zstandard", "lz4", "isal", "sb3_contrib", "ray"]
"""Libraries that we use where they are installed, and only when asked for."""

BLOCKED = [
    *OPTIONAL,
    *("psutil", "tqdm", "rich", "cv2", "ale_py", "vizdoom", "pygame", "tensorboard", "matplotlib"),
    *("PIL", "imageio_ffmpeg"),
]


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in NAMES.items() for name in names])
def test_name_is_importable(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("module", [module for module in NAMES if module != "sb3_extra_buffers"])
def test_star_import_gives_the_names(module: str) -> None:
    assert set(NAMES[module]) <= set(importlib.import_module(module).__all__)


@pytest.mark.parametrize("name", BASES)
def test_buffer_classes_extend_sb3s(name: str) -> None:
    module = "sb3_extra_buffers.compressed" + (".contrib" if "Maskable" in name or "Recurrent" in name else "")
    cls = getattr(importlib.import_module(module), name)
    assert issubclass(cls, BASES[name])
    assert cls.__name__ == name
    assert cls.__doc__


def test_constructor_keywords() -> None:
    """The arguments beyond SB3's own, with their defaults."""
    from sb3_extra_buffers.compressed import CompressedReplayBuffer

    wanted = {
        "dtypes": None,
        "normalize_images": False,
        "compression_method": "auto",
        "compression_kwargs": None,
        "decompression_kwargs": None,
        "output_dtype": "raw",
        "frame_stack": "auto",
        "max_bytes": None,
    }
    parameters = inspect.signature(CompressedReplayBuffer.__init__).parameters
    assert {name: parameters[name].default for name in wanted} == wanted
    assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in wanted)


def test_compressed_array_is_an_ndarray() -> None:
    from sb3_extra_buffers.compressed import CompressedArray

    assert issubclass(CompressedArray, np.ndarray)
    array = CompressedArray((3, 2), np.uint8, (5, 6), compression_method="rle")
    assert isinstance(array, CompressedArray)
    assert isinstance(array, np.ndarray)
    assert (array.shape, array.dtype) == ((3, 2, 5, 6), np.uint8)


def test_compression_method_map_has_every_method() -> None:
    from sb3_extra_buffers.compressed.compression_methods import COMPRESSION_METHOD_MAP

    wanted = {"none", "rle", "rle-jit", "gzip", "igzip", "zstd", "lz4-frame", "lz4-block", "delta", "near"}
    assert wanted <= set(COMPRESSION_METHOD_MAP)


def test_probes() -> None:
    from sb3_extra_buffers import compressed
    from sb3_extra_buffers.compressed.compression_methods import HAS_NUMBA

    for probe in (compressed.has_numba, compressed.has_igzip, compressed.has_zstd, compressed.has_lz4):
        assert isinstance(probe(), bool)
    assert compressed.has_numba() == HAS_NUMBA


def test_find_smallest_dtype() -> None:
    from sb3_extra_buffers.compressed import find_smallest_dtype

    for value, unsigned, signed in [
        (0, np.uint8, np.int8),
        (127, np.uint8, np.int8),
        (128, np.uint8, np.int16),
        (255, np.uint8, np.int16),
        (256, np.uint16, np.int16),
        (65_535, np.uint16, np.int32),
        (65_536, np.uint32, np.int32),
        (2**32, np.uint64, np.int64),
        (2**63, np.uint64, np.float32),
    ]:
        assert np.dtype(find_smallest_dtype(value)) == unsigned
        assert np.dtype(find_smallest_dtype(value, signed=True)) == signed
    assert np.dtype(find_smallest_dtype(2**64)) == np.float32
    assert np.dtype(find_smallest_dtype(2**64, fallback=np.float64)) == np.float64


@pytest.mark.parametrize("method", ["rle", "rle-jit", "zstd-3", "none", "auto", "delta", "lz4-frame/3"])
@pytest.mark.parametrize("shape", [(4, 84, 84), (84, 84), 100, (2,)])
def test_find_buffer_dtypes(shape: Any, method: str) -> None:
    from sb3_extra_buffers.compressed import find_buffer_dtypes

    for elem_dtype in (np.uint8, np.float32, np.dtype(np.int16)):
        dtypes = find_buffer_dtypes(shape, elem_dtype, method)
        assert list(dtypes) == ["elem_type", "runs_type"]
        assert np.dtype(dtypes["elem_type"]) == elem_dtype
        assert np.iinfo(dtypes["runs_type"]).max >= np.prod(shape)
    assert np.dtype(find_buffer_dtypes(obs_shape=shape)["elem_type"]) == np.uint8


def _run(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *options, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


BLOCK = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


def test_import_prints_nothing_warns_nothing_and_loads_nothing_optional() -> None:
    done = _run(
        f"""
        import sys
        import stable_baselines3  # where tensorboard is installed, that alone loads several codecs
        before = set(sys.modules)
        import {", ".join(module for module in NAMES if not module.endswith("contrib"))}
        loaded = [name for name in {OPTIONAL} if name in sys.modules and name not in before]
        assert not loaded, loaded
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_import_does_not_move_the_random_state() -> None:
    done = _run(
        """
        import random
        import numpy, torch
        import stable_baselines3
        before = (numpy.random.get_state()[1].tobytes(), random.getstate(), torch.get_rng_state().tolist())
        import sb3_extra_buffers.compressed
        assert before == (numpy.random.get_state()[1].tobytes(), random.getstate(), torch.get_rng_state().tolist())
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_import_and_use_without_any_optional_library() -> None:
    done = _run(
        BLOCK
        + textwrap.dedent(
            f"""
            import {", ".join(module for module in NAMES if not module.endswith("contrib"))}
            import numpy as np
            from gymnasium import spaces
            from sb3_extra_buffers.compressed import CompressedReplayBuffer, has_igzip, has_lz4, has_numba, has_zstd
            from sb3_extra_buffers.compressed.compression_methods import HAS_NUMBA

            assert not (has_numba() or has_igzip() or has_zstd() or has_lz4() or HAS_NUMBA)
            space = spaces.Box(0, 255, (4, 20, 20), np.uint8)
            for method in ("auto", "none", "rle", "gzip", "delta"):
                buffer = CompressedReplayBuffer(8, space, spaces.Discrete(2), "cpu", compression_method=method)
                rng = np.random.default_rng(0)
                frames = rng.integers(0, 3, (40, 20, 20)).astype(np.uint8)
                for t in range(30):
                    obs, next_obs = frames[None, t : t + 4], frames[None, t + 1 : t + 5]
                    buffer.add(obs, next_obs, np.zeros(1), np.zeros(1), np.zeros(1), [{{}}])
                    row = (buffer.pos - 1) % 8
                    assert (buffer.observations[row] == obs).all()
                    assert (buffer.next_observations[row] == next_obs).all()
                buffer.sample(16)
                str(buffer.memory_usage())
            """
        )
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_contrib_without_sb3_contrib() -> None:
    done = _run(
        BLOCK
        + textwrap.dedent(
            """
            try:
                import sb3_extra_buffers.compressed.contrib
            except ImportError as error:
                print(error)
            """
        )
    )
    assert done.returncode == 0, done.stderr
    assert 'pip install "sb3-extra-buffers[contrib]"' in done.stdout


def test_distributed_without_ray() -> None:
    """The module can be imported; asking for a class says what to install."""
    done = _run(
        BLOCK
        + textwrap.dedent(
            """
            import sb3_extra_buffers.distributed
            for name in sb3_extra_buffers.distributed.__all__:
                try:
                    getattr(sb3_extra_buffers.distributed, name)
                except ImportError as error:
                    print(error)
            try:
                from sb3_extra_buffers.distributed import DistributedReplayBuffer
            except ImportError as error:
                print(error)
            """
        )
    )
    assert done.returncode == 0, done.stderr
    names = [*NAMES["sb3_extra_buffers.distributed"], "DistributedReplayBuffer"]
    assert done.stdout.splitlines() == [f'{name} needs: pip install "sb3-extra-buffers[ray]"' for name in names]


def test_typed() -> None:
    path = importlib.resources.files(sb3_extra_buffers) / "py.typed"
    assert path.is_file()
