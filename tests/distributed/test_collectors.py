"""Collectors on a real local Ray cluster."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import fingerprints
import numpy as np
import pytest
from fingerprints import make_env
from stable_baselines3 import DQN

ray = pytest.importorskip("ray")

from sb3_extra_buffers.distributed import CollectorActor, Collectors, collectors  # noqa: E402


@pytest.fixture(scope="module")
def model() -> Any:
    small = {"features_extractor_kwargs": {"features_dim": 8}}
    return DQN("CnnPolicy", make_env(0), buffer_size=10, policy_kwargs=small, device="cpu", seed=0)


def play(group: Any, transitions: int, seconds: float = 300) -> list[Any]:
    reports, end = [], time.monotonic() + seconds
    while sum(report.transitions for report in reports) < transitions:
        assert time.monotonic() < end
        reports += group.poll()
        time.sleep(0.05)
    return reports


def test_they_play_with_the_newest_weights_and_are_replaced(make_buffer, model):
    """Their actions are those of the model; what they saw is in the shards, once; one that dies is replaced."""
    buffer = make_buffer(samples_per_insert=1.0, min_size=400, error_buffer=100)
    group = Collectors(buffer, model, make_env, 2, seed=1)
    reports = play(group, 300)
    assert {report.version for report in reports} <= {-1, 0}
    # A policy that likes one action, and no exploration: from some step on it is all they do.
    for parameter in model.q_net.parameters():
        parameter.data.zero_()
    model.q_net.q_net[-1].bias.data[3] = 1.0
    group.publish(epsilon=0.0)
    _, actor = group.members[0]
    os.kill(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
    end = time.monotonic() + 300
    while group.replaced == 0:
        assert time.monotonic() < end
        reports += group.poll()
    assert group.members[0][0] == 3
    # 450 transitions at most until something is sampled: `samples_per_insert` holds them back.
    while buffer.refresh()[0].size < 400:
        reports += group.poll()
    time.sleep(1.0)
    reports += group.poll()
    assert buffer.refresh()[0].size <= 504
    sampled = [fingerprints.check(buffer.sample(50)) for _ in range(10)]
    assert len(np.concatenate(sampled)) == 500
    reports += play(group, 200)
    reports += group.stop()
    assert max(report.version for report in reports) == 1
    assert sum(report.waited for report in reports) > 0.5
    assert len(group) == 0
    found = fingerprints.held(buffer.target.shards)
    assert len(found) == len(set(found)) == buffer.refresh()[0].size
    done = sum(len(report.chunks) for report in reports if report.writer) * 8
    assert len(found) >= done
    assert {(player - 1000) // 2 for player, _ in found} <= {1, 2, 3}
    newest = [
        ray.get(
            buffer.target.shards[0].__ray_call__.remote(
                lambda shard: shard.buffer.actions[shard.buffer.pos - 20 : shard.buffer.pos]
            )
        )
    ]
    assert (np.array(newest) == 3).all()
    returns = [value for report in reports for value in report.returns]
    assert returns


def test_an_env_that_cannot_be_made_is_an_error(buffer, model, monkeypatch):
    monkeypatch.setattr(collectors, "_TRIES", 1)

    def broken(seed: int) -> Any:
        raise OSError("no such game")

    group = Collectors(buffer, model, broken, 1)
    end = time.monotonic() + 120
    with pytest.raises(RuntimeError, match="collectors die before they report anything"):  # noqa: PT012
        while time.monotonic() < end:
            group.poll()
            time.sleep(0.05)
    group.stop()


def test_wrong_use_is_an_error(buffer, model):
    with pytest.raises(ValueError, match="at least 1 collector, not 0"):
        Collectors(buffer, model, make_env, 0)


def test_older_weights_do_not_replace_newer_ones(buffer, model):
    """Ray may run calls in another order than they were made in."""
    policy = type(model.policy), model.policy._get_constructor_parameters()
    actor = CollectorActor(buffer.target, make_env, policy, seed=0)
    weights = {name: value.numpy() for name, value in model.policy.state_dict().items()}
    actor.set_weights(1, weights, 0.1)
    actor.set_weights(0, weights, 0.9)
    actor._load_newest()
    assert (actor.version, actor.epsilon) == (1, 0.1)
    actor.set_weights(0, weights, 0.9)
    actor._load_newest()
    assert (actor.version, actor.epsilon) == (1, 0.1)


def test_the_last_report_of_one_that_died_is_not_lost(make_buffer, model):
    group = Collectors(make_buffer(), model, make_env, 1, seed=1)
    play(group, 40)
    _, actor = group.members[0]
    time.sleep(1)  # it has reported what nobody has read
    os.kill(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
    time.sleep(1)
    assert sum(report.transitions for report in group.stop()) > 0
