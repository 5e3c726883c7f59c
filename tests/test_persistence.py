"""Saved, pickled, copied, forked: the buffer that comes out is the one that went in, and goes on like it."""

from __future__ import annotations

import copy
import dataclasses
import multiprocessing
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from envs import Catch
from gymnasium import spaces
from kinds import KINDS, box, steps
from seeding import seed_all
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack
from twins import (
    REPLAY,
    ROLLOUT,
    TWINS,
    GoalRewards,
    Twin,
    arrays,
    assert_same,
    assert_same_arrays,
    assert_same_draws,
    fill_rollout,
    minibatches,
    sample,
)

from sb3_extra_buffers.compressed import (
    CompressedDictReplayBuffer,
    CompressedHerReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    DummyCls,
    compressed_class,
)

PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)
METHODS = ["auto", "none", "rle", "rle-jit", "gzip", "igzip", "zstd", "lz4-frame", "lz4-block", "delta", "near"]


class NotedReplayBuffer(ReplayBuffer):
    """A buffer class of somebody else."""

    def __init__(self, *args: Any, note: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.note = note


CompressedNotedReplayBuffer = compressed_class(NotedReplayBuffer)
NOTED = Twin("noted", NotedReplayBuffer, CompressedNotedReplayBuffer)
ALL_REPLAY = [*REPLAY, NOTED]


def pickled(protocol: int) -> Callable[[Any], Any]:
    return lambda buffer: pickle.loads(pickle.dumps(buffer, protocol))


def sb3_pickled(tmp_path: Any) -> Callable[[Any], Any]:
    def copied(buffer: Any) -> Any:
        save_to_pkl(tmp_path / "buffer.pkl", buffer)
        return load_from_pkl(tmp_path / "buffer.pkl")

    return copied


def set_env(*buffers: Any) -> None:
    """HER buffers come back without their env; SB3 sets it after loading."""
    for buffer in buffers:
        if getattr(buffer, "env", 0) is None:
            buffer.set_env(GoalRewards())


def filled(twin: Twin, n: int, *, method: str = "auto", rows: int = 10, end: float = 0.3) -> tuple[Any, Any, list[Any]]:
    """Return our buffer and SB3's with `n` steps in both, and ten more steps to go on with."""
    ours, sb3 = twin.make(twin.default_kind, rows, 2, compression_method=method)
    data = steps(twin.default_kind, 2, n + 10, end=end)
    for step in data[:n]:
        twin.add(ours, step)
        twin.add(sb3, step)
    return ours, sb3, data[n:]


def goes_on(twin: Twin, copied: Any, sb3: Any, more: list[Any]) -> None:
    """The copy equals SB3's buffer now and while both are used further."""
    assert type(copied) is twin.ours
    assert_same_arrays(copied, sb3)
    for step in more:
        assert_same_draws(copied, sb3, sample(20), range(1))
        twin.add(copied, step)
        twin.add(sb3, step)
    assert_same_arrays(copied, sb3)
    assert_same_draws(copied, sb3, sample(30))


@pytest.mark.parametrize("n", [4, 10, 23])
@pytest.mark.parametrize("twin", ALL_REPLAY, ids=str)
@pytest.mark.parametrize("way", [*PROTOCOLS, "deepcopy", "sb3"])
def test_replay_buffers_go_on(twin: Twin, way: Any, n: int, tmp_path: Any) -> None:
    ours, sb3, more = filled(twin, n)
    how = {"deepcopy": copy.deepcopy, "sb3": sb3_pickled(tmp_path)}.get(way) or pickled(way)
    copied = how(ours)
    set_env(copied)
    goes_on(twin, copied, sb3, more)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("twin", [TWINS["replay"], TWINS["dict-replay"]], ids=str)
def test_each_method_goes_on(twin: Twin, method: str) -> None:
    ours, sb3, more = filled(twin, 70, method=method, rows=30)
    goes_on(twin, pickle.loads(pickle.dumps(ours)), sb3, more)


@pytest.mark.parametrize("twin", ALL_REPLAY, ids=str)
@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_copies_are_independent(twin: Twin, way: str) -> None:
    ours, sb3, more = filled(twin, 13)
    copied = copy.deepcopy(ours) if way == "deepcopy" else pickle.loads(pickle.dumps(ours))
    for step in more:
        twin.add(copied, step)
    assert_same_arrays(ours, sb3)
    assert_same_draws(ours, sb3, sample(20))
    for step in steps(twin.default_kind, 2, 25, seed=9):
        twin.add(ours, step)
    kept = copy.deepcopy(sb3)
    set_env(copied, kept)
    for step in more:
        twin.add(kept, step)
    assert_same_arrays(copied, kept)
    assert_same_draws(copied, kept, sample(20))


@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
@pytest.mark.parametrize("twin", ROLLOUT, ids=str)
def test_rollout_buffers_go_on(twin: Twin, way: str) -> None:
    """Copied while filling, when full, and after the first `get`."""
    copied_as = copy.deepcopy if way == "deepcopy" else pickled(pickle.HIGHEST_PROTOCOL)
    ours, sb3, more = filled(twin, 6)
    ours = copied_as(ours)
    assert type(ours) is twin.ours
    for step in more[:4]:
        twin.add(ours, step)
        twin.add(sb3, step)
    for buffer in (ours, sb3):
        buffer.compute_returns_and_advantage(more[3].value, more[3].done)
    ours = copied_as(ours)
    assert_same_arrays(ours, sb3)
    assert_same_draws(ours, sb3, minibatches(7))
    ours = copied_as(ours)
    assert_same_arrays(ours, sb3)
    assert_same_draws(ours, sb3, minibatches(7))
    fill_rollout(twin, (ours, sb3), more)
    assert_same_arrays(ours, sb3)
    assert_same_draws(ours, sb3, minibatches(None))


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("twin", TWINS.values(), ids=str)
def test_buffers_with_next_to_nothing_in_them(twin: Twin, n: int) -> None:
    ours, sb3, more = filled(twin, n)
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert_same_arrays(copied, sb3)
        set_env(copied)
        twin.add(copied, more[0])
        assert copied.size() == n + 1


def test_copy_of_a_copy() -> None:
    twin = TWINS["replay"]
    ours, sb3, more = filled(twin, 23)
    for step in more:
        ours = pickle.loads(pickle.dumps(copy.deepcopy(ours)))
        twin.add(ours, step)
        twin.add(sb3, step)
    assert_same_arrays(ours, sb3)


@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
@pytest.mark.parametrize("twin", TWINS.values(), ids=str)
def test_settings_survive(twin: Twin, way: str) -> None:
    settings = {"frame_stack": 4, "normalize_images": True, "compression_method": "gzip1", "max_bytes": 10_000_000}
    kind = {"stack": KINDS["stack"]} if twin.keyed else KINDS["stack"]
    if twin.name == "her":
        kind = twin.default_kind
    ours, _ = twin.make(kind, 6, 2, **settings)
    for step in steps(kind, 2, 6, end=1.0):
        twin.add(ours, step)
    copied = copy.deepcopy(ours) if way == "deepcopy" else pickle.loads(pickle.dumps(ours))
    got, wanted = copied.memory_usage(), ours.memory_usage()
    assert dataclasses.replace(got, stored_bytes=0, parts=()) == dataclasses.replace(wanted, stored_bytes=0, parts=())
    assert [part.method for part in got.parts] == [part.method for part in wanted.parts]
    assert got.stored_bytes <= wanted.stored_bytes  # what only speeds up adding is not copied
    assert_same(arrays(copied), {name: _plain(value) for name, value in arrays(ours).items()})


def _plain(value: Any) -> Any:
    return {key: np.asarray(part) for key, part in value.items()} if isinstance(value, dict) else np.asarray(value)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("twin", TWINS.values(), ids=str)
def test_pickles_are_about_as_large_as_what_is_stored(twin: Twin, method: str) -> None:
    rows = 300
    ours, _ = twin.make(twin.default_kind, rows, 2, compression_method=method)
    for step in steps(twin.default_kind, 2, rows, end=0.02):
        twin.add(ours, step)
    plain = sum(value.nbytes for value in arrays(ours).values() if type(value) is np.ndarray and value.dtype != object)
    if twin.name == "her":
        plain += 16 * rows  # the (empty) infos
    limit = 1.3 * ours.memory_usage().stored_bytes + plain + 4_000
    assert len(pickle.dumps(ours, pickle.HIGHEST_PROTOCOL)) < limit


def test_pickles_are_small() -> None:
    """A hundredth of the observations, as long as there are enough of them."""
    ours = CompressedReplayBuffer(2_000, box((4, 18, 18), np.uint8), spaces.Discrete(4), "cpu")
    for step in steps(KINDS["stack"], 1, 2_000, end=0.01):
        ours.add(*step.replay())
    assert len(pickle.dumps(ours)) < 0.1 * ours.memory_usage().raw_bytes


def _catch(**settings: Any) -> VecFrameStack:
    return VecFrameStack(DummyVecEnv([lambda: Catch(**settings)] * 2), 4)


def test_save_and_load_through_a_model(tmp_path: Any) -> None:
    def make(**buffer: Any) -> Any:
        seed_all(2)
        env = DummyVecEnv([lambda: Catch(flat=True)] * 2)
        return DQN("MlpPolicy", env, buffer_size=100, learning_starts=1000, device="cpu", seed=1, **buffer)

    sb3 = make().learn(80)
    ours = make(replay_buffer_class=CompressedReplayBuffer).learn(80)
    ours.save_replay_buffer(tmp_path / "buffer.pkl")
    other = make(replay_buffer_class=CompressedReplayBuffer)
    other.load_replay_buffer(tmp_path / "buffer.pkl")
    assert type(other.replay_buffer) is CompressedReplayBuffer
    assert_same_arrays(other.replay_buffer, sb3.replay_buffer)
    assert_same_draws(other.replay_buffer, sb3.replay_buffer, sample(50))
    other.learn(40)
    assert_same_arrays(ours.replay_buffer, sb3.replay_buffer)


@pytest.mark.parametrize("truncate_last_trajectory", [True, False])
def test_save_and_load_hindsight_through_a_model(tmp_path: Any, truncate_last_trajectory: bool) -> None:
    def make(cls: Any) -> Any:
        seed_all(2)
        env = DummyVecEnv([lambda: BitFlippingEnv(n_bits=70, continuous=True, max_steps=8)] * 2)
        settings = {"buffer_size": 100, "learning_starts": 1000, "device": "cpu", "seed": 1}
        return SAC("MultiInputPolicy", env, replay_buffer_class=cls, policy_kwargs={"net_arch": [4]}, **settings)

    kept = []
    for cls in (TWINS["her"].sb3, CompressedHerReplayBuffer):
        model = make(cls).learn(70)
        model.save_replay_buffer(tmp_path / "buffer.pkl")
        model = make(cls)
        if truncate_last_trajectory:
            with pytest.warns(UserWarning, match="will be truncated"):
                model.load_replay_buffer(tmp_path / "buffer.pkl", truncate_last_traj=True)
        else:
            model.load_replay_buffer(tmp_path / "buffer.pkl", truncate_last_traj=False)
        model.learn(30, reset_num_timesteps=False)
        kept.append(model.replay_buffer)
    sb3, ours = kept
    assert_same_arrays(ours, sb3)
    assert_same_draws(ours, sb3, sample(50))


@pytest.mark.parametrize("custom_objects", [True, False])
def test_save_and_load_of_an_off_policy_model(tmp_path: Any, custom_objects: bool) -> None:
    model = DQN(
        "CnnPolicy",
        _catch(),
        buffer_size=60,
        learning_starts=30,
        device="cpu",
        replay_buffer_class=CompressedReplayBuffer,
        replay_buffer_kwargs={"compression_method": "gzip1", "dtypes": {"elem_type": np.uint8}},
    ).learn(40)
    model.save(tmp_path / "model")
    given = {"replay_buffer_class": DummyCls, "replay_buffer_kwargs": {}} if custom_objects else None
    loaded = DQN.load(tmp_path / "model", device="cpu", custom_objects=given)
    obs = _catch().reset()
    obs = np.moveaxis(obs, -1, 1)
    assert loaded.predict(obs, deterministic=True)[0].tolist() == model.predict(obs, deterministic=True)[0].tolist()
    for name, value in model.policy.state_dict().items():
        assert torch.equal(loaded.policy.state_dict()[name], value)
    wanted = DummyCls if custom_objects else CompressedReplayBuffer
    assert type(loaded.replay_buffer) is wanted


@pytest.mark.parametrize("custom_objects", [True, False])
def test_save_and_load_of_an_on_policy_model(tmp_path: Any, custom_objects: bool) -> None:
    model = PPO(
        "CnnPolicy",
        _catch(),
        n_steps=16,
        batch_size=16,
        n_epochs=1,
        device="cpu",
        rollout_buffer_class=CompressedRolloutBuffer,
        rollout_buffer_kwargs={"compression_method": "zstd-5"},
    ).learn(32)
    model.save(tmp_path / "model")
    given = {"rollout_buffer_class": DummyCls} if custom_objects else None
    loaded = PPO.load(tmp_path / "model", device="cpu", custom_objects=given)
    for name, value in model.policy.state_dict().items():
        assert torch.equal(loaded.policy.state_dict()[name], value)
    wanted = DummyCls if custom_objects else CompressedRolloutBuffer
    assert type(loaded.rollout_buffer) is wanted
    if not custom_objects:
        loaded.set_env(_catch())
        loaded.learn(32)


def test_a_model_with_a_buffer_of_compressed_class_saves(tmp_path: Any) -> None:
    model = DQN(
        "CnnPolicy",
        _catch(),
        buffer_size=60,
        learning_starts=100,
        device="cpu",
        replay_buffer_class=CompressedNotedReplayBuffer,
        replay_buffer_kwargs={"note": "kept"},
    ).learn(40)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    loaded = DQN.load(tmp_path / "model", env=_catch(), device="cpu")
    loaded.load_replay_buffer(tmp_path / "buffer.pkl")
    assert type(loaded.replay_buffer) is compressed_class(NotedReplayBuffer)
    assert loaded.replay_buffer.note == "kept"
    assert_same(_plain(loaded.replay_buffer.observations), _plain(model.replay_buffer.observations))


def test_dummy_cls_takes_anything() -> None:
    DummyCls()
    DummyCls(1, 2, 3, four=5)


@pytest.mark.parametrize(
    "cls", [CompressedNotedReplayBuffer, CompressedDictReplayBuffer, compressed_class(ReplayBuffer)]
)
def test_classes_pickle(cls: type[Any]) -> None:
    """SB3 writes the buffer's class into a saved model."""
    assert pickle.loads(pickle.dumps(cls)) is cls


def _use(buffer: Any) -> list[Any]:
    """Sample, add, sample again."""
    np.random.seed(4)
    before = buffer.sample(16)
    for step in steps(KINDS["stack-view"], 2, 5, seed=1):
        buffer.add(*step.replay())
    after = buffer.sample(16)
    return [part.numpy() for sampled in (before, after) for part in sampled if part is not None]


def _use_and_send(buffer: Any, reply: Any) -> None:
    reply.send(_use(buffer))
    reply.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12 and later, where torch has threads
@pytest.mark.parametrize(
    ("start_method", "method"),
    [*(("fork", method) for method in METHODS), ("forkserver", "auto"), ("spawn", "delta")],
)
def test_use_in_another_process(start_method: str, method: str) -> None:
    """A child samples and adds; what it does is its own, and equals what SB3's buffer does."""
    if start_method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {start_method} here")
    twin = TWINS["replay"]
    ours, sb3, more = filled(twin, 23, method=method)
    context = multiprocessing.get_context(start_method)
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_use_and_send, args=(ours, sender))
    child.start()
    sender.close()
    assert receiver.poll(60)
    got = receiver.recv()
    child.join(60)
    assert child.exitcode == 0
    assert_same_arrays(ours, sb3)
    for one, other in zip(got, _use(copy.deepcopy(sb3)), strict=True):
        assert_same(one, other)
    goes_on(twin, ours, sb3, more)


def _numbered(i: int) -> Any:
    return np.full((1, 1, 20, 20), i % 251, np.uint8)


def _add_numbered(buffer: Any, i: int) -> None:
    buffer.add(_numbered(i), _numbered(i + 1), np.array([i % 4]), np.array([i % 251]), np.zeros(1), [{}])


@pytest.mark.parametrize("method", ["auto", "zstd3", "rle-jit", "delta", "gzip1"])
def test_one_thread_adds_while_another_samples(method: str) -> None:
    """Each sampled transition is one that was added, whole."""
    space = box((1, 20, 20), np.uint8)
    buffer = CompressedReplayBuffer(40, space, spaces.Discrete(4), "cpu", compression_method=method)
    for i in range(40):
        _add_numbered(buffer, i)
    stop, errors = threading.Event(), []

    def write() -> None:
        i = 40
        try:
            while not stop.is_set():
                _add_numbered(buffer, i)
                i += 1
        except Exception as error:
            errors.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(60):
            sampled = buffer.sample(32)
            obs, next_obs = sampled.observations.reshape(32, -1), sampled.next_observations.reshape(32, -1)
            assert torch.equal(obs, obs[:, :1].expand_as(obs))
            assert torch.equal(obs[:, 0].float(), sampled.rewards[:, 0])
            assert torch.equal((obs[:, 0].long() + 1) % 251, next_obs[:, 0].long())
    finally:
        stop.set()
        writer.join()
    assert not errors


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_while_another_thread_adds() -> None:
    """The child finds the buffer whole and its locks free."""
    buffer = CompressedReplayBuffer(40, box((1, 20, 20), np.uint8), spaces.Discrete(4), "cpu")
    for i in range(40):
        _add_numbered(buffer, i)
    stop = threading.Event()

    def write() -> None:
        i = 40
        while not stop.is_set():
            _add_numbered(buffer, i)
            i += 1

    writer = threading.Thread(target=write)
    writer.start()
    context = multiprocessing.get_context("fork")
    try:
        for _ in range(5):
            child = context.Process(target=_check_numbered, args=(buffer,))
            child.start()
            child.join(60)
            assert child.exitcode == 0
    finally:
        stop.set()
        writer.join()


def _check_numbered(buffer: Any) -> None:
    for i in range(3):
        sampled = buffer.sample(16)
        obs, next_obs = sampled.observations[:, 0, 0, 0].long(), sampled.next_observations[:, 0, 0, 0].long()
        assert torch.equal((obs + 1) % 251, next_obs)
        _add_numbered(buffer, i)
