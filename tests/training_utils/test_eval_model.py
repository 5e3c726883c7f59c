"""`eval_model`: episodes counted fairly, and every transition in the buffers, exactly."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from envs import Catch
from gymnasium import spaces
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer, RolloutBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecMonitor, VecNormalize, VecTransposeImage
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from twins import assert_same, assert_same_arrays

from sb3_extra_buffers.compressed import (
    CompressedDictReplayBuffer,
    CompressedHerReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
)
from sb3_extra_buffers.recording import DummyRecordBuffer, FramelessRecordBuffer, RecordBuffer
from sb3_extra_buffers.training_utils.eval_model import eval_model, report


class Traced(Catch):
    """Keeps all that it has shown."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.trace: list[Any] = []

    def reset(self, **options: Any) -> Any:
        obs, info = super().reset(**options)
        self.trace.append((obs,))
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, landed, cut, info = super().step(action)
        self.trace.append((obs, action, reward, landed, cut))
        return obs, reward, landed, cut, info

    def transitions(self) -> list[Any]:
        """`(obs, next_obs, action, reward, done, timeout)` of each step."""
        steps = []
        for before, after in zip(self.trace, self.trace[1:], strict=False):
            if len(after) > 1:
                obs, action, reward, landed, cut = after
                steps.append((before[0], obs, action, reward, landed or cut, cut and not landed))
        return steps


class Player:
    """A model that plays anything."""

    def __init__(self, space: Any, seed: int = 0) -> None:
        self.space, self.rng = space, np.random.default_rng(seed)

    def predict(self, obs: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False) -> Any:
        n = len(episode_start)
        if isinstance(self.space, spaces.Box):
            return self.rng.uniform(-1, 1, (n, *self.space.shape)).astype(np.float32), None
        return self.rng.integers(0, self.space.n, n), None


def traced(n_envs: int, **options: Any) -> tuple[DummyVecEnv, Player]:
    env = DummyVecEnv([lambda: Traced(**options)] * n_envs)
    env.seed(5)
    return env, Player(env.action_space)


def assert_holds(buffer: Any, envs: list[Traced]) -> None:
    """Every transition of every env is in the buffer, exactly, in its place."""
    n, ways = buffer.n_envs, len(envs) // buffer.n_envs
    for e, env in enumerate(envs):
        for t, (obs, next_obs, action, reward, done, timeout) in enumerate(env.transitions()):
            row, column = t * ways + e // n, e % n
            if isinstance(obs, dict):
                for key in obs:
                    assert np.array_equal(buffer.observations[key][row, column], obs[key])
                    assert np.array_equal(buffer.next_observations[key][row, column], next_obs[key])
            else:
                assert np.array_equal(buffer.observations[row, column], obs)
                assert np.array_equal(buffer.next_observations[row, column], next_obs)
            if isinstance(env.action_space, spaces.Box):
                low, high = env.action_space.low, env.action_space.high
                action = 2.0 * ((action - low) / (high - low)) - 1.0  # as SB3 stores it, rounding included
            assert np.array_equal(buffer.actions[row, column].reshape(-1), np.reshape(action, -1))
            assert buffer.rewards[row, column] == np.float32(reward)
            assert buffer.dones[row, column] == done
            assert buffer.timeouts[row, column] == timeout
        assert buffer.pos == len(env.transitions()) * ways


@pytest.mark.parametrize("options", [{}, {"flat": True}, {"keyed": True}, {"continuous": True}], ids=str)
@pytest.mark.parametrize(("eval_envs", "buffer_envs"), [(1, 1), (3, 3), (2, 1), (4, 2), (6, 2)])
def test_buffers_hold_every_transition(options: dict[str, Any], eval_envs: int, buffer_envs: int) -> None:
    env, player = traced(eval_envs, **options)
    sb3, ours = (
        (DictReplayBuffer, CompressedDictReplayBuffer) if "keyed" in options else (ReplayBuffer, CompressedReplayBuffer)
    )
    given = (1_000, env.observation_space, env.action_space, "cpu", buffer_envs)
    buffers = [sb3(*given), ours(*given), ours(*given, compression_method="zstd3")]
    returns, seconds = eval_model(6 * eval_envs, env, player, close_env=False, buffer=buffers, verbose=False)
    assert len(returns) == 6 * eval_envs
    assert len(seconds) == 3
    assert min(seconds) > 0
    for buffer in buffers:
        assert_holds(buffer, env.envs)
    for buffer in buffers[1:]:
        assert_same_arrays(buffer, buffers[0])
    assert buffers[0].timeouts.any()
    assert (buffers[0].dones > buffers[0].timeouts).any()


def test_one_buffer_and_any_iterable_of_buffers() -> None:
    for pack in (lambda buffer: buffer, lambda buffer: [buffer], lambda buffer: iter([buffer])):
        env, player = traced(2)
        buffer = CompressedReplayBuffer(200, env.observation_space, env.action_space, "cpu", 2)
        _, seconds = eval_model(2, env, player, buffer=pack(buffer), verbose=False)
        assert len(seconds) == 1
        assert_holds(buffer, env.envs)


def test_transitions_are_those_that_an_algorithm_stores() -> None:
    """Stacked images and a real model: SB3's own collecting fills its buffer with the same."""

    def make() -> Any:
        env = VecFrameStack(DummyVecEnv([Catch, Catch]), 4)
        env.seed(3)
        return env

    model = DQN("CnnPolicy", make(), buffer_size=400, learning_starts=10_000, exploration_fraction=0.0001, seed=1)
    model.exploration_schedule = lambda _: 0.0
    model.learning_starts = 0
    model.policy.set_training_mode(False)
    model.gradient_steps = 0
    model.train = lambda **options: None
    model.env.seed(3)
    model.learn(80)
    wanted = model.replay_buffer
    env = make()
    given = (400, model.observation_space, model.action_space, "cpu", 2)
    buffer = CompressedReplayBuffer(*given)
    eval_model(8, env, model, buffer=buffer, verbose=False)
    n = min(wanted.size(), buffer.size())
    assert n >= 40
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        assert_same(np.asarray(getattr(buffer, name)[:n]), getattr(wanted, name)[:n], name)


def test_continuous_actions_are_scaled_as_sb3_stores_them() -> None:
    class Wide(gym.Env):
        observation_space = spaces.Box(-1, 1, (3,), np.float32)
        action_space = spaces.Box(np.array([-2, 0], np.float32), np.array([3, 8], np.float32))

        def reset(self, **options: Any) -> Any:
            self.t = 0
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            assert self.action_space.contains(action)
            self.t += 1
            return self.observation_space.sample(), 1.0, self.t == 9, False, {}

    env = DummyVecEnv([Wide])
    model = SAC("MlpPolicy", env, policy_kwargs={"net_arch": [8]}, seed=0)
    buffer = ReplayBuffer(50, env.observation_space, env.action_space, "cpu")
    returns, _ = eval_model(2, env, model, buffer=buffer, verbose=False)
    assert returns == [9.0, 9.0]
    for obs, action in zip(buffer.observations[:18, 0], buffer.actions[:18, 0], strict=True):
        wanted = model.policy.scale_action(model.predict(obs, deterministic=True)[0])
        assert np.array_equal(action, wanted)


def test_normalized_envs_give_what_was_before() -> None:
    inner, player = traced(2, flat=True)
    env = VecNormalize(inner)
    buffer = CompressedReplayBuffer(400, env.observation_space, env.action_space, "cpu", 2)
    eval_model(6, env, player, buffer=buffer, verbose=False)
    for e, traced_env in enumerate(inner.envs):
        for t, (obs, next_obs, _, reward, done, _) in enumerate(traced_env.transitions()):
            assert np.array_equal(buffer.observations[t, e], obs)
            assert buffer.rewards[t, e] == np.float32(reward)
            if not done:  # SB3 has the last observation of an episode in normalized form only
                assert np.array_equal(buffer.next_observations[t, e], next_obs)


def test_returns_without_a_monitor_are_sums_of_rewards() -> None:
    env, player = traced(2)
    returns, seconds = eval_model(6, env, player, verbose=False)
    wanted = []
    for each in env.envs:
        total, done = 0.0, []
        for *_, reward, ended, _ in each.transitions():
            total += np.float32(reward)
            if ended:
                done.append(total)
                total = 0.0
        wanted += done[:3]
    assert sorted(returns) == sorted(wanted)
    assert seconds == []


class Lives(gym.Wrapper):
    """Says that the episode is over in the middle of a game, as Atari wrappers do when a life is lost."""

    def step(self, action: Any) -> Any:
        obs, reward, landed, cut, info = self.env.step(action)
        self.lost = not (landed or cut) and self.env.unwrapped.t == 5
        return obs, 100 * reward, landed or self.lost, cut, info

    def reset(self, **options: Any) -> Any:
        if getattr(self, "lost", False):
            self.lost = False
            obs, *_, info = self.env.step(1)
            return obs, info
        return self.env.reset(**options)


@pytest.mark.parametrize("outside", [False, True])
def test_returns_of_a_monitor_are_those_of_the_game(outside: bool) -> None:
    """Neither lost lives nor changed rewards count. A monitor outside of the wrapper sees what the wrapper says."""
    if outside:
        env: Any = VecMonitor(DummyVecEnv([lambda: Lives(Catch())]))
    else:
        env = DummyVecEnv([lambda: Lives(Monitor(Catch()))])
    env.seed(0)
    returns, _ = eval_model(6, env, Player(env.action_space), verbose=False)
    assert len(returns) == 6
    assert (max(np.abs(returns)) > 1.5) == outside


def test_each_env_plays_its_share() -> None:
    """Envs with short episodes do not count more often."""

    class Long(gym.Env):
        observation_space, action_space = spaces.Box(0, 1, (2,), np.float32), spaces.Discrete(2)

        def __init__(self, length: int) -> None:
            self.length = length

        def reset(self, **options: Any) -> Any:
            self.t = 0
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> Any:
            self.t += 1
            return np.zeros(2, np.float32), 1.0, self.t == self.length, False, {}

    env = DummyVecEnv([lambda: Long(3), lambda: Long(50)])
    returns, _ = eval_model(5, env, Player(env.action_space), verbose=False)
    assert sorted(returns) == [3.0, 3.0, 50.0, 50.0, 50.0]


def test_images_are_transposed_for_the_model() -> None:
    env = VecFrameStack(DummyVecEnv([Catch] * 2), 4)
    model = PPO("CnnPolicy", VecFrameStack(DummyVecEnv([Catch] * 2), 4), n_steps=8, batch_size=8)
    buffer = CompressedReplayBuffer(100, model.observation_space, model.action_space, "cpu", 2)
    eval_model(2, env, model, buffer=buffer, verbose=False)
    assert buffer.observations.shape[2:] == (4, 36, 36)
    assert buffer.size() > 0


def test_dict_observations_and_a_real_model() -> None:
    env = DummyVecEnv([lambda: Catch(keyed=True)] * 2)
    model = PPO("MultiInputPolicy", env, n_steps=8, batch_size=8)
    buffer = CompressedDictReplayBuffer(100, model.observation_space, model.action_space, "cpu", 2)
    returns, _ = eval_model(3, DummyVecEnv([lambda: Catch(keyed=True)] * 2), model, buffer=buffer, verbose=False)
    assert len(returns) == 3
    assert buffer.observations["image"].shape[2:] == (1, 36, 36)


def test_hindsight_buffers() -> None:
    env = make_vec_env(lambda: BitFlippingEnv(n_bits=5, continuous=True, max_steps=7), n_envs=2, seed=0)
    model = SAC("MultiInputPolicy", env, policy_kwargs={"net_arch": [8]}, learning_starts=100, seed=0)
    given = {"buffer_size": 100, "observation_space": env.observation_space, "action_space": env.action_space}
    buffers = [cls(**given, env=env, device="cpu", n_envs=2) for cls in (HerReplayBuffer, CompressedHerReplayBuffer)]
    eval_model(4, env, model, close_env=False, buffer=buffers, verbose=False)
    assert_same_arrays(buffers[1], buffers[0])
    assert buffers[0].ep_length.any()


def test_a_plain_env() -> None:
    returns, _ = eval_model(2, Catch(), Player(spaces.Discrete(3)), verbose=False)
    assert len(returns) == 2


@pytest.mark.parametrize("kind", [RecordBuffer, FramelessRecordBuffer, DummyRecordBuffer])
def test_record_buffers(kind: Any) -> None:
    env, player = traced(1)
    transposed = VecTransposeImage(env)
    record = kind((36, 36), 1, 500)
    eval_model(3, transposed, player, buffer=record, verbose=False)
    steps = env.envs[0].transitions()
    assert len(record) == (0 if kind is DummyRecordBuffer else len(steps))
    assert len(record.episodes(whole=True)) == (0 if kind is DummyRecordBuffer else 3)
    got = record[:]
    if len(record):
        assert got.actions.tolist() == [action for _, _, action, *_ in steps]
        assert got.rewards.tolist() == [np.float32(reward) for *_, reward, _, _ in steps]
    if got.frames is not None:
        assert np.array_equal(got.frames, np.stack([obs.transpose(2, 0, 1) for obs, *_ in steps]))


class Closed(DummyVecEnv):
    closed = False

    def close(self) -> None:
        self.closed = True
        super().close()


@pytest.mark.parametrize("close_env", [True, False])
def test_the_env_is_closed_if_that_is_asked_for(close_env: bool) -> None:
    env = Closed([Catch])
    eval_model(1, env, Player(env.action_space), close_env, verbose=False)
    assert env.closed == close_env


@pytest.mark.parametrize(
    ("eval_envs", "n_eps", "make", "error", "problem"),
    [
        (3, 2, None, ValueError, "3 envs"),
        (1, 0, None, ValueError, "n_eps=0"),
        (3, 3, lambda *given: ReplayBuffer(*given, "cpu", 2), ValueError, "multiple"),
        (2, 2, lambda *given: ReplayBuffer(*given, "cpu", 4), ValueError, "multiple"),
        (2, 2, lambda *given: NStepReplayBuffer(*given, "cpu", 1), ValueError, "order"),
        (
            2,
            2,
            lambda *given: ReplayBuffer(*given, "cpu", 1, optimize_memory_usage=True, handle_timeout_termination=False),
            ValueError,
            "optimize_memory_usage",
        ),
        (1, 1, lambda *given: RolloutBuffer(*given, "cpu"), TypeError, "RolloutBuffer"),
        (1, 1, lambda *given: CompressedRolloutBuffer(*given, "cpu"), TypeError, "RolloutBuffer"),
        (1, 1, lambda *given: [3], TypeError, "int"),
        (1, 1, lambda size, obs, act: ReplayBuffer(size, spaces.Box(0, 1, (4,)), act, "cpu"), ValueError, "observ"),
        (2, 2, lambda *given: RecordBuffer((36, 36), 1, 9), ValueError, "one env"),
        (1, 1, lambda *given: RecordBuffer((36, 37), 1, 9), ValueError, "36"),
        (1, 1, lambda *given: RecordBuffer((36, 36), 1, 9, [np.uint8, float, float]), ValueError, "features"),
    ],
)
def test_bad_input_is_found_before_playing(
    eval_envs: int, n_eps: int, make: Any, error: type[Exception], problem: str
) -> None:
    env = DummyVecEnv([Traced] * eval_envs)
    buffer = None if make is None else make(20, env.observation_space, env.action_space)
    with pytest.raises(error, match=problem):
        eval_model(n_eps, env, Player(env.action_space), buffer=buffer, verbose=False)
    assert all(each.trace == [] for each in env.envs)


def test_a_model_for_other_observations() -> None:
    model = PPO("MlpPolicy", DummyVecEnv([lambda: Catch(flat=True)]), n_steps=8, batch_size=8)
    with pytest.raises(ValueError, match="the model is for observations"):
        eval_model(1, DummyVecEnv([Catch]), model, verbose=False)


def test_report() -> None:
    line = report([1, 2, 3, 4, 5])
    assert line == (
        "3.00 +/- 1.41 | Q1 2.00 | Q2 3.00 | Q3 4.00 | relative IQR 0.67 | min 1.00 | max 5.00 | 5 episodes"
    )
    assert "relative IQR 0.40" in report([-21, -20, -19, -10, -20, -10])
    assert "relative IQR n/a" in report([-1, 0, 1])
    assert report([7]).endswith("min 7.00 | max 7.00 | 1 episode")
    with pytest.raises(ValueError, match="no episodes"):
        report([])


def test_it_shows_the_running_mean_and_prints_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    env, player = traced(2)
    returns, _ = eval_model(4, env, player)
    captured = capsys.readouterr()
    assert captured.out == report(returns) + "\n"
    assert f"mean {np.mean(returns):.2f}" in captured.err
    assert "4/4" in captured.err


def test_without_tqdm_it_prints_the_report(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    env, player = traced(2)
    returns, _ = eval_model(2, env, player)
    captured = capsys.readouterr()
    assert captured.out == report(returns) + "\n"
    assert captured.err == ""


def test_verbose_off_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    env, player = traced(1)
    eval_model(1, env, player, verbose=False)
    assert capsys.readouterr() == ("", "")
