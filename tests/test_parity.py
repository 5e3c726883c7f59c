"""Every class gives what SB3's gives, bit for bit, whatever the method, the space and the data."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from kinds import (
    DICT_KINDS,
    FLAT_KINDS,
    KINDS,
    Kind,
    Step,
    box,
    cached_steps,
    endless_steps,
    game_frame,
    kind_named,
    noise_frame,
    smooth_floats,
    space_of,
    steps,
)
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize, VecTransposeImage
from twins import (
    METHODS,
    REPLAY,
    ROLLOUT,
    TWINS,
    GoalRewards,
    Twin,
    arrays,
    assert_same,
    assert_same_arrays,
    assert_same_draws,
    can_sample,
    check,
    check_replay,
    check_rollout,
    fill_rollout,
    minibatches,
    random_state,
    sample,
)

from sb3_extra_buffers.codecs import optional
from sb3_extra_buffers.compressed import CompressedDictReplayBuffer, CompressedReplayBuffer

ROWS, N_STEPS = 12, 41  # the ring wraps three times
PLAIN = [twin for twin in TWINS.values() if not twin.keyed]
KEYED = [twin for twin in TWINS.values() if twin.keyed]


@pytest.mark.parametrize("kind", FLAT_KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_replay_with_each_method_and_each_kind(method: str, kind: str) -> None:
    ours, sb3 = TWINS["replay"].make(KINDS[kind], ROWS, 2, compression_method=method)
    check_replay(TWINS["replay"], ours, sb3, cached_steps(kind, 2, N_STEPS))


@pytest.mark.parametrize(
    ("kind", "codec"),
    [
        ("pictures", "{filter}"),
        ("pictures-last", "{filter}"),
        ("picture-stack", "{filter}"),
        ("picture-stack-last", "{filter}"),
        ("stack-view", "{method}"),  # frames turn out to have one channel: a filter has nothing to do
        ("noise-of-4-channels", "{filter}"),
    ],
)
@pytest.mark.parametrize("filter", ["palette", "interleave"])
@pytest.mark.parametrize("method", ["none", "zstd"])
def test_filters_before_it_is_known_how_frames_are_stacked(method: str, filter: str, kind: str, codec: str) -> None:
    options: dict[str, Any] = {"compression_method": method, "compression_kwargs": {"filter": filter}}
    ours, sb3 = TWINS["replay"].make(KINDS[kind], ROWS, 2, **options)
    check_replay(TWINS["replay"], ours, sb3, cached_steps(kind, 2, N_STEPS))
    assert ours.memory_usage().method == codec.format(method=method, filter=filter)
    if kind == "pictures":
        assert ours._stores[None].frames.by_pixel  # they are not put in another order first


@pytest.mark.parametrize("kind", ["few-colours", "views", "pictures-last"])
@pytest.mark.parametrize("method", ["near", "zstd3"])
def test_pictures_when_something_has_been_learned_of_them(method: str, kind: str) -> None:
    options: dict[str, Any] = {"compression_method": method, "compression_kwargs": {"filter": "palette"}}
    ours, sb3 = TWINS["replay"].make(KINDS[kind], 40, 2, frame_stack=1, **options)
    check_replay(TWINS["replay"], ours, sb3, cached_steps(kind, 2, 300))
    if method == "near" and kind == "few-colours" and optional.has_numba():
        assert ours._stores[None].frames.coder.inner.sets


@pytest.mark.parametrize("where", [slice(5, 5), [], np.zeros(ROWS, bool)], ids=["slice", "list", "mask"])
def test_no_pictures_at_all_can_be_assigned(where: Any) -> None:
    options: dict[str, Any] = {"compression_method": "zstd3", "compression_kwargs": {"filter": "palette"}}
    ours, sb3 = TWINS["replay"].make(KINDS["pictures"], ROWS, 2, **options)
    check_replay(TWINS["replay"], ours, sb3, cached_steps("pictures", 2, N_STEPS))
    for buffer in (ours, sb3):
        buffer.observations[where] = 7
    assert_same_arrays(ours, sb3)


def test_a_filter_that_cannot_have_anything_to_do_is_an_error() -> None:
    with pytest.raises(ValueError, match="2 to 4 bytes, not 1"):
        TWINS["replay"].make(
            KINDS["image"], ROWS, 2, compression_method="zstd3", compression_kwargs={"filter": "palette"}
        )


def _thinned(twins: list[Twin], kinds: list[str]) -> list[Any]:
    """Pair methods and kinds so that each class meets each method once, and each kind."""
    chosen = []
    for shift, twin in enumerate(twins):
        turns = max(len(METHODS), len(kinds))
        for i, method in zip(range(turns), itertools.cycle(METHODS), strict=False):
            kind = kinds[(i + 5 * shift) % len(kinds)]
            chosen.append(pytest.param(twin, method, kind, id=f"{twin}-{method}-{kind}"))
    return chosen


@pytest.mark.parametrize(("twin", "method", "kind"), _thinned(PLAIN[1:], FLAT_KINDS))
def test_each_class_with_each_method(twin: Twin, method: str, kind: str) -> None:
    ours, sb3 = twin.make(KINDS[kind], ROWS, 3, compression_method=method)
    check(twin, ours, sb3, cached_steps(kind, 3, N_STEPS))


@pytest.mark.parametrize(("twin", "method", "kind"), _thinned(KEYED, list(DICT_KINDS)))
def test_each_dict_class_with_each_method(twin: Twin, method: str, kind: str) -> None:
    kind = "goal" if twin.name == "her" else kind
    ours, sb3 = twin.make(kind_named(kind), ROWS, 2, compression_method=method)
    check(twin, ours, sb3, cached_steps(kind, 2, N_STEPS))


@pytest.mark.parametrize("n_envs", [1, 2, 5])
@pytest.mark.parametrize("twin", TWINS.values(), ids=str)
def test_numbers_of_envs(twin: Twin, n_envs: int) -> None:
    ours, sb3 = twin.make(twin.default_kind, 9, n_envs)
    check(twin, ours, sb3, steps(twin.default_kind, n_envs, 40, seed=n_envs))


@pytest.mark.parametrize("method", ["auto", "delta", "zstd3"])
@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("twin", [*REPLAY[:3], *ROLLOUT[:2]], ids=str)
def test_tiny_buffers(twin: Twin, rows: int, method: str) -> None:
    ours, sb3 = twin.make(twin.default_kind, rows, 2, compression_method=method)
    check(twin, ours, sb3, steps(twin.default_kind, 2, 25, end=0.3))


@pytest.mark.parametrize("end", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("twin", TWINS.values(), ids=str)
def test_episodes_that_never_end_and_that_end_at_once(twin: Twin, end: float) -> None:
    ours, sb3 = twin.make(twin.default_kind, 10, 2, compression_method="delta")
    check(twin, ours, sb3, steps(twin.default_kind, 2, 35, end=end))


@pytest.mark.parametrize("method", ["auto", "delta", "zstd3", "zstd-3", "rle-jit"])
@pytest.mark.parametrize("kind", ["stack-view", "noise", "rgb-stack-last"])
def test_many_wraps(method: str, kind: str) -> None:
    """Long enough for `delta` to make and drop keys and for zstd to train its dictionary."""
    settings = {"compression_kwargs": {"dictionary_bytes": 512}} if method.startswith("zstd") else {}
    ours, sb3 = TWINS["replay"].make(KINDS[kind], 50, 3, compression_method=method, **settings)
    check_replay(TWINS["replay"], ours, sb3, steps(KINDS[kind], 3, 720, end=0.02), levels=range(60, 720, 94))


@pytest.mark.parametrize("method", ["auto", "none", "rle", "zstd3", "delta"])
@pytest.mark.parametrize("frame_stack", [1, 2, 4, "auto"])
@pytest.mark.parametrize(
    "kind", ["stack", "stack-view", "stack-last", "rgb-stack", "rgb-stack-last", "noise-of-4-channels"]
)
def test_frame_stacks(kind: str, frame_stack: Any, method: str) -> None:
    """What is said, or guessed, about the stacking decides the memory, never the values."""
    ours, sb3 = TWINS["replay"].make(KINDS[kind], 10, 2, compression_method=method, frame_stack=frame_stack)
    check_replay(TWINS["replay"], ours, sb3, cached_steps(kind, 2, 33))


@pytest.mark.parametrize("frame_stack", [1, 4, "auto"])
@pytest.mark.parametrize("twin", [twin for twin in TWINS.values() if twin.name != "replay"], ids=str)
def test_frame_stacks_of_each_class(twin: Twin, frame_stack: Any) -> None:
    ours, sb3 = twin.make(twin.default_kind, 10, 2, frame_stack=frame_stack)
    check(twin, ours, sb3, steps(twin.default_kind, 2, 33))


@pytest.mark.parametrize("method", ["auto", "rle", "delta", "zstd3", "gzip", "lz4-block/0"])
@pytest.mark.parametrize("twin", TWINS.values(), ids=str)
def test_without_numba(twin: Twin, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optional, "has_numba", lambda: False)
    ours, sb3 = twin.make(twin.default_kind, 8, 2, compression_method=method)
    check(twin, ours, sb3, steps(twin.default_kind, 2, 30))


def test_rle_jit_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optional, "has_numba", lambda: False)
    with pytest.warns(UserWarning, match="falls back to rle"):
        ours, sb3 = TWINS["replay"].make(KINDS["stack"], 8, 2, compression_method="rle-jit")
    check_replay(TWINS["replay"], ours, sb3, steps(KINDS["stack"], 2, 30))


@pytest.mark.parametrize("method", ["auto", "delta", "zstd"])
@pytest.mark.parametrize("handle_timeout_termination", [True, False])
@pytest.mark.parametrize("optimize_memory_usage", [True, False])
@pytest.mark.parametrize("twin", REPLAY, ids=str)
def test_optimized_memory_equals_sb3_without_it(
    twin: Twin, optimize_memory_usage: bool, handle_timeout_termination: bool, method: str
) -> None:
    """SB3 refuses the flag with timeouts (its issue 934), for Dict, HER and n-step altogether."""
    timeouts = {"handle_timeout_termination": handle_timeout_termination}
    given = {**twin.arguments(twin.default_kind, ROWS, 2), **timeouts}
    ours = twin.ours(**given, compression_method=method, optimize_memory_usage=optimize_memory_usage)
    check_replay(twin, ours, twin.sb3(**given), steps(twin.default_kind, 2, N_STEPS, end=0.3))


def test_terminal_observations_are_kept_with_optimized_memory() -> None:
    ours = CompressedReplayBuffer(8, box((1, 20, 20), np.uint8), spaces.Discrete(2), "cpu", optimize_memory_usage=True)
    terminal, following = np.full((1, 1, 20, 20), 7, np.uint8), np.full((1, 1, 20, 20), 8, np.uint8)
    infos = [{"TimeLimit.truncated": True}]
    ours.add(np.zeros_like(terminal), terminal, np.zeros(1), np.zeros(1), np.ones(1), infos)
    ours.add(following, following, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
    assert ours.next_observations[0].tolist() == terminal.tolist()
    assert ours.observations[1].tolist() == following.tolist()
    assert not ours.sample(50).dones.any()  # a timeout is no end of the task


@pytest.mark.parametrize(
    "action_space",
    [
        spaces.Box(-1, 1, (0,), np.float32),
        spaces.Box(-1, 1, (3,), np.float32),
        spaces.Box(-1, 1, (2,), np.float64),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(4),
    ],
    ids=str,
)
@pytest.mark.parametrize("twin", [TWINS["replay"], TWINS["dict-replay"], TWINS["rollout"]], ids=str)
def test_action_spaces(twin: Twin, action_space: Any) -> None:
    ours, sb3 = twin.make(twin.default_kind, 9, 2, sb3={"action_space": action_space})
    check(twin, ours, sb3, steps(twin.default_kind, 2, 20, action_space=action_space))


@pytest.mark.parametrize("n_steps", [1, 3, 20])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_n_step_returns(n_steps: int, n_envs: int) -> None:
    settings = {"n_steps": n_steps, "gamma": 0.9}
    ours, sb3 = TWINS["nstep"].make(KINDS["stack-view"], ROWS, n_envs, sb3=settings)
    assert (ours.n_steps, ours.gamma) == (n_steps, 0.9)
    check_replay(TWINS["nstep"], ours, sb3, cached_steps("stack-view", n_envs, N_STEPS))


@pytest.mark.parametrize("goal_selection_strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("copy_info_dict", [True, False])
def test_hindsight(goal_selection_strategy: str, copy_info_dict: bool) -> None:
    settings = {
        "goal_selection_strategy": goal_selection_strategy,
        "copy_info_dict": copy_info_dict,
        "n_sampled_goal": 2,
    }
    twin = TWINS["her"]
    ours, sb3 = twin.make(twin.default_kind, ROWS, 2, sb3=settings)
    check_replay(twin, ours, sb3, steps(twin.default_kind, 2, N_STEPS, end=0.3))
    for buffer in (ours, sb3):
        with pytest.warns(UserWarning, match="will be truncated"):
            buffer.truncate_last_trajectory()
    assert_same_arrays(ours, sb3)
    assert_same_draws(ours, sb3, sample(40))


@pytest.mark.parametrize("twin", TWINS.values(), ids=str)
def test_reset_and_fill_again(twin: Twin) -> None:
    ours, sb3 = twin.make(twin.default_kind, 8, 2)
    for seed in range(3):
        data = steps(twin.default_kind, 2, 17, seed=seed, end=0.3)
        ours.reset()
        sb3.reset()
        if twin.rollout:
            check_rollout(twin, ours, sb3, data)
        else:
            check_replay(twin, ours, sb3, data)


@pytest.mark.parametrize("twin", ROLLOUT, ids=str)
def test_rollout_that_is_not_full_yet(twin: Twin) -> None:
    ours, sb3 = twin.make(twin.default_kind, 8, 2)
    for step in steps(twin.default_kind, 2, 5):
        twin.add(ours, step)
        twin.add(sb3, step)
        assert_same_arrays(ours, sb3)


@pytest.mark.parametrize("twin", REPLAY, ids=str)
def test_add_by_keyword_and_extend(twin: Twin) -> None:
    ours, sb3 = twin.make(twin.default_kind, 8, 2)
    names = ("obs", "next_obs", "action", "reward", "done", "infos")
    data = steps(twin.default_kind, 2, 20)
    for step in data[:10]:
        ours.add(**dict(zip(names, step.replay(), strict=True)))
        sb3.add(**dict(zip(names, step.replay(), strict=True)))
    for buffer in (ours, sb3):
        buffer.extend(*zip(*(step.replay() for step in data[10:]), strict=True))
    assert_same_arrays(ours, sb3)
    assert_same_draws(ours, sb3, sample(20))


@pytest.mark.parametrize("method", ["auto", "delta", "zstd3", "gzip1"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("twin", REPLAY, ids=str)
def test_any_order_of_calls(twin: Twin, seed: int, method: str) -> None:
    """Adds, samples, resets, refused adds, saving and loading, writes to rows, in random order."""
    rng = np.random.default_rng(seed)
    rows, n_envs = int(rng.integers(1, 30)), int(rng.integers(1, 4))
    ours, sb3 = twin.make(twin.default_kind, rows, n_envs, compression_method=method)
    data = endless_steps(twin.default_kind, n_envs, seed=seed, end=0.3)
    for _ in range(60):
        match rng.choice(["add", "add", "add", "sample", "refuse", "pickle", "copy", "row", "reset"]):
            case "add":
                for step in itertools.islice(data, int(rng.integers(1, 9))):
                    twin.add(ours, step)
                    twin.add(sb3, step)
            case "sample" if can_sample(sb3):
                assert_same_draws(ours, sb3, sample(int(rng.integers(1, 70))), [int(rng.integers(99))])
            case "refuse":
                bad = next(data)
                with pytest.raises((ValueError, TypeError)):
                    twin.add(ours, Step(**{**vars(bad), "reward": np.zeros(n_envs + 1)}))
            case "pickle" | "copy" as way:
                ours = pickle.loads(pickle.dumps(ours)) if way == "pickle" else copy.deepcopy(ours)
                if twin.name == "her":
                    ours.set_env(GoalRewards())
            case "row":
                step = next(data)
                row = int(rng.integers(rows))
                for buffer in (ours, sb3):
                    for key in buffer.observations if twin.keyed else [None]:
                        array, obs = (
                            (buffer.observations, step.obs)
                            if key is None
                            else (buffer.observations[key], step.obs[key])
                        )
                        array[row] = obs
                        array[row, n_envs - 1] = array[rows - 1, 0]
            case "reset" if twin.name != "her" and rng.random() < 0.3:
                ours.reset()
                sb3.reset()
        assert_same_arrays(ours, sb3)


@pytest.mark.parametrize("twin", [TWINS["rollout"], TWINS["dict-rollout"]], ids=str)
def test_sampling_a_rollout(twin: Twin) -> None:
    """Rare, but SB3's base class has it."""
    ours, sb3 = twin.make(twin.default_kind, 8, 2)
    fill_rollout(twin, (ours, sb3), steps(twin.default_kind, 2, 8))
    assert_same_draws(ours, sb3, sample_rows)


def sample_rows(buffer: Any) -> Any:
    return buffer.sample(5)


def test_fewer_transitions_than_envs() -> None:
    """SB3 keeps at least one row."""
    for buffer_size in (1, 2, 4, 7):
        given = (buffer_size, KINDS["stack"].space, spaces.Discrete(4), "cpu", 3)
        ours, sb3 = CompressedReplayBuffer(*given), ReplayBuffer(*given)
        check_replay(TWINS["replay"], ours, sb3, cached_steps("stack", 3, 20))


def test_arguments_by_position() -> None:
    given = (24, box((4, 18, 18), np.uint8), spaces.Discrete(4), "cpu", 2, False, False)
    ours, sb3 = CompressedReplayBuffer(*given), ReplayBuffer(*given)
    assert not ours.handle_timeout_termination
    check_replay(TWINS["replay"], ours, sb3, cached_steps("stack", 2, N_STEPS))


@pytest.mark.parametrize("twin", TWINS.values(), ids=str)
def test_samples_are_the_callers(twin: Twin) -> None:
    """A sample may be changed in place without changing the buffer, or another sample."""
    ours, sb3 = twin.make(twin.default_kind, 8, 2)
    data = steps(twin.default_kind, 2, 8, end=0.4)
    take = minibatches(5) if twin.rollout else sample(16)
    if twin.rollout:
        fill_rollout(twin, (ours, sb3), data)
    else:
        for step in data:
            twin.add(ours, step)
            twin.add(sb3, step)
    for _ in range(3):
        _overwrite(take(ours))
    if not twin.rollout:
        assert_same_arrays(ours, sb3)
    assert_same_draws(ours, sb3, take)


def _overwrite(sampled: Any) -> None:
    if isinstance(sampled, torch.Tensor):
        sampled.fill_(1)
    elif sampled is not None:
        for part in sampled.values() if isinstance(sampled, dict) else sampled:
            _overwrite(part)


@pytest.mark.parametrize("twin", TWINS.values(), ids=str)
def test_to_torch_copies_what_others_may_hold(twin: Twin) -> None:
    """As SB3's does; only a batch that was decompressed for this very tensor is not copied again."""
    ours, _ = twin.make(twin.default_kind, 8, 2)
    for step in steps(twin.default_kind, 2, 8):
        twin.add(ours, step)
    observations = next(iter(ours.observations.values())) if twin.keyed else ours.observations
    batch = observations[np.array([0, 3, 3])]
    for array in (ours.rewards, np.arange(5.0), np.asarray(ours.actions)):
        before = array.copy()
        ours.to_torch(array).fill_(77)
        assert_same(array, before)
    first, second = ours.to_torch(batch), ours.to_torch(batch)
    first.fill_(1)
    assert_same(second, torch.tensor(observations[np.array([0, 3, 3])]))


@pytest.mark.parametrize("twin", TWINS.values(), ids=str)
def test_inputs_may_be_reused(twin: Twin) -> None:
    """Envs that write each observation into the same array: the buffer must have copied the last one."""
    ours, sb3 = twin.make(twin.default_kind, 8, 2)
    scratch: dict[Any, Any] = {}

    def same_memory(name: str, obs: Any) -> Any:
        if isinstance(obs, dict):
            return {key: same_memory(f"{name}/{key}", part) for key, part in obs.items()}
        array = scratch.setdefault(name, np.empty_like(obs))
        array[...] = obs
        return array

    for step in steps(twin.default_kind, 2, 8, end=0.4):
        twin.add(sb3, step)
        given = {**vars(step), "obs": same_memory("obs", step.obs), "next_obs": same_memory("next", step.next_obs)}
        twin.add(ours, Step(**given))
    assert_same_arrays(ours, sb3)


class _Walk(gym.Env[Any, Any]):
    """A block that walks over an image; episodes end by themselves or are cut off."""

    def __init__(self, space: spaces.Space[Any], number: int) -> None:
        self.observation_space, self.action_space = space, spaces.Discrete(3)
        self.number, self.t = number, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        number = self.t + self.number
        return self._observe(), float(action), number % 11 == 0, number % 17 == 0, {}

    def _observe(self) -> Any:
        shape = self.observation_space.shape
        assert shape is not None
        if self.observation_space.dtype == np.uint8:
            image = np.full(shape, 20 + self.number, np.uint8)
            image[self.t % shape[0], :, :] = self.t % 200
            return image
        return (np.sin(np.arange(shape[0])) * self.t).astype(self.observation_space.dtype)


def _vec_env(space: spaces.Space[Any], n_envs: int) -> DummyVecEnv:
    return DummyVecEnv([lambda number=number: _Walk(space, number) for number in range(n_envs)])


def _as_off_policy(env: Any, n: int) -> list[Step]:
    """Step through a VecEnv as SB3's off-policy algorithms do, terminal observations included."""
    rng = np.random.default_rng(0)
    obs, made = env.reset(), []
    for _ in range(n):
        action = rng.integers(0, 3, env.num_envs)
        new_obs, reward, done, infos = env.step(action)
        next_obs = new_obs.copy()  # keeps the memory order, as SB3's deepcopy does
        for i in np.flatnonzero(done):
            next_obs[i] = infos[i]["terminal_observation"]
        nothing = torch.zeros(env.num_envs)
        made.append(Step(obs, next_obs, action, reward, done, infos, done, nothing, nothing))
        obs = new_obs
    return made


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("channels", [1, 3])
def test_stacks_of_sb3s_own_wrappers(channels: int, method: str) -> None:
    env = VecTransposeImage(VecFrameStack(_vec_env(box((18, 16, channels), np.uint8), 3), 4))
    data = _as_off_policy(env, 60)
    assert not data[0].obs.flags.c_contiguous
    given = (25 * 3, env.observation_space, env.action_space, "cpu", 3)
    check_replay(TWINS["replay"], CompressedReplayBuffer(*given, compression_method=method), ReplayBuffer(*given), data)


def _normalized(space: spaces.Space[Any], n_envs: int, **settings: Any) -> VecNormalize:
    env = VecNormalize(_vec_env(space, n_envs), **settings)
    env.reset()
    for _ in range(20):
        env.step(np.ones(n_envs, np.int64))
    env.training = False
    return env


@pytest.mark.parametrize("kind", ["smooth", "image", "stack"])
@pytest.mark.parametrize("twin", [TWINS["replay"], TWINS["nstep"]], ids=str)
def test_vec_normalize(twin: Twin, kind: str) -> None:
    chosen = Kind("smooth", box((90,), np.float32), smooth_floats(90)) if kind == "smooth" else KINDS[kind]
    env = _normalized(chosen.space, 2)
    ours, sb3 = twin.make(chosen, ROWS, 2, compression_method="delta")
    check_replay(twin, ours, sb3, steps(chosen, 2, N_STEPS), env=env)


@pytest.mark.parametrize("settings", [{"norm_obs": False}, {"norm_reward": False}], ids=str)
def test_vec_normalize_of_one_of_two(settings: dict[str, Any]) -> None:
    ours, sb3 = TWINS["replay"].make(KINDS["image"], ROWS, 2)
    env = _normalized(KINDS["image"].space, 2, **settings)
    check_replay(TWINS["replay"], ours, sb3, cached_steps("image", 2, N_STEPS), env=env)


class _WalkDict(gym.Env[Any, Any]):
    """Random observations of a Dict space."""

    def __init__(self, space: spaces.Dict) -> None:
        self.observation_space, self.action_space = space, spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(3)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), float(action), False, False, {}


@pytest.mark.parametrize("twin", [TWINS["dict-replay"], TWINS["her"]], ids=str)
def test_vec_normalize_of_dicts(twin: Twin) -> None:
    vector = Kind("vector", box((80,), np.float32), smooth_floats(80))
    kind = {"image": KINDS["image"], "achieved_goal": vector, "desired_goal": vector}
    space = space_of(kind)
    env = VecNormalize(DummyVecEnv([lambda: _WalkDict(space)] * 2), norm_obs_keys=["achieved_goal", "desired_goal"])
    env.reset()
    for _ in range(10):
        env.step(np.ones(2, np.int64))
    env.training = False
    ours, sb3 = twin.make(kind, ROWS, 2)
    check_replay(twin, ours, sb3, steps(kind, 2, N_STEPS, end=0.3), env=env)


@pytest.mark.parametrize("method", ["auto", "none", "rle", "delta", "zstd3"])
@pytest.mark.parametrize(
    "kind", ["image", "stack-view", "int16", "float64", "float16", "bool", "small-uint8", "discrete"]
)
def test_float_output(kind: str, method: str) -> None:
    """`output_dtype="float"`: SB3's samples as float32, everything else unchanged."""
    ours, sb3 = TWINS["replay"].make(KINDS[kind], ROWS, 2, compression_method=method, output_dtype="float")
    for step in cached_steps(kind, 2, N_STEPS):
        TWINS["replay"].add(ours, step)
        TWINS["replay"].add(sb3, step)

    def as_float(sampled: Any) -> Any:
        cast = {name: getattr(sampled, name).float() for name in ("observations", "next_observations")}
        return sampled._replace(**cast)

    for seed in range(4):
        np.random.seed(seed)
        got, state = ours.sample(40), random_state()
        np.random.seed(seed)
        with np.errstate(over="ignore", invalid="ignore"):
            assert_same(got, as_float(sb3.sample(40)))
        assert state == random_state()


@pytest.mark.parametrize("output_dtype", ["raw", "float"])
@pytest.mark.parametrize("kind", ["image", "stack-view", "rgb-stack-last", "noise", "small-uint8"])
def test_normalized_images(kind: str, output_dtype: str) -> None:
    """Division by 255 in float32: what SB3's `preprocess_obs` does, exactly."""
    ours, sb3 = TWINS["replay"].make(KINDS[kind], ROWS, 2, normalize_images=True, output_dtype=output_dtype)
    for step in cached_steps(kind, 2, N_STEPS):
        TWINS["replay"].add(ours, step)
        TWINS["replay"].add(sb3, step)
    for seed in range(4):
        np.random.seed(seed)
        got = ours.sample(40)
        np.random.seed(seed)
        wanted = sb3.sample(40)
        assert_same(got.observations, wanted.observations.float() / 255.0)
        assert_same(got.next_observations, wanted.next_observations.float() / 255.0)
        assert_same(got.actions, wanted.actions)
        assert_same(got.rewards, wanted.rewards)


def test_all_bytes_normalize_exactly() -> None:
    image = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    ours = CompressedReplayBuffer(2, box((1, 16, 16), np.uint8), spaces.Discrete(2), "cpu", normalize_images=True)
    ours.add(image[None], image[None], np.zeros(1), np.zeros(1), np.zeros(1), [{}])
    assert_same(ours.sample(1).observations[0], torch.from_numpy(image).float() / 255.0)


def test_only_images_are_normalized() -> None:
    kind = DICT_KINDS["image+vector"]
    twin = TWINS["dict-replay"]
    ours, sb3 = twin.make(kind, ROWS, 2, normalize_images=True)
    for step in cached_steps("image+vector", 2, 20):
        twin.add(ours, step)
        twin.add(sb3, step)
    np.random.seed(0)
    got = ours.sample(30)
    np.random.seed(0)
    wanted = sb3.sample(30)
    assert_same(got.observations["image"], wanted.observations["image"].float() / 255.0)
    assert_same(got.observations["vector"], wanted.observations["vector"])


@pytest.mark.parametrize("twin", [TWINS["rollout"], TWINS["dict-rollout"]], ids=str)
def test_normalized_images_of_rollouts(twin: Twin) -> None:
    kind = DICT_KINDS["image+vector"] if twin.keyed else KINDS["stack-view"]
    ours, sb3 = twin.make(kind, 8, 2, normalize_images=True)
    for seed in range(2):
        fill_rollout(twin, (ours, sb3), steps(kind, 2, 8, seed=seed))
        np.random.seed(seed)
        got = list(ours.get(5))
        np.random.seed(seed)
        for one, other in zip(got, sb3.get(5), strict=True):
            wanted = other.observations
            wanted = {**wanted, "image": wanted["image"].float() / 255.0} if twin.keyed else wanted.float() / 255.0
            assert_same(one, other._replace(observations=wanted))


@pytest.mark.parametrize(
    ("space_dtype", "given_dtype"),
    [(np.float32, np.float64), (np.float64, np.float32), (np.int64, np.uint8), (np.uint8, np.int64), (np.int16, bool)],
)
def test_observations_of_another_dtype_are_cast_as_sb3_casts_them(space_dtype: Any, given_dtype: Any) -> None:
    space = box((300,), space_dtype)
    kind = Kind("cast", space, game_frame((300,), given_dtype))
    ours, sb3 = TWINS["replay"].make(kind, ROWS, 2)
    check_replay(TWINS["replay"], ours, sb3, steps(kind, 2, N_STEPS))


def test_lists_of_observations() -> None:
    """A list of frames, one per env, as `_last_obs` of some VecEnvs; SB3 takes whatever `np.array` takes."""
    ours, sb3 = TWINS["replay"].make(KINDS["image"], ROWS, 2)
    for step in cached_steps("image", 2, N_STEPS):
        rest = (step.action, step.reward, step.done, step.infos)
        for buffer in (ours, sb3):
            buffer.add(list(step.obs), list(step.next_obs), *rest)
    assert_same_arrays(ours, sb3)


def test_one_observation_for_all_envs() -> None:
    """NumPy broadcasts it, so does SB3."""
    ours, sb3 = TWINS["replay"].make(KINDS["image"], ROWS, 3)
    for step in cached_steps("image", 1, N_STEPS):
        rest = (np.zeros(3), np.zeros(3), np.zeros(3), [{}] * 3)
        for buffer in (ours, sb3):
            buffer.add(step.obs, step.next_obs, *rest)
    assert_same_arrays(ours, sb3)


def test_dict_keys_that_the_space_does_not_have_are_ignored() -> None:
    twin = TWINS["dict-replay"]
    ours, sb3 = twin.make(DICT_KINDS["image+vector"], ROWS, 2)
    for step in cached_steps("image+vector", 2, N_STEPS):
        obs, next_obs, *rest = step.replay()
        more = {"more": np.zeros((2, 3))}
        ours.add({**obs, **more}, {**next_obs, **more}, *rest)
        sb3.add({**obs, **more}, {**next_obs, **more}, *rest)
    assert_same_arrays(ours, sb3)
    assert_same_draws(ours, sb3, sample(30))


def test_more_envs_write_through_one_row_than_frames_are_remembered() -> None:
    """Streams that interleave in one env, as a warm-up with other envs makes them."""
    ours, sb3 = TWINS["replay"].make(KINDS["stack"], 200, 1)
    several = steps(KINDS["stack"], 6, 60)
    for step in several:
        for env in range(6):
            part = (step.action[env : env + 1], step.reward[env : env + 1], step.done[env : env + 1], [step.infos[env]])
            for buffer in (ours, sb3):
                buffer.add(step.obs[env : env + 1], step.next_obs[env : env + 1], *part)
    assert_same_arrays(ours, sb3)
    assert_same_draws(ours, sb3, sample(64))


@pytest.mark.parametrize("method", METHODS)
def test_frames_of_zeros_and_of_ones(method: str) -> None:
    space = box((4, 16, 16), np.uint8)
    ours = CompressedReplayBuffer(6, space, spaces.Discrete(2), "cpu", compression_method=method)
    sb3 = ReplayBuffer(6, space, spaces.Discrete(2), "cpu")
    zeros, full = np.zeros((1, 4, 16, 16), np.uint8), np.full((1, 4, 16, 16), 255, np.uint8)
    for i in range(20):
        obs, next_obs = (zeros, full) if i % 3 == 0 else (full, zeros) if i % 3 == 1 else (zeros, zeros)
        for buffer in (ours, sb3):
            buffer.add(obs, next_obs, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
        assert_same_arrays(ours, sb3)
        assert_same_draws(ours, sb3, sample(9), [i])


@pytest.mark.parametrize("method", ["auto", "delta", "zstd3", "rle-jit", "lz4-block"])
def test_large_frames(method: str) -> None:
    """Above 65,536 words a `delta` position needs four bytes."""
    shape = (1, 520, 520)
    space, rng = box(shape, np.uint8), np.random.default_rng(0)
    ours = CompressedReplayBuffer(4, space, spaces.Discrete(2), "cpu", compression_method=method)
    sb3 = ReplayBuffer(4, space, spaces.Discrete(2), "cpu")
    frame = rng.integers(0, 4, (1, *shape)).astype(np.uint8)
    for _ in range(7):
        before, frame = frame, frame.copy()
        frame.reshape(-1)[rng.integers(0, frame.size, 100)] = 200
        frame.reshape(-1)[-1] += 1
        for buffer in (ours, sb3):
            buffer.add(before, frame, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
    assert_same_arrays(ours, sb3)
    assert_same_draws(ours, sb3, sample(5))


@pytest.mark.parametrize("method", ["auto", "none", "rle", "delta", "zstd3"])
def test_noise_in_a_dict(method: str) -> None:
    kind = {
        "noise": Kind("noise", box((3, 12, 12), np.uint8), noise_frame((3, 12, 12))),
        "numbers": KINDS["int64"],
    }
    ours, sb3 = TWINS["dict-replay"].make(kind, ROWS, 2, compression_method=method)
    check_replay(TWINS["dict-replay"], ours, sb3, steps(kind, 2, N_STEPS))


@pytest.mark.parametrize("twin", TWINS.values(), ids=str)
def test_same_attributes_as_sb3(twin: Twin) -> None:
    ours, sb3 = twin.make(twin.default_kind, 8, 2)
    assert isinstance(ours, twin.sb3)
    assert isinstance(ours, twin.ours)
    assert vars(sb3).keys() <= vars(ours).keys()
    assert ours.obs_shape == sb3.obs_shape
    assert ours.observation_space == sb3.observation_space
    for name, wanted in arrays(sb3).items():
        got = getattr(ours, name)
        parts = [(got[key], wanted[key]) for key in wanted] if isinstance(wanted, dict) else [(got, wanted)]
        for one, other in parts:
            assert (one.shape, one.dtype, one.ndim, len(one), one.nbytes) == (
                other.shape,
                other.dtype,
                other.ndim,
                len(other),
                other.nbytes,
            )


def test_dict_replay_is_what_sb3_makes_for_dict_spaces() -> None:
    assert issubclass(CompressedDictReplayBuffer, DictReplayBuffer)
