"""`DistributedReplayBuffer` on a real local Ray cluster of three nodes."""

from __future__ import annotations

import copy
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fingerprints
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

ray = pytest.importorskip("ray")

from sb3_extra_buffers.compressed import CompressedReplayBuffer, StoreFullError  # noqa: E402
from sb3_extra_buffers.distributed import DistributedReplayBuffer, Shard, wire  # noqa: E402
from sb3_extra_buffers.distributed.shard import ShardSettings  # noqa: E402
from sb3_extra_buffers.distributed.shards import Shards  # noqa: E402
from sb3_extra_buffers.distributed.writer import Writer  # noqa: E402

PLAYERS = np.array([11, 12])


def fill(buffer: Any, steps: int, first: int = 0, players: Any = PLAYERS) -> None:
    random = np.random.default_rng(first)
    for number in range(first, first + steps):
        buffer.add(*fingerprints.step(players, number, random))


def held(buffer: Any) -> set[tuple[int, int]]:
    """Return the player and step of every transition in the shards, each of which must be there once."""
    found = fingerprints.held(buffer.target.shards)
    assert len(found) == len(set(found))
    return set(found)


def kill(handle: Any) -> None:
    """End a shard's process as an operator would: it can do nothing about it."""
    os.kill(ray.get(handle.__ray_call__.remote(lambda shard: os.getpid())), signal.SIGKILL)


def wait_until(condition: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_everything_sampled_was_added(buffer):
    fill(buffer, 200)
    buffer.flush()
    assert buffer.size() == 200
    assert len(held(buffer)) == 400
    seen = np.concatenate([fingerprints.check(buffer.sample(64)) for _ in range(40)])
    assert set(seen[:, 0].tolist()) == set(PLAYERS.tolist())
    assert len(set(map(tuple, seen.tolist()))) > 380  # 2560 draws of 400
    where = [
        handle.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()) for handle in buffer.target.shards
    ]
    places = ray.get(where)
    assert len(set(places)) > 1  # that is what several machines are like


def test_each_transition_has_the_same_chance(buffer):
    """Over shards of different sizes. Chi-square at the level 0.001; the seeds are fixed, so it does not flicker."""
    for i, (handle, chunks) in enumerate(zip(buffer.target.shards, (5, 15, 30), strict=True)):
        writer = Writer(buffer.target.writer, Shards([handle]))
        fill(writer, 4 * chunks, players=PLAYERS + 10 * i)
        writer.flush()
        ray.get(handle.__ray_call__.remote(lambda _, seed=i: np.random.seed(seed)))
    sizes = [status.size for status in buffer.refresh()]
    assert sizes == [40, 120, 240]
    draws = np.concatenate([fingerprints.check(buffer.sample(250)) for _ in range(40)])
    _, counts = np.unique(draws, axis=0, return_counts=True)
    assert len(counts) == 400
    assert chi_square(counts, np.full(400, 1 / 400)) < critical(399)
    by_shard = np.bincount((draws[:, 0] - 11) // 10, minlength=3)
    assert chi_square(by_shard, np.array(sizes) / 400) < critical(2)
    # The test would see shards that are drawn from equally often.
    assert chi_square(by_shard, np.full(3, 1 / 3)) > 100 * critical(2)


def chi_square(counts: Any, expected: Any) -> float:
    expected = expected * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def critical(freedom: int) -> float:
    """Return what chi-square exceeds with a chance of 0.001 (Wilson and Hilferty's approximation)."""
    a = 2 / (9 * freedom)
    return freedom * (1 - a + 3.0902 * np.sqrt(a)) ** 3


def test_a_full_ring_keeps_the_newest(make_buffer):
    buffer = make_buffer(buffer_size=64)
    fill(buffer, 100)
    buffer.flush()
    assert buffer.size() == 32
    last = [fingerprints.step(PLAYERS, n, np.random.default_rng(0))[0] for n in range(68, 100)]
    newest = {(int(player), int(fingerprints.read(obs)[1][0])) for player in PLAYERS for obs in last}
    assert held(buffer) == newest
    assert buffer.lost == 0


def test_samples_are_like_those_of_sb3(buffer):
    """The same dtypes, shapes and device; values are checked by their fingerprints."""
    theirs = ReplayBuffer(10_000, fingerprints.OBSERVATIONS, spaces.Discrete(5), "cpu", 2)
    for one in (buffer, theirs):
        fill(one, 40)
    buffer.flush()
    a, b = buffer.sample(16), theirs.sample(16)
    assert type(a) is type(b)
    for name, value in b._asdict().items():
        mine = getattr(a, name)
        if value is None:
            assert mine is None
        else:
            assert (mine.dtype, mine.shape, mine.device) == (value.dtype, value.shape, value.device), name


def test_dict_observations(make_buffer):
    space = spaces.Dict(
        {"image": fingerprints.OBSERVATIONS, "speed": spaces.Box(-1, 1, (3,)), "gear": spaces.Discrete(9)}
    )
    buffer = make_buffer(space=space)
    random = np.random.default_rng(0)
    added = {}
    for number in range(40):
        obs, next_obs, *rest = fingerprints.step(PLAYERS, number, random)
        speed = random.normal(size=(2, 2, 3)).astype(np.float32)
        gear = random.integers(9, size=(2, 2))
        pair = [{"image": image, "speed": speed[i], "gear": gear[i]} for i, image in enumerate((obs, next_obs))]
        buffer.add(*pair, *rest)
        for env, player in enumerate(PLAYERS):
            added[player, fingerprints.read(obs)[1][env]] = speed[:, env], gear[:, env]
    buffer.flush()
    for _ in range(10):
        batch = buffer.sample(16)
        images = batch._replace(
            observations=batch.observations["image"], next_observations=batch.next_observations["image"]
        )
        for i, (player, step) in enumerate(fingerprints.check(images).tolist()):
            speed, gear = added[player, step]
            for part, want_speed, want_gear in zip(
                (batch.observations, batch.next_observations), speed, gear, strict=True
            ):
                np.testing.assert_array_equal(part["speed"][i].numpy(), want_speed)
                assert int(part["gear"][i]) == want_gear
    with pytest.raises(ValueError, match="no folder for checkpoints"):
        buffer.checkpoint()


def test_dqn_learns_with_it(cluster):
    """SB3's own training loop: two arguments more."""
    env = make_vec_env(fingerprints.FingerprintEnv, 2)
    model = DQN(
        "CnnPolicy",
        env,
        replay_buffer_class=DistributedReplayBuffer,
        replay_buffer_kwargs={"shards": 2, "chunk_steps": 8, "timeout": 120.0},
        buffer_size=1000,
        learning_starts=100,
        batch_size=16,
        train_freq=4,
        policy_kwargs={"normalize_images": True, "features_extractor_kwargs": {"features_dim": 16}},
        device="cpu",
    )
    before = copy.deepcopy(model.q_net.state_dict())
    model.learn(300)
    assert any(not torch.equal(value, before[name]) for name, value in model.q_net.state_dict().items())
    assert isinstance(model.replay_buffer, ReplayBuffer)
    model.replay_buffer.flush()
    assert model.replay_buffer.size() == model.num_timesteps // 2
    fingerprints.check(model.replay_buffer.sample(64))
    assert "DistributedReplayBuffer" in str(model.replay_buffer.memory_usage())
    model.replay_buffer.close()


def test_rewards_are_normalised_as_by_sb3(buffer):
    fill(buffer, 24)
    buffer.flush()
    env = VecNormalize(fingerprints.make_env(0), norm_obs=False, clip_reward=1e9, epsilon=0)
    env.ret_rms.var = np.array(4.0)
    plain = fingerprints.check(buffer.sample(32))
    batch = buffer.sample(32, env)
    np.testing.assert_array_equal(fingerprints.check(batch._replace(rewards=batch.rewards * 2)).shape, plain.shape)


def until(path: Path) -> Callable[[Any], None]:
    """Return what keeps a shard busy until there is such a file."""

    def wait(_: Any) -> None:
        end = time.monotonic() + 300
        while not path.exists() and time.monotonic() < end:
            time.sleep(0.05)

    return wait


def test_calls_in_flight_are_bounded(buffer, tmp_path):
    """While shards are slow, `add` waits instead of piling up chunks."""
    fill(buffer, 12)
    buffer.flush()
    for handle in buffer.target.shards:
        handle.__ray_call__.remote(until(tmp_path / "ready"))
    fill(buffer, 24, first=12)  # two chunks for each
    waits = threading.Thread(target=fill, args=(buffer, 4, 36))
    waits.start()
    waits.join(1)
    assert waits.is_alive()
    (tmp_path / "ready").touch()
    waits.join(300)
    assert not waits.is_alive()
    buffer.flush()
    assert len(held(buffer)) == 80


def test_bytes_on_the_wire(make_buffer):
    """MsPacman, stack 4, 4 envs: at most 1.5 % of what SB3 holds, each way, in what Ray's own serialiser is given."""
    pytest.importorskip("ale_py")
    from sb3_extra_buffers.training_utils.atari import make_env

    env = make_env("MsPacmanNoFrameskip-v4", 4, DummyVecEnv, seed=0)
    buffer = make_buffer(space=env.observation_space, n_envs=4, chunk_steps=64)
    context = ray._private.worker.global_worker.get_serialization_context()
    obs = env.reset()
    for _ in range(256):
        actions = np.array([env.action_space.sample() for _ in range(4)]) % fingerprints.ACTIONS
        new_obs, rewards, dones, infos = env.step(actions)
        buffer.add(obs, new_obs, actions, rewards, dones, infos)
        obs = new_obs
    env.close()
    buffer.flush()
    for _ in range(32):
        buffer.sample(32)
    traffic, raw = buffer.traffic, 2 * 4 * 84 * 84
    sent, received = (traffic[f"{way}_bytes"] / traffic[way] / raw for way in ("sent", "received"))
    assert traffic["sent"] == 1024
    assert sent < 0.015
    assert received < 0.015
    # What is counted is what Ray gets, but for a few hundred bytes a call.
    for n in (16, 64):
        status, parcel = ray.get(buffer.target.shards[0].sample.remote(n))
        serialised = context.serialize((status, parcel)).total_bytes
        assert parcel.nbytes < serialised < parcel.nbytes + 1000
        assert serialised / n / raw < 0.015 + 1000 / n / raw


def test_a_shard_that_dies_is_started_again_and_its_loss_is_known(buffer, caplog):
    fill(buffer, 48)
    buffer.flush()
    before, sizes = held(buffer), [status.size for status in buffer.refresh()]
    assert sizes[0] > 0
    with caplog.at_level(logging.WARNING):
        kill(buffer.target.shards[0])
        for _ in range(20):
            fingerprints.check(buffer.sample(32))  # the learner goes on
        buffer.refresh()
    assert buffer.lost == sizes[0] == len(before) - len(held(buffer))
    assert f"lost: {sizes[0]} transitions (" in caplog.text
    fill(buffer, 48, first=48)  # and so does the writer, to all
    buffer.flush()
    assert sum(status.size for status in buffer.refresh()) == 2 * 96 - sizes[0]
    assert all(status.size > 0 for status in buffer.refresh())
    assert buffer.lost == sizes[0]


def test_what_is_in_a_checkpoint_is_not_lost(buffer):
    fill(buffer, 48)
    buffer.checkpoint()
    saved = buffer.refresh()[1].size
    fill(buffer, 24, first=48)
    buffer.flush()
    before, since = held(buffer), buffer.refresh()[1].size - saved
    assert since > 0
    for times in (1, 2):  # also when it dies again before its next checkpoint
        kill(buffer.target.shards[1])
        buffer.refresh()
        assert buffer.lost == since == len(before) - len(held(buffer)), times
    fill(buffer, 24, first=72)
    buffer.checkpoint()
    kill(buffer.target.shards[1])
    buffer.refresh()
    assert buffer.lost == since
    _, lost = ray.get(buffer.target.shards[1].table.remote())
    assert sum(chunk.transitions for chunk in lost) == since


def test_chunks_under_way_are_sent_again(buffer):
    """A shard that dies before it has answered gets the chunk when it is back: it is not lost."""
    fill(buffer, 12)
    buffer.flush()
    victim = buffer.target.shards[0]
    there = ray.get(victim.status.remote()).size
    pid = ray.get(victim.__ray_call__.remote(lambda _: os.getpid()))
    victim.__ray_call__.remote(lambda _: time.sleep(60))  # so that it cannot answer
    fill(buffer, 24, first=12)
    os.kill(pid, signal.SIGKILL)
    buffer.flush()
    buffer.refresh()
    assert buffer.lost == there
    assert len(held(buffer)) == 2 * 36 - there


def test_a_chunk_is_stored_once(buffer):
    """However often Ray repeats the call."""
    fill(buffer, 4)
    buffer.flush()
    handle = next(handle for handle in buffer.target.shards if ray.get(handle.status.remote()).size)
    fields = {
        "rewards": np.zeros((3, 2), np.float32),
        "dones": np.zeros((3, 2), bool),
        "actions": np.zeros((3, 2), int),
    }
    obs = np.stack([fingerprints.stacks(PLAYERS, np.array([n, n])) for n in range(4)], axis=1)
    obs = np.stack([obs[:, :3], obs[:, 1:]], axis=2)  # [envs, steps, 2, *obs]
    parcel = wire.pack({"observations": obs, **fields, "timeouts": fields["dones"]})
    assert [ray.get(handle.add.remote(5, 0, parcel)).size for _ in range(3)] == [14, 14, 14]


def test_checkpoints_are_written_while_it_is_used(make_buffer, tmp_path):
    buffer = make_buffer(checkpoint_dir=tmp_path, checkpoint_every=0.2)
    fill(buffer, 40)
    buffer.flush()

    def saved() -> bool:
        buffer.sample(8)
        return len(list(tmp_path.glob("shard-*.buffer"))) == 1

    wait_until(saved)
    with pytest.raises(ValueError, match="has checkpoints of another run"):
        make_buffer(checkpoint_dir=tmp_path)
    buffer._every = None  # none comes by itself any more, however slow the machine is
    buffer.checkpoint()
    before = held(buffer)
    fill(buffer, 8, first=40)
    buffer.flush()
    ray.kill(buffer.target.shards[0])  # for good: as if the run had been killed
    resumed = DistributedReplayBuffer.load(tmp_path, device="cpu", checkpoint_dir=tmp_path, timeout=120.0)
    assert held(resumed) == before
    assert resumed.lost == 16
    kill(resumed.target.shards[0])
    resumed.refresh()
    assert held(resumed) == before
    resumed.close()


def test_a_damaged_checkpoint_is_a_known_loss(buffer, folder):
    fill(buffer, 48)
    buffer.checkpoint()
    there = buffer.refresh()[0].size
    path = folder / "shard-0000.buffer"
    path.write_bytes(path.read_bytes()[:3000])
    kill(buffer.target.shards[0])
    buffer.refresh()
    assert buffer.lost == there > 0
    fingerprints.check(buffer.sample(32))


def test_saved_and_loaded(buffer, tmp_path):
    """To a folder; another buffer goes on from there."""
    fill(buffer, 50)
    buffer.save(tmp_path)
    before = held(buffer)
    alone = CompressedReplayBuffer.load(tmp_path / "shard-0000.buffer")
    fingerprints.check(alone.sample(32))
    loaded = DistributedReplayBuffer.load(tmp_path, device="cpu", timeout=120.0)
    assert held(loaded) == before
    assert loaded.size() == 50
    for name in ("n_envs", "observation_space", "action_space", "buffer_size"):
        assert getattr(loaded, name) == getattr(buffer, name)
    fill(loaded, 20, first=50)
    loaded.flush()
    assert len(held(loaded)) == 140
    loaded.close()
    with pytest.raises(ValueError, match="holds no distributed buffer"):
        DistributedReplayBuffer.load(tmp_path / "none")


def test_samples_per_insert_holds_sampling_back(make_buffer):
    buffer = make_buffer(samples_per_insert=2, min_size=64, error_buffer=64)
    fill(buffer, 16)
    buffer.flush()
    usual, buffer._timeout = buffer._timeout, 0.5
    with pytest.raises(TimeoutError, match="samples_per_insert has not allowed"):
        buffer.sample(8)
    buffer._timeout = usual
    fill(buffer, 16, first=16)  # 64 transitions: 64 samples are allowed before more come
    buffer.flush()
    for _ in range(8):
        fingerprints.check(buffer.sample(8))
    buffer._timeout = 0.5
    with pytest.raises(TimeoutError):
        buffer.sample(8)


def test_wrong_use_is_an_error(buffer, make_buffer, tmp_path):
    with pytest.raises(ValueError, match="shards is a number of at least 1, not 0"):
        make_buffer(shards=0)
    with pytest.raises(ValueError, match="unknown"):
        make_buffer(buffer_kwargs={"compression_method": "zst"})
    with pytest.raises(TypeError, match="unknown arguments: compresion_method"):
        make_buffer(buffer_kwargs={"compresion_method": "zstd"})
    with pytest.raises(ValueError, match="checkpoint_every and resume need a checkpoint_dir"):
        make_buffer(checkpoint_every=1)
    with pytest.raises(ValueError, match="checkpoint_dir is an existing folder"):
        make_buffer(checkpoint_dir=tmp_path / "none")
    with pytest.raises(ValueError, match="empty buffer"):
        buffer.sample(1)
    with pytest.raises(ValueError, match="do not fit"):
        buffer.add(
            np.zeros((2, 4, 8, 8), np.uint8), np.zeros((2, 4, 8, 8), np.uint8), [0, 0], [0, 0], [False] * 2, [{}] * 2
        )
    with pytest.raises(ValueError, match="cannot hold"):
        buffer.add(
            np.full((2, 4, 36, 36), 256), np.zeros((2, 4, 36, 36), np.uint8), [0, 0], [0, 0], [False] * 2, [{}] * 2
        )
    with pytest.raises(TypeError, match="cannot be pickled"):
        copy.deepcopy(buffer)


def test_a_shard_that_is_gone_for_good_leaves_its_chunks_to_others(make_buffer):
    buffer = make_buffer(shards=2)
    fill(buffer, 8)
    buffer.flush()
    victim, other = buffer.target.shards
    there = [ray.get(handle.status.remote()).size for handle in (victim, other)]
    victim.__ray_call__.remote(lambda _: time.sleep(60))
    fill(buffer, 16, first=8)  # two chunks for each
    ray.kill(victim)
    buffer.flush()
    fill(buffer, 8, first=24)
    buffer.flush()
    assert ray.get(other.status.remote()).size == 2 * 32 - there[0]
    fingerprints.check(buffer.sample(32))


def test_a_full_shard_is_an_error_and_counts_what_it_has(make_buffer):
    """`max_bytes` of its buffer is reached in the middle of a chunk."""
    buffer = make_buffer(chunk_steps=64, buffer_kwargs={"max_bytes": 700_000, "compression_method": "none"})
    with pytest.raises(StoreFullError, match="max_bytes"):  # noqa: PT012
        fill(buffer, 1000)
        buffer.flush()
    size = buffer.refresh()[0].size
    assert size % 128 > 0
    assert len(held(buffer)) == size


def test_nothing_is_left_behind(cluster):
    """Neither after `close`, nor when a buffer is just forgotten."""
    for close in (True, False):
        buffer = DistributedReplayBuffer(100, fingerprints.OBSERVATIONS, spaces.Discrete(5), "cpu", shards=1)
        journal = ray.get(buffer.target.shards[0].__ray_call__.remote(lambda shard: shard.journal.path))
        assert journal.exists()
        if close:
            buffer.close()
        del buffer
        wait_until(lambda path=journal: not path.exists())


def journals(handle: Any) -> list[Path]:
    """Return the files in which a shard notes what it stores."""
    return ray.get(
        handle.__ray_call__.remote(lambda shard: sorted(shard.journal.path.parent.glob(f"{shard.settings.name}*")))
    )


def write(buffer: Any, handle: Any, steps: int, first: int = 0) -> None:
    """Store steps in one shard, as a collector would: the learner does not hear of it."""
    writer = Writer(buffer.target.writer, Shards([handle], quiet=True))
    fill(writer, steps, first=first)
    writer.flush()


def test_new_chunks_do_not_hide_a_loss(make_buffer):
    """The shard comes back on a node that does not have its journal, and is sent more before the learner hears."""
    buffer = make_buffer()
    fill(buffer, 40)
    buffer.flush()
    handle = buffer.target.shards[0]
    for path in journals(handle):
        path.unlink()
    kill(handle)
    write(buffer, handle, 24, first=40)
    buffer.refresh()
    assert buffer.lost == 80
    assert len(held(buffer)) == 48


def test_a_journal_that_is_found_again_is_not_counted_twice(make_buffer, tmp_path):
    """A shard without `checkpoint_dir` that comes back on another node, and later on the first one again."""
    buffer = make_buffer()
    fill(buffer, 40)
    buffer.flush()
    handle = buffer.target.shards[0]
    first = [(path, path.read_bytes()) for path in journals(handle)]
    for path, _ in first:
        path.unlink()
    kill(handle)
    assert buffer.refresh()[0].lost == 0
    fill(buffer, 8, first=40)
    buffer.flush()
    assert buffer.lost == 80
    for path in journals(handle):
        path.unlink()
    for path, content in first:
        path.write_bytes(content)
    kill(handle)
    assert buffer.refresh()[0].lost == 80
    assert buffer.lost == 96


def test_what_a_shard_takes_with_it_for_good_is_lost(make_buffer):
    """Its chunks under way go to the other, which is busy, so that answers come while one is waited for."""
    buffer = make_buffer(shards=2)
    fill(buffer, 8)
    buffer.flush()
    victim, other = buffer.target.shards
    there = ray.get(victim.status.remote()).size
    assert there > 0
    for handle, seconds in ((victim, 60), (other, 5)):
        handle.__ray_call__.remote(lambda _, seconds=seconds: time.sleep(seconds))
    fill(buffer, 16, first=8)  # two chunks for each
    ray.kill(victim)
    buffer.flush()
    assert buffer.lost == there
    assert ray.get(other.status.remote()).size == 2 * 24 - there


def test_who_gave_up_waiting_may_go_on(make_buffer):
    """After a `TimeoutError` a step was not added, and can be added again."""
    buffer = make_buffer()
    handle = buffer.target.shards[0]
    writer = Writer(replace(buffer.target.writer, timeout=0.5), Shards([handle]))
    handle.__ray_call__.remote(lambda _: time.sleep(4))
    random = np.random.default_rng(0)
    failed = 0
    for number in range(40):
        step = fingerprints.step(PLAYERS, number, random)
        while True:
            try:
                writer.add(*step)
                break
            except TimeoutError:
                failed += 1
    writer.flush(60)
    assert failed > 0
    assert len(held(buffer)) == 80


def test_a_sample_that_failed_leaves_no_short_batch(make_buffer, tmp_path):
    """One shard is gone and the other one too late: what came of a batch before that is no batch."""
    buffer = make_buffer(shards=2)
    fill(buffer, 40)
    buffer.flush()
    assert len(buffer.sample(300).rewards) == 300
    gone, late = buffer.target.shards
    ray.kill(gone)
    late.__ray_call__.remote(until(tmp_path / "ready"))
    usual, buffer._timeout = buffer._timeout, 1.0
    with pytest.raises(TimeoutError):  # noqa: PT012
        while True:
            assert len(buffer.sample(300).rewards) == 300
    (tmp_path / "ready").touch()
    buffer._timeout = usual
    for _ in range(4):
        assert len(fingerprints.check(buffer.sample(300))) == 300


def test_steps_that_are_sent_early_count_as_inserted(make_buffer):
    buffer = make_buffer(samples_per_insert=2, min_size=6, error_buffer=64)
    for number in range(3):
        fill(buffer, 1, first=number)
        buffer.flush()
    assert len(fingerprints.check(buffer.sample(8))) == 8


def test_answers_from_before_a_reset_do_not_count(buffer):
    handle = buffer.target.shards[0]
    write(buffer, handle, 8)
    shards = Shards([handle])
    handle.__ray_call__.remote(lambda _: time.sleep(1))
    shards.refresh()  # asks, and does not wait
    shards.forget()
    shards.all("reset", timeout=60)
    assert shards.sizes.sum() == 0
    shards.refresh()
    assert shards.sizes.sum() == 0


def test_what_was_lost_before_a_checkpoint_is_known_when_that_is_damaged(buffer, folder):
    handle = buffer.target.shards[0]
    write(buffer, handle, 8)
    kill(handle)
    write(buffer, handle, 12, first=8)
    buffer.checkpoint()
    assert buffer.refresh()[0].lost == 16
    path = folder / "shard-0000.buffer"
    path.write_bytes(path.read_bytes()[:3000])
    for _ in range(2):
        kill(handle)
        assert buffer.refresh()[0].lost == 16 + 24
    assert buffer.lost == 40


def test_a_shard_that_was_replaced_acknowledges_nothing(buffer, tmp_path):
    """A node that others cannot reach is taken for dead; its shard is started elsewhere, and may still be alive."""
    settings = ShardSettings("shard-0000", 1000, fingerprints.OBSERVATIONS, spaces.Discrete(5), 2, folder=tmp_path)
    old = ray.remote(Shard).options(num_cpus=0).remote(settings.packed())
    write(buffer, old, 8)
    assert ray.get(old.save.remote()).size == 16
    write(buffer, old, 8, first=8)
    new = ray.remote(Shard).options(num_cpus=0).remote(replace(settings, resume=True).packed())
    status = ray.get(new.status.remote())
    assert (status.size, status.lost) == (16, 16)
    with pytest.raises(RuntimeError, match="all shards are gone for good"):
        write(buffer, old, 4, first=16)
    write(buffer, new, 4, first=16)
    status = ray.get(new.save.remote())
    assert (status.size, status.lost) == (24, 16)


def test_saving_to_the_folder_of_the_checkpoints_is_a_checkpoint(buffer, folder):
    fill(buffer, 24)
    buffer.save(folder)
    before = held(buffer)
    handle = buffer.target.shards[0]
    write(buffer, handle, 8, first=24)
    kill(handle)
    buffer.refresh()
    assert buffer.lost == 16
    assert held(buffer) == before


def test_answers_of_an_earlier_life_are_not_taken_for_a_later_one(buffer):
    """An answer of the second life that is read after the third was heard of."""
    handle = buffer.target.shards[0]
    shards = Shards([handle])
    shards.all("status", timeout=60)
    kill(handle)
    ray.get(handle.__ray_call__.options(max_task_retries=-1).remote(lambda _: None))
    handle.__ray_call__.remote(lambda _: time.sleep(1))
    shards.refresh()  # asks, and does not wait
    time.sleep(2)
    kill(handle)
    shards.all("status", timeout=60)
    write(buffer, handle, 8)
    shards.refresh()
    shards.all("status", timeout=60)
    assert shards.sizes.tolist() == [16]


def test_a_full_ring_loses_what_it_held(make_buffer, tmp_path):
    """Not what was overwritten before."""
    buffer = make_buffer(buffer_size=64, checkpoint_dir=tmp_path)
    fill(buffer, 100)
    buffer.checkpoint()
    there: set[tuple[int, int]] = set()
    for first, steps in ((100, 20), (120, 41), (161, 6)):
        fill(buffer, steps, first=first)
        buffer.flush()
        there |= held(buffer)
        kill(buffer.target.shards[0])
        buffer.refresh()
        assert buffer.lost == len(there - held(buffer))
    fill(buffer, 10, first=167)
    buffer.checkpoint()
    there = held(buffer)
    lost = buffer.lost
    kill(buffer.target.shards[0])
    buffer.refresh()
    assert held(buffer) == there
    assert buffer.lost == lost
