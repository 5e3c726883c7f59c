"""Training with our buffers ends with the very weights that training with SB3's ends with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from envs import Catch
from sb3_contrib import MaskablePPO, RecurrentPPO
from seeding import seed_all
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_extra_buffers.compressed import (
    CompressedDictReplayBuffer,
    CompressedDictRolloutBuffer,
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
)
from sb3_extra_buffers.compressed.contrib import (
    CompressedMaskableDictRolloutBuffer,
    CompressedMaskableRolloutBuffer,
    CompressedRecurrentDictRolloutBuffer,
    CompressedRecurrentRolloutBuffer,
)

Model = Any


class Eyes(BaseFeaturesExtractor):
    """A convolution small enough for a test."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space, features_dim=16)
        channels = observation_space.shape[0]
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(channels, 4, 8, 4),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.LazyLinear(16),
        )
        self.layers(torch.zeros(1, *observation_space.shape))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layers(observations)


SMALL: dict[str, Any] = {"net_arch": [16]}
SMALL_CNN: dict[str, Any] = {"net_arch": [16], "features_extractor_class": Eyes}
SMALL_DICT: dict[str, Any] = {"net_arch": [16], "features_extractor_kwargs": {"cnn_output_dim": 8}}
OFF_POLICY: dict[str, Any] = {"buffer_size": 160, "learning_starts": 40, "batch_size": 16, "seed": 3, "device": "cpu"}


def small(policy_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a copy: SB3 writes into the dict it is given."""
    return copy.deepcopy(policy_kwargs)


def images(n_envs: int = 2) -> VecEnv:
    return VecFrameStack(DummyVecEnv([Catch] * n_envs), 4)


def vectors(n_envs: int = 2) -> VecEnv:
    return DummyVecEnv([lambda: Catch(flat=True, continuous=True)] * n_envs)


def dicts(n_envs: int = 2, continuous: bool = False) -> VecEnv:
    return DummyVecEnv([lambda: Catch(keyed=True, continuous=continuous)] * n_envs)


def trained(make: Callable[..., Model], n: int, **buffer: Any) -> Model:
    seed_all(11)
    return make(**buffer).learn(n)


def assert_same_weights(got: Model, wanted: Model) -> None:
    one, other = got.policy.state_dict(), wanted.policy.state_dict()
    assert one.keys() == other.keys()
    for name, weights in other.items():
        assert torch.equal(one[name], weights), name
    assert got.num_timesteps == wanted.num_timesteps
    assert got._n_updates == wanted._n_updates > 0


@pytest.mark.parametrize("method", ["auto", "rle-jit", "zstd3", "delta", "lz4-block/0", "none"])
def test_dqn_on_images(method: str) -> None:
    def make(**buffer: Any) -> Model:
        return DQN("CnnPolicy", images(), policy_kwargs=small(SMALL_CNN), **OFF_POLICY, **buffer)

    sb3 = trained(make, 400)
    ours = trained(
        make,
        400,
        replay_buffer_class=CompressedReplayBuffer,
        replay_buffer_kwargs={"compression_method": method},
    )
    assert type(ours.replay_buffer) is CompressedReplayBuffer
    assert_same_weights(ours, sb3)


def test_dqn_with_sb3s_own_network() -> None:
    def make(**buffer: Any) -> Model:
        return DQN("CnnPolicy", images(1), train_freq=4, **OFF_POLICY, **buffer)

    assert_same_weights(trained(make, 200, replay_buffer_class=CompressedReplayBuffer), trained(make, 200))


def test_dqn_with_optimized_memory_equals_dqn_without() -> None:
    def make(**buffer: Any) -> Model:
        return DQN("CnnPolicy", images(), policy_kwargs=small(SMALL_CNN), **OFF_POLICY, **buffer)

    ours = trained(make, 400, replay_buffer_class=CompressedReplayBuffer, optimize_memory_usage=True)
    assert_same_weights(ours, trained(make, 400))


def test_dqn_with_n_steps() -> None:
    def make(**buffer: Any) -> Model:
        return DQN("CnnPolicy", images(), policy_kwargs=small(SMALL_CNN), gamma=0.95, **OFF_POLICY, **buffer)

    sb3 = trained(make, 400, n_steps=3)
    ours = trained(
        make,
        400,
        replay_buffer_class=CompressedNStepReplayBuffer,
        replay_buffer_kwargs={"n_steps": 3, "gamma": 0.95},
    )
    assert_same_weights(ours, sb3)


@pytest.mark.parametrize("method", ["auto", "zstd"])
@pytest.mark.parametrize("algorithm", [DDPG, SAC])
def test_off_policy_on_vectors(algorithm: Any, method: str) -> None:
    def make(**buffer: Any) -> Model:
        return algorithm("MlpPolicy", vectors(), policy_kwargs=small(SMALL), train_freq=4, **OFF_POLICY, **buffer)

    ours = trained(
        make, 300, replay_buffer_class=CompressedReplayBuffer, replay_buffer_kwargs={"compression_method": method}
    )
    assert_same_weights(ours, trained(make, 300))


def test_sac_on_normalized_vectors() -> None:
    def make(**buffer: Any) -> Model:
        return SAC(
            "MlpPolicy", VecNormalize(vectors()), policy_kwargs=small(SMALL), train_freq=4, **OFF_POLICY, **buffer
        )

    assert_same_weights(trained(make, 300, replay_buffer_class=CompressedReplayBuffer), trained(make, 300))


@pytest.mark.parametrize("optimize_memory_usage", [False, True])
def test_sac_on_dicts(optimize_memory_usage: bool) -> None:
    def make(**buffer: Any) -> Model:
        env = dicts(continuous=True)
        return SAC("MultiInputPolicy", env, policy_kwargs=small(SMALL_DICT), train_freq=8, **OFF_POLICY, **buffer)

    ours = trained(
        make, 240, replay_buffer_class=CompressedDictReplayBuffer, optimize_memory_usage=optimize_memory_usage
    )
    assert_same_weights(ours, trained(make, 240))


@pytest.mark.parametrize("n_bits", [6, 70])
@pytest.mark.parametrize("method", ["auto", "delta"])
def test_sac_with_hindsight(n_bits: int, method: str) -> None:
    """With 70 bits of float32 an observation is large enough to be compressed."""

    def make(**buffer: Any) -> Model:
        env = DummyVecEnv([lambda: BitFlippingEnv(n_bits=n_bits, continuous=True, max_steps=12)] * 2)
        return SAC("MultiInputPolicy", env, policy_kwargs=small(SMALL), train_freq=4, **OFF_POLICY, **buffer)

    her = {"n_sampled_goal": 3, "goal_selection_strategy": "future"}
    sb3 = trained(make, 250, replay_buffer_class=HerReplayBuffer, replay_buffer_kwargs=her)
    ours = trained(
        make,
        250,
        replay_buffer_class=CompressedHerReplayBuffer,
        replay_buffer_kwargs={**her, "compression_method": method},
    )
    assert_same_weights(ours, sb3)


ON_POLICY: dict[str, Any] = {"n_steps": 32, "seed": 3, "device": "cpu"}


@pytest.mark.parametrize("method", ["auto", "rle", "zstd-3", "gzip1", "igzip"])
@pytest.mark.parametrize("algorithm", [PPO, A2C])
def test_on_policy_on_images(algorithm: Any, method: str) -> None:
    batch = {"batch_size": 16, "n_epochs": 1} if algorithm is PPO else {}

    def make(**buffer: Any) -> Model:
        return algorithm("CnnPolicy", images(), policy_kwargs=small(SMALL_CNN), **batch, **ON_POLICY, **buffer)

    ours = trained(
        make, 200, rollout_buffer_class=CompressedRolloutBuffer, rollout_buffer_kwargs={"compression_method": method}
    )
    assert type(ours.rollout_buffer) is CompressedRolloutBuffer
    assert_same_weights(ours, trained(make, 200))


@pytest.mark.parametrize("algorithm", [PPO, A2C])
def test_on_policy_on_dicts(algorithm: Any) -> None:
    batch = {"batch_size": 32, "n_epochs": 1} if algorithm is PPO else {}

    def make(**buffer: Any) -> Model:
        return algorithm("MultiInputPolicy", dicts(), policy_kwargs=small(SMALL_DICT), **batch, **ON_POLICY, **buffer)

    assert_same_weights(trained(make, 160, rollout_buffer_class=CompressedDictRolloutBuffer), trained(make, 160))


@pytest.mark.parametrize("keyed", [False, True])
def test_maskable_ppo(keyed: bool) -> None:
    cls = CompressedMaskableDictRolloutBuffer if keyed else CompressedMaskableRolloutBuffer
    policy = "MultiInputPolicy" if keyed else "CnnPolicy"
    kwargs = SMALL_DICT if keyed else SMALL_CNN

    def make(**buffer: Any) -> Model:
        env = dicts() if keyed else images()
        return MaskablePPO(policy, env, policy_kwargs=small(kwargs), batch_size=32, n_epochs=1, **ON_POLICY, **buffer)

    ours = trained(make, 160, rollout_buffer_class=cls)
    assert type(ours.rollout_buffer) is cls
    assert_same_weights(ours, trained(make, 160))


@pytest.mark.parametrize("keyed", [False, True])
def test_recurrent_ppo(keyed: bool) -> None:
    """RecurrentPPO takes no buffer class: its buffer is replaced after construction."""
    cls = CompressedRecurrentDictRolloutBuffer if keyed else CompressedRecurrentRolloutBuffer
    policy = "MultiInputLstmPolicy" if keyed else "CnnLstmPolicy"
    kwargs = SMALL_DICT if keyed else SMALL_CNN

    def make(buffer_class: Any = None) -> Model:
        env = dicts() if keyed else images()
        model = RecurrentPPO(
            policy,
            env,
            policy_kwargs={**small(kwargs), "lstm_hidden_size": 8},
            batch_size=16,
            n_epochs=1,
            **ON_POLICY,
        )
        if buffer_class is not None:
            old = model.rollout_buffer
            model.rollout_buffer = buffer_class(
                old.buffer_size,
                old.observation_space,
                old.action_space,
                old.hidden_state_shape,
                old.device,
                gamma=old.gamma,
                gae_lambda=old.gae_lambda,
                n_envs=old.n_envs,
            )
        return model

    ours = trained(make, 160, buffer_class=cls)
    assert type(ours.rollout_buffer) is cls
    assert_same_weights(ours, trained(make, 160))


def test_training_continues_after_saving_the_buffer(tmp_path: Any) -> None:
    """Train, save, load into a new model, train on: the weights of one uninterrupted run with SB3's buffer."""

    def run(buffer_class: Any, interrupted: bool) -> Model:
        seed_all(5)
        model = DQN(
            "CnnPolicy", images(), policy_kwargs=small(SMALL_CNN), **OFF_POLICY, replay_buffer_class=buffer_class
        )
        model.learn(200)
        if interrupted:
            model.save_replay_buffer(tmp_path / "buffer")
            model.replay_buffer = None
            model.load_replay_buffer(tmp_path / "buffer")
        np.random.seed(1)
        return model.learn(200, reset_num_timesteps=False)

    assert_same_weights(run(CompressedReplayBuffer, True), run(None, False))
