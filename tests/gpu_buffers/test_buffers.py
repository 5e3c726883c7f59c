"""What device buffers have beyond those in host memory: devices, limits of the heap, no waiting, moving on load."""

from __future__ import annotations

import contextlib
import copy
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from envs import Catch
from gpu_twins import CLASSES, DEVICES, METHODS, GpuTwin, gpu_twins
from gymnasium import spaces
from kinds import DICT_KINDS, KINDS, Step, box, endless_steps, steps
from seeding import seed_all
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack
from twins import (
    Twin,
    assert_same,
    assert_same_arrays,
    assert_same_draws,
    check,
    fill_rollout,
    minibatches,
    sample,
)

from sb3_extra_buffers.compressed import StoreFullError
from sb3_extra_buffers.gpu_buffers import (
    GpuReplayBuffer,
    GpuRolloutBuffer,
    find_gpu_buffer_dtypes,
    observations,
    transfer,
)
from sb3_extra_buffers.gpu_buffers.observations import GpuObservations
from sb3_extra_buffers.gpu_buffers.utils import numpy_dtype_to_torch

DEVICE = pytest.mark.parametrize("device", DEVICES)
NAME = pytest.mark.parametrize("name", CLASSES)
NOISE = KINDS["noise-stack"]


def filled(twin: Twin, n: int, rows: int = 10, **settings: Any) -> tuple[Any, Any, list[Step]]:
    """Return our buffer and SB3's with `n` steps in both, and ten more steps."""
    ours, sb3 = twin.make(twin.default_kind, rows, 2, **settings)
    data = steps(twin.default_kind, 2, n + 10, end=0.3)
    for step in data[:n]:
        twin.add(ours, step)
        twin.add(sb3, step)
    return ours, sb3, data[n:]


@DEVICE
@pytest.mark.parametrize("method", METHODS)
@NAME
def test_copies_go_on(name: str, method: str, device: str) -> None:
    twin = gpu_twins(device)[name]
    ours, sb3, more = filled(twin, 10 if twin.rollout else 23, compression_method=method)
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        wanted = copy.deepcopy(sb3)
        assert type(copied) is twin.ours
        assert copied.buffer_device == torch.device(device)
        if twin.rollout:
            fill_rollout(twin, (copied, wanted), more)
            assert_same_draws(copied, wanted, minibatches(7))
        else:
            for step in more:
                twin.add(copied, step)
                twin.add(wanted, step)
                assert_same_draws(copied, wanted, sample(20), range(1))
        assert_same_arrays(copied, wanted)


@pytest.mark.parametrize(
    ("name", "kind", "enclosed"),
    [
        ("replay", "noise-stack", True),
        ("dict-replay", "image+vector", True),
        ("dict-replay", "stack+large-vector", False),  # two stores
        ("rollout", "noise-stack", True),
        ("dict-rollout", "image+vector", False),  # six fields
    ],
)
def test_batches_are_read_by_kernels(
    name: str, kind: str, enclosed: bool, kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CUDA they always are. Here Triton interprets the kernels."""
    calls: list[Any] = []
    monkeypatch.setattr(observations, "enclose", lambda *given: calls.append(given) or transfer.enclose(*given))
    twin = gpu_twins(kernel_device.type)[name]
    chosen: Any = (DICT_KINDS if twin.keyed else KINDS)[kind]
    ours, sb3 = twin.make(chosen, 10, 2)
    data = steps(chosen, 2, 33, end=0.3)
    if twin.rollout:
        fill_rollout(twin, (ours, sb3), data[:10])
        assert_same_draws(ours, sb3, minibatches(7), range(1))
    else:
        for i, step in enumerate(data):
            twin.add(ours, step)
            twin.add(sb3, step)
            if i > 20:
                assert_same_draws(ours, sb3, sample(i - 20), range(1))
        assert_same_draws(ours, sb3, sample(300 if enclosed else 3), range(1))  # fields in several pieces
    assert all(store._mirror.by_kernel for store in ours._stores.values())
    assert bool(calls) == enclosed


@DEVICE
def test_many_batches_are_under_way_at_once(device: str) -> None:
    """Drawn on two streams in turn, read when all are queued: none has got the numbers of another."""
    ours, sb3, _ = filled(gpu_twins(device)["replay"], 23)
    ours.sample(1)
    streams, drawn = [], []
    if device == "cuda":
        streams = [torch.cuda.Stream() for _ in range(2)]
        torch.cuda.synchronize()  # the device has all frames
    for seed in range(60):
        np.random.seed(seed)
        with torch.cuda.stream(streams[seed % 2]) if streams else contextlib.nullcontext():
            if streams:
                torch.cuda._sleep(500_000)
            drawn.append(ours.sample(400))
    for stream in streams:
        stream.synchronize()
    for seed, batch in enumerate(drawn):
        np.random.seed(seed)
        assert_same(batch, sb3.sample(400))


@DEVICE
@pytest.mark.parametrize("method", METHODS)
def test_inference_mode_leaves_nothing_that_cannot_be_written_to(method: str, device: str) -> None:
    twin = gpu_twins(device)["replay"]
    ours, sb3, more = filled(twin, 23, compression_method=method)

    def draw() -> None:
        with torch.inference_mode():
            ours.sample(400)
            ours.sample(4000)
        for step in more:
            twin.add(ours, step)
            twin.add(sb3, step)
            assert_same_draws(ours, sb3, sample(400), range(1))
        assert_same_draws(ours, sb3, sample(4000), range(1))

    with ThreadPoolExecutor(1) as new_thread:  # which has no memory for transfers yet
        new_thread.submit(draw).result()


@pytest.mark.gpu
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("source", "target"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_saved_buffer_follows_the_model_that_loads_it(source: str, target: str, method: str, tmp_path: Any) -> None:
    def model(device: str) -> DQN:
        env = VecFrameStack(DummyVecEnv([Catch] * 2), 4)
        kwargs = {"compression_method": method}
        return DQN(
            "CnnPolicy",
            env,
            replay_buffer_class=GpuReplayBuffer,
            replay_buffer_kwargs=kwargs,
            buffer_size=100,
            learning_starts=500,
            device=device,
        )

    saved, loading = model(source), model(target)
    saved.learn(80)
    saved.save_replay_buffer(tmp_path / "buffer")
    loading.load_replay_buffer(tmp_path / "buffer")
    np.random.seed(0)
    wanted = saved.replay_buffer.sample(50)
    np.random.seed(0)
    got = loading.replay_buffer.sample(50)
    assert loading.replay_buffer.buffer_device.type == target
    for one, other in zip(got[:5], wanted[:5], strict=True):
        assert one.device.type == target
        assert torch.equal(one.cpu(), other.cpu())
    loading.learn(20)


def test_a_buffer_of_another_device_loads_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pickled on a machine with CUDA, loaded on one without."""
    twin = gpu_twins("cpu")["replay"]
    ours, sb3, _ = filled(twin, 15, buffer_device="cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ours.device = ours._placed = torch.device("cuda")
    copied = pickle.loads(pickle.dumps(ours))
    assert (copied.device.type, copied.buffer_device.type) == ("cpu", "cpu")
    assert_same_draws(copied, sb3, sample(20))


@DEVICE
@pytest.mark.parametrize("method", METHODS)
@NAME
def test_observations_that_are_tensors(name: str, method: str, device: str) -> None:
    twin = gpu_twins(device)[name]

    def on_device(obs: Any) -> Any:
        if isinstance(obs, dict):
            return {key: on_device(part) for key, part in obs.items()}
        return torch.from_numpy(np.array(obs)).to(device)

    ours, sb3 = twin.make(twin.default_kind, 8, 2, compression_method=method)
    for step in steps(twin.default_kind, 2, 8 if twin.rollout else 20, end=0.3):
        twin.add(ours, Step(**{**vars(step), "obs": on_device(step.obs), "next_obs": on_device(step.next_obs)}))
        twin.add(sb3, step)
    assert_same_arrays(ours, sb3)
    if not twin.rollout:
        assert_same_draws(ours, sb3, sample(20))


@pytest.mark.gpu
def test_samples_go_to_the_models_device() -> None:
    """Observations on one device, batches on another."""
    twin = gpu_twins("cuda")["replay"]
    for method in METHODS:
        ours, sb3, _ = filled(twin, 15, buffer_device="cpu", compression_method=method)
        assert ours.buffer_device.type == "cpu"
        assert_same_draws(ours, sb3, sample(20))
        ours.buffer_device = "cuda"
        assert_same_draws(ours, sb3, sample(20))
        assert ours._stores[None].device_tensors().get("heap", torch.zeros(0, device="cuda")).is_cuda


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("method", METHODS)
@NAME
def test_no_waiting_for_the_device(name: str, method: str) -> None:
    """SB3 itself waits in a rollout's `add`: it reads values and log probabilities there."""
    twin = gpu_twins("cuda")[name]
    ours, sb3, more = filled(twin, 20, rows=20, compression_method=method)
    if twin.rollout:
        take, take_more = minibatches(7), minibatches(11)
        for buffer in (ours, sb3):
            buffer.compute_returns_and_advantage(more[0].value, more[0].done)
    else:
        take, take_more = sample(20), sample(31)
    assert_same_draws(ours, sb3, take)  # compiles the kernels
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        if not twin.rollout:
            for step in more:
                twin.add(ours, step)
                take(ours)
        take(ours)
        take_more(ours)  # another form of batches
    finally:
        torch.cuda.set_sync_debug_mode("default")
    if not twin.rollout:
        for step in more:
            twin.add(sb3, step)
    assert_same_draws(ours, sb3, take)


@DEVICE
@pytest.mark.parametrize("heap_bytes", [3_000, 20_000])
def test_a_heap_that_is_too_small(heap_bytes: int, device: str) -> None:
    """The error names the bytes needed, and the buffer is as it was: readable, and again and again."""
    twin = gpu_twins(device)["replay"]
    ours, sb3 = twin.make(NOISE, 100, 2, heap_bytes=heap_bytes, frame_stack=4)
    data = endless_steps(NOISE, 2)
    step = next(data)
    with pytest.raises(StoreFullError, match=rf"need [\d,]+ bytes of heap.*heap_bytes={heap_bytes:,}"):  # noqa: PT012
        while True:
            twin.add(ours, step)
            twin.add(sb3, step)
            step = next(data)
    for _ in range(3):
        assert_same_arrays(ours, sb3)
        if sb3.size():
            assert_same_draws(ours, sb3, sample(20))
        with pytest.raises(StoreFullError):
            twin.add(ours, step)
    assert ours.device_usage().heap_bytes <= heap_bytes


@DEVICE
def test_a_heap_that_is_just_large_enough(device: str) -> None:
    twin = gpu_twins(device)["replay"]
    free, _ = twin.make(NOISE, 20, 2, frame_stack=4)
    data = steps(NOISE, 2, 90)
    for step in data:
        twin.add(free, step)
    needed = free.device_usage().heap_used
    ours, sb3 = twin.make(NOISE, 20, 2, heap_bytes=needed, frame_stack=4)
    check(twin, ours, sb3, data)
    assert ours.device_usage().heap_bytes == needed


@DEVICE
def test_the_heap_of_a_dict_is_shared(device: str) -> None:
    twin = gpu_twins(device)["dict-replay"]
    kind = {"one": KINDS["noise"], "two": KINDS["noise"]}
    ours, sb3 = twin.make(kind, 100, 2, heap_bytes=30_000, frame_stack=1)
    data = endless_steps(kind, 2)
    with pytest.raises(StoreFullError, match="heap_bytes=30,000"):  # noqa: PT012
        while True:
            step = next(data)
            twin.add(ours, step)
            twin.add(sb3, step)
    assert sb3.size() > 5
    assert_same_arrays(ours, sb3)
    assert_same_draws(ours, sb3, sample(20))


@DEVICE
def test_the_heap_grows_by_itself(device: str) -> None:
    """Noise needs far more than any estimate says; nothing is lost, and little is allocated ahead."""
    twin = gpu_twins(device)["replay"]
    ours, sb3 = twin.make(NOISE, 60, 2)
    for i, step in enumerate(steps(NOISE, 2, 130)):
        twin.add(ours, step)
        twin.add(sb3, step)
        if i % 20 == 0:
            assert_same_draws(ours, sb3, sample(20))
    assert_same_draws(ours, sb3, sample(200))
    usage = ours.device_usage()
    assert usage.heap_used > 10 * 60 * 2 * NOISE.space.shape[1] * 2
    assert usage.heap_slack <= usage.heap_used // 8 + 1
    assert usage.total_bytes == usage.heap_bytes + usage.table_bytes + usage.key_bytes + usage.id_bytes
    assert "ahead" in str(usage)


def test_max_slot_bytes_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="heap_bytes"):
        ours = GpuReplayBuffer(20, NOISE.space, spaces.Discrete(4), "cpu", 2, max_slot_bytes=50)
    twin = gpu_twins("cpu")["replay"]
    with pytest.raises(StoreFullError, match="heap_bytes=2,000"):  # noqa: PT012 (20 transitions, two observations each)
        for step in steps(NOISE, 2, 30):
            twin.add(ours, step)


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"heap_bytes": 0}, ValueError, "heap_bytes"),
        ({"heap_bytes": 2.5}, TypeError, "heap_bytes"),
        ({"heap_bytes": True}, TypeError, "heap_bytes"),
        ({"compression_method": "gzip"}, ValueError, "known: none, rle, zstd, delta"),
        ({"compression_method": "zstd99"}, ValueError, "99"),
        ({"compression_method": "zst"}, ValueError, "zst"),
        ({"hep_bytes": 3}, TypeError, "hep_bytes"),
        ({"output_dtype": "double"}, ValueError, "output_dtype"),
    ],
    ids=str,
)
def test_arguments_that_cannot_be(settings: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        GpuReplayBuffer(20, NOISE.space, spaces.Discrete(4), "cpu", 2, **settings)


@pytest.mark.parametrize("method", METHODS)
def test_refused_steps_leave_nothing_behind(method: str) -> None:
    twin = gpu_twins("cpu")["replay"]
    ours, sb3, more = filled(twin, 13, compression_method=method)
    for step in more:
        with pytest.raises(ValueError, match="reward"):
            twin.add(ours, Step(**{**vars(step), "reward": np.zeros(5)}))
        assert_same_draws(ours, sb3, sample(20))
        twin.add(ours, step)
        twin.add(sb3, step)
    assert_same_arrays(ours, sb3)
    assert_same_draws(ours, sb3, sample(30))


@pytest.mark.parametrize("method", METHODS)
def test_rows_that_are_written_by_hand(method: str) -> None:
    twin = gpu_twins("cpu")["replay"]
    ours, sb3, more = filled(twin, 13, compression_method=method)
    for buffer in (ours, sb3):
        buffer.observations[3] = more[0].obs
        buffer.next_observations[4, 1] = buffer.observations[3, 0]
    assert_same_arrays(ours, sb3)
    assert_same_draws(ours, sb3, sample(60))


def test_dtypes_of_torch() -> None:
    obs = KINDS["stack"].space
    dtypes = find_gpu_buffer_dtypes(obs.shape, elem_dtype=numpy_dtype_to_torch(obs.dtype), compression_method="rle")
    assert dtypes == {"elem_type": torch.uint8, "runs_type": torch.uint16}
    twin = gpu_twins("cpu")["replay"]
    ours, sb3 = twin.make(KINDS["stack"], 12, 2, dtypes=dtypes, compression_method="rle")
    check(twin, ours, sb3, steps(KINDS["stack"], 2, 30))
    short = {"elem_type": torch.uint8, "runs_type": torch.uint8}
    ours, sb3 = twin.make(KINDS["stack"], 12, 2, dtypes=short, compression_method="rle")
    check(twin, ours, sb3, steps(KINDS["stack"], 2, 30))


@DEVICE
def test_narrow_dtypes_clip(device: str) -> None:
    space = box((300,), np.float32)
    values = np.linspace(-100, 400, 300, dtype=np.float32)[None]
    for method in METHODS:
        with pytest.warns(UserWarning, match="clip"):
            ours = GpuReplayBuffer(4, space, spaces.Discrete(2), device, dtypes=torch.uint8, compression_method=method)
        for _ in range(3):
            ours.add(values, values, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
        wanted = torch.from_numpy(np.clip(values, 0, 255).astype(np.uint8).astype(np.float32))
        assert_same(ours.sample(1).observations, wanted.to(ours.device))


@DEVICE
@pytest.mark.parametrize("method", METHODS)
def test_samples_are_normalized_as_numpy_does_it(method: str, device: str) -> None:
    """Torch on CUDA multiplies by 1/255 instead, which differs in the last bit of every third value."""
    image = np.arange(1024).astype(np.uint8).reshape(1, 1, 32, 32)
    for settings, scale in (({"normalize_images": True}, 255), ({"output_dtype": "float"}, 1)):
        ours = GpuReplayBuffer(
            4, box((1, 32, 32), np.uint8), spaces.Discrete(2), device, compression_method=method, **settings
        )
        for _ in range(3):
            ours.add(image, image, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
        wanted = torch.from_numpy(image.astype(np.float32) / np.float32(scale)).to(ours.device)
        assert_same(ours.sample(1).observations, wanted)


def training(algorithm: Any, device: str, **buffer: Any) -> Any:
    seed_all(11)
    env = VecFrameStack(DummyVecEnv([Catch] * 2), 4)
    if algorithm is DQN:
        given: dict[str, Any] = {"buffer_size": 160, "learning_starts": 40, "batch_size": 16}
    else:
        given = {"n_steps": 32, "batch_size": 16, "n_epochs": 1}
    return algorithm("CnnPolicy", env, seed=3, device=device, **given, **buffer).learn(150)


@DEVICE
@pytest.mark.parametrize("algorithm", [DQN, PPO])
def test_training_ends_with_the_same_weights(algorithm: Any, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    name = "replay_buffer_class" if algorithm is DQN else "rollout_buffer_class"
    cls = GpuReplayBuffer if algorithm is DQN else GpuRolloutBuffer
    wanted = training(algorithm, device).policy.state_dict()
    got = training(algorithm, device, **{name: cls}).policy.state_dict()
    assert all(torch.equal(got[key], value) for key, value in wanted.items())


def test_importing_needs_no_optional_library() -> None:
    """Triton is imported when a kernel is launched on CUDA, and never elsewhere."""
    code = """
import sys
for name in ("triton", "numba", "zstandard", "lz4", "isal"):
    sys.modules[name] = None
import numpy as np
from gymnasium import spaces
from sb3_extra_buffers.gpu_buffers import GpuReplayBuffer
buffer = GpuReplayBuffer(9, spaces.Box(0, 255, (4, 20, 20), np.uint8), spaces.Discrete(2), "cpu")
for i in range(12):
    obs = np.full((1, 4, 20, 20), i, np.uint8)
    buffer.add(obs, obs, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
assert set(buffer.sample(100).observations.unique().tolist()) <= set(range(3, 12))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_dict_of_small_observations_needs_no_store() -> None:
    twin = gpu_twins("cpu")["dict-replay"]
    ours, sb3 = twin.make(DICT_KINDS["small"], 12, 2)
    check(twin, ours, sb3, steps(DICT_KINDS["small"], 2, 30))
    assert ours.device_usage().total_bytes == 0


@DEVICE
@pytest.mark.parametrize("method", METHODS)
def test_one_part_of_a_batch_is_changed_in_place(method: str, device: str) -> None:
    """Parts lie in one piece of memory; autograd does not take the others for changed."""
    ours, _, _ = filled(gpu_twins(device)["replay"], 12, compression_method=method)
    batch = ours.sample(5)
    for part in batch[:5]:
        before = [other._version for other in batch[:5]]
        part.zero_()
        changed = [other._version != version for other, version in zip(batch[:5], before, strict=True)]
        assert changed == [other is part for other in batch[:5]]


def test_the_heap_is_large_enough_for_a_frame_before_one_without_payload() -> None:
    """A frame that is its key needs no bytes: it may be listed last, and end before the one that begins there, too."""
    ours, _, _ = filled(gpu_twins("cpu")["replay"], 12, compression_method="delta")
    ours.sample(3)
    store = ours._stores[None]
    mirror, frames = store._mirror, store.frames
    first, second = np.flatnonzero(frames.counts)[-2:]
    frames.offsets[[first, second]] = 8
    frames.lengths[[first, second]] = 12, 0
    mirror.extent = 0
    mirror.outgoing(np.array([first, second]), {})
    assert mirror.extent == 8 + 12


class Shared(ReplayBuffer):
    """Has one observation for all envs at each step, beside those of each."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shared = np.zeros((self.buffer_size, 1, *self.obs_shape), self.observation_space.dtype)

    def add(self, obs: Any, *args: Any) -> None:
        self.shared[self.pos] = obs[:1]
        super().add(obs, *args)


class GpuShared(GpuObservations, Shared):
    pass


@DEVICE
def test_arrays_with_other_rows(device: str) -> None:
    """Rows of ids of two sizes wait to be sent."""
    twin = GpuTwin("shared", Shared, GpuShared, device=device)
    ours, sb3 = twin.make(twin.default_kind, 10, 3)
    for step in steps(twin.default_kind, 3, 40, end=0.3):
        for buffer in (ours, sb3):
            twin.add(buffer, step)
        assert_same_draws(ours, sb3, sample(32))
    assert_same_arrays(ours, sb3)
