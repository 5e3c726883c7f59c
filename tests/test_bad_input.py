"""Bad input gets an error that helps, and leaves the buffer as it was."""

from __future__ import annotations

import copy
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from kinds import DICT_KINDS, KINDS, Kind, Step, box, smooth_floats, steps
from twins import (
    METHODS,
    REPLAY,
    ROLLOUT,
    TWINS,
    Twin,
    arrays,
    assert_same,
    can_sample,
    draw,
    fill_rollout,
    minibatches,
    sample,
)

from sb3_extra_buffers.codecs import optional
from sb3_extra_buffers.compressed import (
    CompressedDictReplayBuffer,
    CompressedReplayBuffer,
    CompressedRolloutBuffer,
    StoreFullError,
    compressed_class,
    find_buffer_dtypes,
    init_jit,
)

IMAGE = box((1, 20, 20), np.uint8)
ACTIONS = spaces.Discrete(4)


def make(space: Any = IMAGE, rows: int = 6, **settings: Any) -> CompressedReplayBuffer:
    return CompressedReplayBuffer(rows, space, ACTIONS, "cpu", **settings)


def state(buffer: Any) -> dict[str, Any]:
    """Return everything that can be seen of a buffer, copied."""
    seen = {name: _plain(value) for name, value in arrays(buffer).items()}
    seen["place"] = (buffer.pos, buffer.full, buffer.size())
    if hasattr(buffer, "next_observations") and can_sample(buffer):
        seen["samples"] = tuple(draw(buffer, seed, sample(25))[0] for seed in range(3))
    usage = buffer.memory_usage()
    seen["usage"] = (usage.raw_bytes, usage.frames)
    return seen


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: np.array(part) for key, part in value.items()}
    return copy.deepcopy(value) if value.dtype == object else np.array(value)


def filled(twin: Twin, n: int, rows: int = 6, **settings: Any) -> tuple[Any, list[Step]]:
    """Return a buffer with `n` steps in it, and more steps."""
    ours, _ = twin.make(twin.default_kind, rows, 2, **settings)
    data = steps(twin.default_kind, 2, n + 5, end=0.5)
    for step in data[:n]:
        twin.add(ours, step)
    return ours, data[n:]


def refused(twin: Twin, buffer: Any, step: Step, *errors: type[Exception], match: str | None = None) -> None:
    """The step is refused with one of these errors, again and again, and nothing is changed by it."""
    before = state(buffer)
    given = copy.deepcopy(vars(step))
    for _ in range(3):
        with pytest.raises(errors or (ValueError, TypeError), match=match):
            twin.add(buffer, step)
        assert_same(state(buffer), before)
    for name in ("obs", "next_obs"):
        assert_same(getattr(step, name), given[name])


def replaced(step: Step, **changes: Any) -> Step:
    return Step(**{**vars(step), **changes})


def changed(obs: Any, change: Any) -> Any:
    """Apply `change` to the observations, or to the largest part of a Dict."""
    if isinstance(obs, dict):
        key = max(obs, key=lambda key: obs[key].nbytes)
        return {**obs, key: change(obs[key])}
    return change(obs)


TWIN = pytest.mark.parametrize("twin", TWINS.values(), ids=str)
REPLAY_TWIN = pytest.mark.parametrize("twin", REPLAY, ids=str)
FILL = pytest.mark.parametrize("n", [0, 3, 5])  # empty, partly filled, the last row next


@FILL
@TWIN
@pytest.mark.parametrize(
    "change",
    [
        lambda obs: obs[:, :, :-1],
        lambda obs: obs[..., None],
        lambda obs: np.zeros((2, 7), obs.dtype),
        lambda obs: np.concatenate([obs, obs]),
        lambda obs: np.zeros((0, *obs.shape[1:]), obs.dtype),
    ],
    ids=["cut", "one-more-axis", "vector", "too-many-envs", "no-env"],
)
def test_observations_of_the_wrong_shape(twin: Twin, n: int, change: Any) -> None:
    buffer, (step, *_) = filled(twin, n)
    if n == 0 and not twin.rollout:
        twin.add(buffer, step)
    refused(twin, buffer, replaced(step, obs=changed(step.obs, change)), ValueError, match="shape")


@pytest.mark.parametrize("n", [3, 6, 11])
@REPLAY_TWIN
def test_next_observations_of_the_wrong_shape(twin: Twin, n: int) -> None:
    """The observation itself is right: it must not be written, also not over an old one."""
    buffer, (step, *more) = filled(twin, n)
    wrong = replaced(step, next_obs=changed(step.next_obs, lambda obs: obs[..., :-1]))
    refused(twin, buffer, wrong, ValueError, match="shape")
    sb3 = twin.make(twin.default_kind, 6, 2)[1]
    for step_ in steps(twin.default_kind, 2, n + 5, end=0.5)[:n]:
        twin.add(sb3, step_)
    for good in (step, *more):
        twin.add(buffer, good)
        twin.add(sb3, good)
    assert_same(
        {name: _plain(v) for name, v in arrays(sb3).items()},
        {name: _plain(getattr(buffer, name)) for name in arrays(sb3)},
    )


@pytest.mark.parametrize("n", [3, 6, 11])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("action", np.zeros(5)),
        ("action", np.zeros((2, 2))),
        ("reward", np.zeros(3)),
        ("reward", np.zeros((2, 2))),
        ("done", np.zeros(5)),
        ("infos", [{}, {}, {}]),
        ("infos", []),
    ],
    ids=["action", "action-2d", "reward", "reward-2d", "done", "infos", "no-infos"],
)
@REPLAY_TWIN
def test_other_fields_of_the_wrong_shape(twin: Twin, name: str, value: Any, n: int) -> None:
    """SB3 notices only after it has written the observations."""
    buffer, (step, *_) = filled(twin, n)
    refused(twin, buffer, replaced(step, **{name: value}), ValueError)


@pytest.mark.parametrize("n", [3, 6, 11])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reward", np.array(["a", "b"])),
        ("done", np.array(["a", "b"])),
        ("action", None),
        ("infos", [1, 2]),
        ("infos", None),
    ],
    ids=["reward", "done", "action", "infos", "no-infos"],
)
@REPLAY_TWIN
def test_other_fields_that_are_something_else(twin: Twin, name: str, value: Any, n: int) -> None:
    """Whatever raises, wherever it does, leaves nothing behind."""
    buffer, (step, *_) = filled(twin, n)
    refused(twin, buffer, replaced(step, **{name: value}), ValueError, TypeError, AttributeError)


@pytest.mark.parametrize("name", ["action", "reward", "episode_start"])
@pytest.mark.parametrize("twin", ROLLOUT, ids=str)
def test_other_fields_of_rollouts_of_the_wrong_shape(twin: Twin, name: str) -> None:
    buffer, (step, *_) = filled(twin, 4)
    refused(twin, buffer, replaced(step, **{name: np.zeros(5)}), ValueError)


@pytest.mark.parametrize("name", ["value", "log_prob"])
@pytest.mark.parametrize("twin", ROLLOUT, ids=str)
def test_tensors_of_rollouts_of_the_wrong_shape(twin: Twin, name: str) -> None:
    buffer, (step, *_) = filled(twin, 5)
    refused(twin, buffer, replaced(step, **{name: torch.zeros(5)}), ValueError)


def test_hindsight_with_dones_of_the_wrong_shape() -> None:
    """HER looks at each env's `done` after the transition is written, when the ring may have wrapped."""
    for n in (3, 5, 6, 11):
        buffer, (step, *_) = filled(TWINS["her"], n)
        wrong = replaced(step, done=np.ones(1))
        refused(TWINS["her"], buffer, wrong, ValueError, IndexError)


def test_refused_steps_do_not_leak() -> None:
    """Failed adds, with ever new frames, keep no memory."""
    buffer = make(rows=8, compression_method="none")
    good = np.ones((1, 1, 20, 20), np.uint8)
    for _ in range(10):
        buffer.add(good, good, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
    before = buffer.memory_usage().stored_bytes
    rng = np.random.default_rng(0)
    for _ in range(300):
        noise = rng.integers(0, 256, (2, 1, 1, 20, 20)).astype(np.uint8)
        with pytest.raises(ValueError):  # noqa: PT011 (the message is NumPy's)
            buffer.add(noise[0], noise[1], np.zeros(1), np.zeros(4), np.zeros(1), [{}])
    usage = buffer.memory_usage()
    assert usage.stored_bytes < before + 70_000  # a segment
    assert usage.unique_frames <= 3


@pytest.mark.parametrize("n", [3, 6, 11])
@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (np.uint8, 0.5),
        (np.uint8, 256),
        (np.uint8, -1),
        (np.uint8, 1e300),
        (np.uint8, np.nan),
        (np.uint8, np.inf),
        (np.uint8, -np.inf),
        (np.int16, 40_000),
        (np.int16, -32_769),
        (np.int16, 1.25),
        (np.int64, 2.0**63),
        (np.int64, -(2.0**70)),
        (np.int64, np.uint64(2**64 - 1)),
        (np.uint64, -1),
        (np.uint64, 2.0**64),
        (bool, 2),
        (bool, 0.5),
        (bool, np.nan),
    ],
)
def test_values_that_an_integer_space_cannot_hold(dtype: Any, value: Any, n: int) -> None:
    for shape in ((300,), (3,)):  # compressed, and dense
        buffer = make(box(shape, dtype), compression_method="rle")
        good = np.ones((1, *shape), dtype)
        for _ in range(n):
            buffer.add(good, good, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
        before = state(buffer)
        bad = np.ones((1, *shape), np.asarray(value).dtype)
        bad[0, -1] = value
        for obs, next_obs in ((bad, good), (good, bad), (bad, bad)):
            with pytest.raises(ValueError, match="cannot hold"):
                buffer.add(obs, next_obs, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
            assert_same(state(buffer), before)


@pytest.mark.parametrize("space", [spaces.MultiBinary(300), spaces.MultiDiscrete([5] * 60), spaces.Discrete(4)])
def test_values_that_a_discrete_space_cannot_hold(space: Any) -> None:
    buffer = make(space)
    good = np.asarray(space.sample())[None]
    for bad in (np.full(good.shape, 0.5), np.full(good.shape, np.nan), np.full(good.shape, 1e30)):
        with pytest.raises(ValueError, match="cannot hold"):
            buffer.add(bad, good, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
    assert buffer.size() == 0


@pytest.mark.parametrize("bad", [np.array([["a"] * 300]), np.full((1, 300), None), np.ones((1, 300)) * 1j, "obs", None])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_observations_that_are_no_numbers(bad: Any, dtype: Any) -> None:
    buffer = make(box((300,), dtype))
    good = np.ones((1, 300), dtype)
    buffer.add(good, good, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
    before = state(buffer)
    with pytest.raises((TypeError, ValueError)):
        buffer.add(bad, good, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
    assert_same(state(buffer), before)


@pytest.mark.parametrize("twin", [TWINS["dict-replay"], TWINS["dict-rollout"]], ids=str)
def test_dict_observations_without_a_key(twin: Twin) -> None:
    buffer, (step, *_) = filled(twin, 5)
    without = {key: value for key, value in step.obs.items() if key != "vector"}
    refused(twin, buffer, replaced(step, obs=without), ValueError, match=r"vector.*got stack")
    refused(twin, buffer, replaced(step, obs=step.obs["stack"]), ValueError, match="dicts with the keys")
    if not twin.rollout:
        refused(twin, buffer, replaced(step, next_obs=without), ValueError, match="vector")


def test_missing_arguments_of_add() -> None:
    buffer, (step, *_) = filled(TWINS["replay"], 4)
    before = state(buffer)
    for args in ((), (step.obs,), (step.obs, step.next_obs), step.replay()[:-1], (*step.replay(), 1)):
        with pytest.raises(TypeError):
            buffer.add(*args)
        assert_same(state(buffer), before)
    with pytest.raises(TypeError):
        buffer.add(*step.replay(), unknown=1)
    assert_same(state(buffer), before)


@TWIN
def test_unknown_keyword(twin: Twin) -> None:
    with pytest.raises(TypeError, match=r"unknown.*compresion_method"):
        twin.make(twin.default_kind, 6, 2, compresion_method="rle")


@TWIN
@pytest.mark.parametrize("buffer_size", [0, -1, -5])
def test_buffer_size_below_one(twin: Twin, buffer_size: int) -> None:
    given = {**twin.arguments(twin.default_kind, 6, 2), "buffer_size": buffer_size}
    with pytest.raises(ValueError, match=f"buffer_size.*{buffer_size}"):
        twin.ours(**given)


@pytest.mark.parametrize("buffer_size", [2.5, 3.0, "6", None, True])
@pytest.mark.parametrize("twin", [TWINS["replay"], TWINS["rollout"]], ids=str)
def test_buffer_size_that_is_no_number_of_transitions(twin: Twin, buffer_size: Any) -> None:
    given = {**twin.arguments(twin.default_kind, 6, 2), "buffer_size": buffer_size}
    with pytest.raises(TypeError, match="buffer_size"):
        twin.ours(**given)


@pytest.mark.parametrize("n_envs", [0, -1])
def test_numbers_of_envs_below_one(n_envs: int) -> None:
    with pytest.raises(ValueError, match="n_envs"):
        CompressedReplayBuffer(6, IMAGE, ACTIONS, "cpu", n_envs=n_envs)


def test_missing_and_doubled_arguments() -> None:
    with pytest.raises(TypeError, match="action_space"):
        CompressedReplayBuffer(6, IMAGE)
    with pytest.raises(TypeError, match="buffer_size"):
        CompressedReplayBuffer(6, IMAGE, ACTIONS, buffer_size=6)
    with pytest.raises(TypeError, match="many"):
        CompressedReplayBuffer(*range(20))


@pytest.mark.parametrize("space", [IMAGE, box((3,), np.float32)], ids=["compressed", "dense"])
@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("zst", "zst.*known.*zstd"),
        ("", "known"),
        ("RLE", "RLE"),
        ("rle2", "rle.*no level"),
        ("none/1", "none.*no level"),
        ("delta3", "delta.*no level"),
        ("gzip10", "gzip.*10.*0..9"),
        ("gzip-1", "gzip.*-1.*0..9"),
        ("igzip4", "igzip.*4.*0..3"),
        ("zstd0", "zstd.*0.*-100..-1.*1..22"),
        ("zstd23", "zstd.*23"),
        ("zstd-101", "zstd.*-101"),
        ("lz4-frame/17", "lz4-frame.*17"),
        ("lz4-block/13", "lz4-block.*13"),
        ("lz4-frame5", "lz4-frame5"),
        ("zstd--3", "zstd--3"),
        ("zstd/", "zstd/"),
        ("zstd3.5", "zstd3.5"),
        ("zstd 3", "zstd 3"),
        ("zstd3\n", "zstd3"),
        ("auto3", "auto"),
        ("gzip/٣", "gzip"),
    ],
)
def test_unknown_methods_and_levels(method: str, said: str, space: Any) -> None:
    """Also where observations are so small that no codec is used."""
    with pytest.raises(ValueError, match=said):
        make(space, compression_method=method)
    with pytest.raises(ValueError, match=said):
        CompressedDictReplayBuffer(6, spaces.Dict({"a": space}), ACTIONS, compression_method=method)
    with pytest.raises(ValueError, match=said):
        find_buffer_dtypes((20, 20), compression_method=method)


@pytest.mark.parametrize("method", [None, 3, b"rle", ["rle"]])
def test_methods_that_are_no_strings(method: Any) -> None:
    with pytest.raises(TypeError, match="compression_method"):
        make(compression_method=method)


@pytest.mark.parametrize("space", [IMAGE, box((3,), np.float32)], ids=["compressed", "dense"])
@pytest.mark.parametrize(
    ("method", "settings", "said"),
    [
        ("zstd", {"levl": 3}, "levl"),
        ("zstd", {"compresslevel": 40}, "40"),
        ("gzip", {"dictionary_bytes": 3}, "dictionary_bytes"),
        ("auto", {"keys": 3}, "compression_method"),
        ("delta", {"keys": 0}, "key"),
    ],
)
def test_unknown_settings_of_codecs(method: str, settings: dict[str, Any], said: str, space: Any) -> None:
    with pytest.raises(ValueError, match=said):
        make(space, compression_method=method, compression_kwargs=settings)
    with pytest.raises(ValueError, match="max_length"):
        make(space, compression_method="gzip", decompression_kwargs={"max_length": 3})


@pytest.mark.parametrize("space", [IMAGE, box((3,), np.float32)], ids=["compressed", "dense"])
@pytest.mark.parametrize(
    ("method", "module", "extra"),
    [
        ("zstd", "zstandard", "zstd"),
        ("zstd3", "zstandard", "zstd"),
        ("lz4-frame", "lz4", "lz4"),
        ("lz4-block/1", "lz4", "lz4"),
    ],
)
def test_missing_libraries(method: str, module: str, extra: str, space: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name == module or name.startswith(f"{module}."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf'pip install "sb3-extra-buffers\[{extra}\]"'):
        make(space, compression_method=method)


@pytest.mark.parametrize("module", ["zstandard", "lz4", "isal"])
def test_the_default_needs_no_library(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    buffer, more = filled(TWINS["replay"], 11)
    for step in more:
        buffer.add(*step.replay())
    buffer.sample(5)


def test_fall_backs_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optional, "has_igzip", lambda: False)
    monkeypatch.setattr(optional, "has_numba", lambda: False)
    with pytest.warns(UserWarning, match=r"igzip falls back to gzip.*pip install"):
        make(compression_method="igzip3")
    with pytest.warns(UserWarning, match=r"rle-jit falls back to rle.*pip install"):
        make(compression_method="rle-jit")
    with pytest.warns(UserWarning, match="rle-jit falls back"):
        find_buffer_dtypes((20, 20), compression_method="rle-jit")


def test_init_jit_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(ImportError, match="pip install"):
        init_jit(elem_type=np.uint8, runs_type=np.uint16)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("twin", REPLAY, ids=str)
def test_sampling_an_empty_buffer(twin: Twin, method: str) -> None:
    buffer, _ = twin.make(twin.default_kind, 6, 2, compression_method=method)
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(4)
    assert buffer.size() == 0


def test_sampling_a_dense_buffer_that_is_empty() -> None:
    with pytest.raises(ValueError, match="empty"):
        make(box((3,), np.float32)).sample(4)


@pytest.mark.parametrize("n", [0, 3])
@pytest.mark.parametrize("twin", ROLLOUT, ids=str)
def test_minibatches_of_a_rollout_that_is_not_full(twin: Twin, n: int) -> None:
    buffer, more = filled(twin, n)
    before = state(buffer)
    with pytest.raises(ValueError, match=rf"rollout.*\b{n}\b"):
        list(buffer.get(4))
    assert_same(state(buffer), before)
    fill_rollout(twin, [buffer], [*more, more[0]])
    assert len(minibatches(4)(buffer)) == 3


@pytest.mark.parametrize("twin", ROLLOUT, ids=str)
def test_adding_to_a_full_rollout(twin: Twin) -> None:
    buffer, (step, *_) = filled(twin, 6)
    refused(twin, buffer, step, ValueError, IndexError)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Tuple([IMAGE, IMAGE]),
        spaces.Dict({"a": IMAGE, "b": spaces.Tuple([IMAGE])}),
        spaces.Dict({"a": IMAGE, "b": spaces.Dict({"c": IMAGE})}),
        spaces.Text(4),
        spaces.Sequence(IMAGE),
    ],
    ids=["tuple", "tuple-in-dict", "dict-in-dict", "text", "sequence"],
)
@pytest.mark.parametrize("cls", [CompressedReplayBuffer, CompressedDictReplayBuffer, CompressedRolloutBuffer])
def test_spaces_that_sb3_does_not_store(cls: Any, space: Any) -> None:
    with pytest.raises(TypeError, match=r"not supported|Dict"):
        cls(6, space, ACTIONS, "cpu")


def test_dict_spaces_want_dict_classes() -> None:
    space = spaces.Dict({"a": IMAGE, "b": box((3,), np.float32)})
    for cls in (CompressedReplayBuffer, CompressedRolloutBuffer):
        with pytest.raises((TypeError, ValueError), match="Dict"):
            cls(6, space, ACTIONS, "cpu")
    for cls in (CompressedDictReplayBuffer, TWINS["dict-rollout"].ours):
        with pytest.raises((TypeError, ValueError), match="Dict"):
            cls(6, IMAGE, ACTIONS, "cpu")


@pytest.mark.parametrize("method", ["auto", "none", "delta", "gzip1", "zstd3"])
@pytest.mark.parametrize("twin", REPLAY, ids=str)
def test_max_bytes(twin: Twin, method: str) -> None:
    """Adding what does not fit raises and changes nothing; the limit holds at every step."""
    rng = np.random.default_rng(0)
    limit = 400_000
    ours, _ = twin.make(twin.default_kind, 2_000, 2, compression_method=method, max_bytes=limit)
    step = steps(twin.default_kind, 2, 1, end=1.0)[0]

    def noise(obs: Any) -> Any:
        return changed(obs, lambda part: rng.integers(0, 256, part.shape).astype(part.dtype))

    added = 0
    try:
        while added < 2_000:
            twin.add(ours, replaced(step, obs=noise(step.obs), next_obs=noise(step.next_obs)))
            added += 1
            assert ours.memory_usage().stored_bytes <= limit
    except StoreFullError as error:
        message = str(error)
    assert "max_bytes=400,000" in message
    assert 20 < added < 2_000
    assert ours.size() == added
    before = state(ours)
    for _ in range(3):
        with pytest.raises(StoreFullError):
            twin.add(ours, replaced(step, obs=noise(step.obs), next_obs=noise(step.next_obs)))
        assert_same(state(ours), before)
        assert ours.memory_usage().stored_bytes <= limit


@pytest.mark.parametrize("limit", [3_000, 9_000, 20_000, 30_000, 45_000, 70_000, 120_000])
@pytest.mark.parametrize("method", ["auto", "delta", "zstd3", "rle"])
@pytest.mark.parametrize("kind", ["stack-view", "noise-stack"])
def test_max_bytes_at_any_moment(kind: str, method: str, limit: int) -> None:
    """Wherever the limit is met (planning, key frames, dictionaries, segments), SB3's buffer says what is kept."""
    twin = TWINS["replay"]
    try:
        ours, sb3 = twin.make(KINDS[kind], 30, 2, compression_method=method, max_bytes=limit)
    except StoreFullError:
        return  # the limit is less than an empty buffer takes
    refusals = 0
    for step in steps(KINDS[kind], 2, 70, end=0.05):
        try:
            twin.add(ours, step)
        except StoreFullError:
            refusals += 1
        else:
            twin.add(sb3, step)
        assert_same({name: _plain(getattr(ours, name)) for name in arrays(sb3)}, arrays(sb3))
        assert ours.pos == sb3.pos
        assert ours.memory_usage().stored_bytes <= limit
    assert refusals or limit > 9_000


def test_max_bytes_is_enough_for_a_ring_that_fits() -> None:
    """Old frames make room for new ones."""
    ours = make(rows=20, compression_method="none", max_bytes=200_000)
    rng = np.random.default_rng(0)
    for _ in range(500):
        noise = rng.integers(0, 256, (2, 1, 1, 20, 20)).astype(np.uint8)
        ours.add(noise[0], noise[1], np.zeros(1), np.zeros(1), np.zeros(1), [{}])
    assert ours.memory_usage().stored_bytes <= 200_000


@pytest.mark.parametrize("max_bytes", [0, -1])
def test_max_bytes_below_one(max_bytes: int) -> None:
    with pytest.raises(ValueError, match="max_bytes"):
        make(max_bytes=max_bytes)


def test_max_bytes_too_small_for_anything() -> None:
    good = np.ones((1, 1, 20, 20), np.uint8)
    with pytest.raises(StoreFullError, match="max_bytes"):
        make(max_bytes=100).add(good, good, np.zeros(1), np.zeros(1), np.zeros(1), [{}])


@pytest.mark.parametrize("max_bytes", ["1GB", 1.5, True])
def test_max_bytes_that_is_no_number_of_bytes(max_bytes: Any) -> None:
    with pytest.raises(TypeError, match="max_bytes"):
        make(max_bytes=max_bytes)


@pytest.mark.parametrize("frame_stack", [0, -1, 3, 5, 7])
def test_frame_stacks_that_do_not_divide(frame_stack: int) -> None:
    with pytest.raises(ValueError, match=f"frame_stack.*{frame_stack}"):
        make(box((4, 16, 16), np.uint8), frame_stack=frame_stack)


@pytest.mark.parametrize("frame_stack", ["four", "4", 2.0, True, None, (4,)])
def test_frame_stacks_that_are_no_numbers(frame_stack: Any) -> None:
    with pytest.raises(TypeError, match="frame_stack"):
        make(box((4, 16, 16), np.uint8), frame_stack=frame_stack)


@pytest.mark.parametrize("space", [IMAGE, box((3,), np.float32)], ids=["compressed", "dense"])
@pytest.mark.parametrize("output_dtype", ["half", "float32", "", None, np.float32])
def test_unknown_output_dtype(output_dtype: Any, space: Any) -> None:
    with pytest.raises(ValueError, match=r"output_dtype.*'raw'.*'float'"):
        make(space, output_dtype=output_dtype)


def test_unknown_keys_of_dtypes() -> None:
    with pytest.raises(ValueError, match=r"elem_type and runs_type.*elem_typ"):
        make(dtypes={"elem_typ": np.uint8})


@pytest.mark.parametrize("dtypes", ["nonsense", {"elem_type": "nonsense"}, {"runs_type": "nonsense"}, 3])
def test_dtypes_that_are_none(dtypes: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        make(dtypes=dtypes, compression_method="rle")


@pytest.mark.parametrize("runs_type", [np.float32, np.float64, bool])
@pytest.mark.parametrize("method", ["rle", "rle-jit"])
def test_runs_of_a_type_that_does_not_count(runs_type: Any, method: str) -> None:
    with pytest.raises(ValueError, match="runs_type"):
        make(dtypes={"elem_type": np.uint8, "runs_type": runs_type}, compression_method=method)


@pytest.mark.parametrize("elem_type", [object, np.complex64, "U4", "datetime64[s]"])
def test_storage_dtypes_that_hold_no_observations(elem_type: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"elem_type|dtype"):
        make(dtypes={"elem_type": elem_type})


@pytest.mark.parametrize("what", [int, "ReplayBuffer", None, dict])
def test_compressed_class_of_something_else(what: Any) -> None:
    with pytest.raises(TypeError, match="compressed_class"):
        compressed_class(what)


@TWIN
def test_nothing_that_is_passed_is_changed(twin: Twin) -> None:
    dtypes = {"elem_type": np.float64, "runs_type": np.uint16}
    kwargs: dict[str, Any] = {}
    given = {"dtypes": dtypes, "compression_kwargs": kwargs, "decompression_kwargs": kwargs}
    kind: Any = Kind("vector", box((80,), np.float64), smooth_floats(80, np.float64))
    if twin.keyed:
        goals = {"achieved_goal": kind, "desired_goal": kind} if twin.name == "her" else {}
        kind = {"vector": kind, "discrete": KINDS["discrete"], **goals}
    arguments = twin.arguments(kind, 6, 2)
    before = copy.copy(arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `elem_type` is for floats, `discrete` is not one
        buffer = twin.ours(**arguments, compression_method="rle", **given)
    assert dtypes == {"elem_type": np.float64, "runs_type": np.uint16}
    assert kwargs == {}
    assert arguments == before
    for step in steps(kind, 2, 6):
        kept = copy.deepcopy((step.obs, step.next_obs, step.infos))
        obs, next_obs = copy.copy(step.obs), copy.copy(step.next_obs)
        twin.add(buffer, replaced(step, obs=_Frozen(obs) if twin.keyed else obs, next_obs=next_obs))
        assert_same((obs, next_obs, tuple(step.infos)), (kept[0], kept[1], tuple(kept[2])))


class _Frozen(dict[str, Any]):
    """A dict that cannot be written to, also not in a shallow copy."""

    def __setitem__(self, key: Any, value: Any) -> None:
        raise AssertionError(f"{key} was written")

    def __copy__(self) -> _Frozen:
        return _Frozen(self)


def test_dict_observations_are_not_reshaped_in_place() -> None:
    """SB3's own buffer writes reshaped Discrete observations into the caller's dict."""
    kind = {"discrete": KINDS["discrete"], "image": KINDS["image"]}
    buffer, _ = TWINS["dict-replay"].make(kind, 6, 2)
    step = steps(kind, 2, 1)[0]
    obs, next_obs = dict(step.obs), dict(step.next_obs)
    buffer.add(obs, next_obs, step.action, step.reward, step.done, step.infos)
    assert obs["discrete"] is step.obs["discrete"]
    assert next_obs["discrete"].shape == (2,)


def floats(values: list[float]) -> Any:
    """An observation of 80 floats that begins with these."""
    obs = np.zeros((1, 80), np.float32)
    obs[0, : len(values)] = values
    return obs


@pytest.mark.parametrize("method", ["auto", "none", "rle", "rle-jit", "zstd", "delta"])
@pytest.mark.parametrize("as_dict", [True, False])
def test_lossy_dtypes_warn_once_and_clip(method: str, as_dict: bool) -> None:
    dtypes = {"elem_type": np.uint8} if as_dict else np.uint8
    with pytest.warns(UserWarning, match=r"uint8.*float32.*clip") as caught:
        buffer = make(box((80,), np.float32), dtypes=dtypes, compression_method=method)
    assert len(caught) == 1
    given = [-3.0, -0.5, 0.0, 0.9, 1.0, 254.6, 255.0, 256.0, 1e30, np.inf, -np.inf]
    kept = [0.0, 0.0, 0.0, 0.0, 1.0, 254.0, 255.0, 255.0, 255.0, 255.0, 0.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(20):
            buffer.add(floats(given), floats(given), np.zeros(1), np.zeros(1), np.zeros(1), [{}])
        sampled = buffer.sample(10)
    assert sampled.observations.dtype == torch.float32
    assert_same(sampled.observations, torch.from_numpy(np.repeat(floats(kept), 10, axis=0)))
    assert_same(sampled.next_observations, sampled.observations)


@pytest.mark.parametrize(
    ("source", "target", "given", "kept"),
    [
        (np.int64, np.int8, [-(2**63), -129, -128, 127, 128, 2**63 - 1], [-128, -128, -128, 127, 127, 127]),
        (np.int64, np.uint64, [-1, 0, 2**63 - 1], [0, 0, 2**63 - 1]),
        (np.int16, np.uint8, [-5, 0, 255, 256], [0, 0, 255, 255]),
        (
            np.float64,
            np.float32,
            [1e300, -1e300, np.inf, 0.5],
            [np.finfo(np.float32).max, np.finfo(np.float32).min, np.inf, 0.5],
        ),
        (np.float64, np.int64, [1e300, -1e300, 2.0**62], [2.0**63, -(2.0**63), 2.0**62]),
        (np.uint8, np.int8, [0, 127, 128, 255], [0, 127, 127, 127]),
    ],
)
def test_narrowing_clips_and_never_wraps(source: Any, target: Any, given: list[Any], kept: list[Any]) -> None:
    with pytest.warns(UserWarning, match="clip"):
        buffer = make(box((300,), source), dtypes={"elem_type": target}, compression_method="rle")
    obs = np.zeros((1, 300), source)
    obs[0, : len(given)] = given
    buffer.add(obs, obs, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
    got = buffer.observations[0, 0]
    assert got.dtype == source
    assert got[: len(kept)].tolist() == np.array(kept).astype(source).tolist()


@pytest.mark.parametrize(
    ("space_dtype", "elem_type"),
    [(np.uint8, np.uint8), (np.uint8, np.int16), (np.float32, np.float64), (bool, np.uint8)],
)
def test_dtypes_that_lose_nothing_do_not_warn(space_dtype: Any, elem_type: Any) -> None:
    buffer = make(box((300,), space_dtype), dtypes=elem_type, compression_method="rle")
    obs = np.ones((1, 300), space_dtype)
    buffer.add(obs, obs, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
    assert_same(buffer.observations[0], obs)


def test_lossy_dtypes_of_small_observations() -> None:
    """The CartPole snippet: asked for by name, so also where observations would be kept dense."""
    with pytest.warns(UserWarning, match="clip"):
        buffer = make(box((4,), np.float32), dtypes={"elem_type": np.uint8}, compression_method="rle")
    obs = np.array([[-1.5, 2.7, 300.0, 7.0]], np.float32)
    buffer.add(obs, obs, np.zeros(1), np.zeros(1), np.zeros(1), [{}])
    assert buffer.observations[0].tolist() == [[0.0, 2.0, 255.0, 7.0]]


def test_integer_spaces_stay_exact_with_lossy_dtypes() -> None:
    """`dtypes` narrows what the space holds; what the space cannot hold is still an error."""
    with pytest.warns(UserWarning, match="clip"):
        buffer = make(box((300,), np.int16), dtypes={"elem_type": np.int8}, compression_method="rle")
    with pytest.raises(ValueError, match="cannot hold"):
        buffer.add(np.full((1, 300), 0.5), np.zeros((1, 300)), np.zeros(1), np.zeros(1), np.zeros(1), [{}])


def test_dict_kinds_without_any_large_part_check_too() -> None:
    buffer, _ = TWINS["dict-replay"].make(DICT_KINDS["small"], 6, 2)
    step = steps(DICT_KINDS["small"], 2, 1)[0]
    TWINS["dict-replay"].add(buffer, step)
    wrong = {**step.obs, "flags": np.full((2, 9), 0.5)}
    refused(TWINS["dict-replay"], buffer, replaced(step, obs=wrong), ValueError, match="cannot hold")


def test_other_arrays_of_a_buffer_do_not_matter() -> None:
    kind = KINDS["stack"]
    ours, _ = TWINS["replay"].make(kind, 5, 2)
    ours.statistics = {"mean": np.zeros((3, 4)), "count": np.array(0.0), "names": np.empty(10, object)}
    for step in steps(kind, 2, 7):
        TWINS["replay"].add(ours, step)
    assert ours.full
