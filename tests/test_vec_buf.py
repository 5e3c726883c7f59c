"""`DummyVecRolloutBuffer`: several rollout buffers that look, and train, like one."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from envs import Catch
from gymnasium import spaces
from kinds import DICT_KINDS, KINDS, space_of, steps
from sb3_contrib.common.recurrent.buffers import RecurrentRolloutBuffer
from seeding import seed_all
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.buffers import DictRolloutBuffer, ReplayBuffer, RolloutBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack
from twins import TWINS, assert_same, assert_same_draws, fill_rollout, minibatches

from sb3_extra_buffers.compressed import CompressedDictRolloutBuffer, CompressedRolloutBuffer
from sb3_extra_buffers.vec_buf import DummyVecRolloutBuffer

ROWS = 9
ARRAYS = ["observations", "actions", "rewards", "advantages", "returns", "episode_starts", "log_probs", "values"]
KIND_NAMES = ["stack-view", "discrete", "small-float32", "image+vector"]
SHARES = [[4], [2, 2], [1, 3], [1, 1, 1, 1]]


def kind_of(name: str) -> Any:
    return DICT_KINDS.get(name) or KINDS[name]


def classes(kind: Any) -> tuple[type[Any], type[Any]]:
    return (
        (DictRolloutBuffer, CompressedDictRolloutBuffer)
        if isinstance(kind, dict)
        else (RolloutBuffer, CompressedRolloutBuffer)
    )


def make(kind: Any, counts: list[int], n_envs: int = 4, **options: Any) -> tuple[DummyVecRolloutBuffer, Any]:
    """Return the face over buffers of `counts` envs, of both sorts in turns, and SB3's buffer of all envs."""
    given = (ROWS, space_of(kind), spaces.Discrete(4), "cpu")
    sb3, ours = classes(kind)
    buffers = [(ours, sb3)[i % 2](*given, n_envs=n) for i, n in enumerate(counts)]
    face = DummyVecRolloutBuffer(*given, n_envs=n_envs, buffers=buffers, gamma=0.9, gae_lambda=0.8, **options)
    return face, sb3(*given, n_envs=n_envs, gamma=0.9, gae_lambda=0.8)


@pytest.mark.parametrize("use_threads", [False, True])
@pytest.mark.parametrize("counts", [*SHARES, [4, 4], [4, 4, 4]], ids=str)
@pytest.mark.parametrize("name", KIND_NAMES)
def test_it_is_one_buffer(name: str, counts: list[int], use_threads: bool) -> None:
    """Arrays, minibatches and draws, over two rollouts."""
    kind = kind_of(name)
    face, one = make(kind, counts, use_threads=use_threads)
    assert isinstance(face, RolloutBuffer)
    twin = TWINS["dict-rollout" if isinstance(kind, dict) else "rollout"]
    for seed in range(2):
        fill_rollout(twin, (face, one), steps(kind, 4, ROWS, seed=seed))
        assert (face.pos, face.full, face.size()) == (one.pos, one.full, one.size()) == (ROWS, True, ROWS)
        for flattened in (False, True):
            for array in ARRAYS:
                assert_same(copy.copy(getattr(face, array)), getattr(one, array), array)
            if not flattened:
                for batch_size in (7, 36, None, 1, 1000):
                    assert_same_draws(face, one, minibatches(batch_size), range(2))
        face.reset()
        assert (face.pos, face.full, face.size()) == (0, False, 0)


def test_mirrors_all_hold_everything() -> None:
    kind = kind_of("stack-view")
    face, one = make(kind, [4, 4, 4])
    assert face.mirrored
    fill_rollout(TWINS["rollout"], (face, one), steps(kind, 4, ROWS))
    for buffer in face.buffers:
        for array in ARRAYS:
            assert_same(np.asarray(getattr(buffer, array)), getattr(one, array), array)
    for buffer in face.buffers:
        assert_same_draws(buffer, one, minibatches(7))


def images() -> Any:
    return VecFrameStack(DummyVecEnv([Catch] * 4), 4)


def trained(algorithm: Any, keyed: bool, buffers: Any = None) -> Any:
    """Train; `buffers(observation space, action space)` gives what to train with, None SB3's buffer."""
    env = DummyVecEnv([lambda: Catch(keyed=True)] * 4) if keyed else images()
    cnn = {"features_extractor_kwargs": {"cnn_output_dim": 8}} if keyed else {}
    batch = {"batch_size": 32, "n_epochs": 2} if algorithm is PPO else {}
    options = {}
    if buffers is not None:
        options = {"rollout_buffer_class": DummyVecRolloutBuffer, "rollout_buffer_kwargs": buffers}
    seed_all(11)
    return algorithm(
        "MultiInputPolicy" if keyed else "CnnPolicy",
        env,
        n_steps=24,
        seed=3,
        device="cpu",
        policy_kwargs={"net_arch": [8], **cnn},
        **batch,
        **options,
    ).learn(192)


@pytest.mark.parametrize("use_threads", [False, True])
@pytest.mark.parametrize("counts", [[2, 2], [1, 3], [4, 4]], ids=str)
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("algorithm", [PPO, A2C])
def test_training_ends_with_the_weights_of_one_buffer(
    algorithm: Any, keyed: bool, counts: list[int], use_threads: bool
) -> None:
    sb3 = trained(algorithm, keyed)
    cls = CompressedDictRolloutBuffer if keyed else CompressedRolloutBuffer
    given = (24, sb3.observation_space, sb3.action_space, "cpu")
    buffers = [cls(*given, n_envs=n) for n in counts]
    ours = trained(algorithm, keyed, {"buffers": buffers, "use_threads": use_threads})
    assert type(ours.rollout_buffer) is DummyVecRolloutBuffer
    for name, weights in sb3.policy.state_dict().items():
        assert torch.equal(ours.policy.state_dict()[name], weights), name
    explained = [model.logger.name_to_value.get("train/explained_variance") for model in (ours, sb3)]
    assert explained[0] == explained[1] or np.isnan(explained).all()


def test_gamma_is_that_of_the_face() -> None:
    face, _ = make(kind_of("stack-view"), [2, 2])
    assert [(buffer.gamma, buffer.gae_lambda) for buffer in face.buffers] == [(0.9, 0.8)] * 2


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda face: pickle.loads(pickle.dumps(face))])
def test_copies(copied: Any) -> None:
    kind = kind_of("stack-view")
    face, one = make(kind, [2, 2], use_threads=True)
    fill_rollout(TWINS["rollout"], (face, one), steps(kind, 4, ROWS))
    again = copied(face)
    assert_same_draws(again, one, minibatches(7))


def test_memory_usage() -> None:
    kind = kind_of("stack-view")
    given = (ROWS, space_of(kind), spaces.Discrete(4), "cpu")
    buffers = [CompressedRolloutBuffer(*given, n_envs=2) for _ in range(2)]
    face = DummyVecRolloutBuffer(*given, n_envs=4, buffers=buffers)
    fill_rollout(TWINS["rollout"], [face], steps(kind, 4, ROWS))
    usage = face.memory_usage()
    assert usage.raw_bytes == ROWS * 4 * 4 * 18 * 18
    assert usage.stored_bytes == sum(buffer.memory_usage().stored_bytes for buffer in buffers)


@pytest.mark.parametrize("use_threads", [False, True])
def test_a_step_is_added_whole_or_not_at_all(use_threads: bool) -> None:
    """The second buffer refuses NaN for an integer space; SB3's first one would have taken it."""
    kind = kind_of("stack-view")
    given = (ROWS, space_of(kind), spaces.Discrete(4), "cpu")
    buffers = [RolloutBuffer(*given, n_envs=2), CompressedRolloutBuffer(*given, n_envs=2)]
    face = DummyVecRolloutBuffer(*given, n_envs=4, buffers=buffers, use_threads=use_threads)
    one = RolloutBuffer(*given, n_envs=4)
    data = steps(kind, 4, ROWS)
    for step in data[:4]:
        face.add(*step.rollout())
    obs, *rest = data[4].rollout()
    wrong = obs.astype(np.float32)
    wrong[3] = 0.5
    with pytest.raises(ValueError, match="exactly"):
        face.add(wrong, *rest)
    assert face.pos == 4
    assert [buffer.pos for buffer in buffers] == [4, 4]
    for step in data[4:]:
        face.add(*step.rollout())
    for step in data:
        one.add(*step.rollout())
    assert_same(face.observations, one.observations)


def test_bad_steps() -> None:
    kind = kind_of("stack-view")
    face, _ = make(kind, [2, 2])
    few = steps(kind, 3, 1)[0].rollout()
    good = steps(kind, 4, 1)[0].rollout()
    for i, name in enumerate(("obs", "action", "reward", "episode_start", "value", "log_prob")):
        with pytest.raises(ValueError, match=r"\(4,1\)" if name == "action" else name):
            face.add(*(few[j] if i == j else part for j, part in enumerate(good)))
    assert face.size() == 0
    with pytest.raises(ValueError, match="0 of its 9 steps"):
        next(face.get())


@pytest.mark.parametrize(
    ("make_buffers", "error", "problem"),
    [
        (lambda *given: [], ValueError, "none"),
        (lambda *given: [RolloutBuffer(*given, n_envs=3)], ValueError, "3"),
        (lambda *given: [RolloutBuffer(*given, n_envs=n) for n in (2, 1)], ValueError, "2, 1"),
        (lambda *given: [RolloutBuffer(*given, n_envs=n) for n in (4, 2)], ValueError, "4, 2"),
        (lambda *given: [RolloutBuffer(*given, n_envs=2)] * 2, ValueError, "twice"),
        (lambda size, *given: [RolloutBuffer(size + 1, *given, n_envs=4)], ValueError, "buffer_size=10"),
        (
            lambda size, obs, actions, device: [RolloutBuffer(size, KINDS["image"].space, actions, device, n_envs=4)],
            ValueError,
            "other spaces",
        ),
        (
            lambda size, obs, actions, device: [RolloutBuffer(size, obs, spaces.Discrete(5), device, n_envs=4)],
            ValueError,
            "other spaces",
        ),
        (lambda *given: [ReplayBuffer(*given, n_envs=4)], TypeError, "ReplayBuffer"),
        (lambda *given: [3], TypeError, "int"),
        (
            lambda size, obs, act, dev: [RecurrentRolloutBuffer(size, obs, act, (size, 1, 4, 6), dev, n_envs=4)],
            TypeError,
            "sequences",
        ),
    ],
)
def test_buffers_that_do_not_fit(make_buffers: Any, error: type[Exception], problem: str) -> None:
    given = (ROWS, kind_of("stack-view").space, spaces.Discrete(4), "cpu")
    with pytest.raises(error, match=problem):
        DummyVecRolloutBuffer(*given, n_envs=4, buffers=make_buffers(*given))


def test_a_face_is_no_buffer_of_another() -> None:
    face, _ = make(kind_of("stack-view"), [2, 2])
    with pytest.raises(TypeError, match="DummyVecRolloutBuffer"):
        DummyVecRolloutBuffer(ROWS, face.observation_space, face.action_space, "cpu", 4, False, [face])
