"""Kill shards and collectors at random while a model learns, and compare what is lost with what is said to be lost."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fingerprints
import ray
from fingerprints import make_env, players_of
from stable_baselines3 import DQN
from stable_baselines3.common.logger import configure
from stable_baselines3.common.utils import polyak_update

from sb3_extra_buffers.distributed import Collectors, DistributedReplayBuffer

ENVS, CHUNK, BATCH = 2, 8, 32


class CheckedBuffer(DistributedReplayBuffer):
    """Checks every transition that is sampled, by its pixels."""

    checked, last, longest = 0, 0.0, 0.0

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        batch = super().sample(*args, **kwargs)
        fingerprints.check(batch)
        self.checked += len(batch.rewards)
        now = time.monotonic()
        self.longest = max(self.longest, now - self.last) if self.last else 0.0
        self.last = now
        return batch


class Killer:
    """Kills the process of an actor some time after it is asked to."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.asked: list[tuple[Any, str]] = []
        self.killed = {"shards": 0, "collectors": 0}

    def aim(self, actor: Any, kind: str) -> None:
        self.asked.append((actor.__ray_call__.remote(lambda _: os.getpid()), kind))

    def fire(self) -> None:
        """Kill those whose process is known and whose time has come."""
        waiting = []
        for ref, kind in self.asked:
            if not ray.wait([ref], timeout=0)[0]:
                waiting.append((ref, kind))
                continue
            try:
                pid = ray.get(ref)
            except ray.exceptions.RayError:  # it was dead already
                continue
            time.sleep(self.random.uniform(0, 0.05))  # in the middle of anything
            os.kill(pid, signal.SIGKILL)
            self.killed[kind] += 1
        self.asked = waiting


def run(
    folder: Path,
    seconds: float,
    pause: float,
    shards: int = 3,
    collectors: int = 2,
    seed: int = 0,
    kill_node: Callable[[], object] | None = None,
) -> dict[str, Any]:
    """Learn for some seconds with a kill about every `pause` seconds; returns what happened.

    Args:
        folder: for checkpoints.
        seconds: how long.
        pause: between kills.
        shards: how many.
        collectors: how many.
        seed: of the victims.
        kill_node: called once, in the middle.

    Raises:
        AssertionError: wrong data was sampled or stored, or the loss is not what was reported.
    """
    model = DQN(
        "CnnPolicy",
        make_env(seed=0),
        replay_buffer_class=CheckedBuffer,
        replay_buffer_kwargs={
            "shards": shards,
            "chunk_steps": CHUNK,
            "checkpoint_dir": folder,
            "checkpoint_every": 4 * pause,
            "samples_per_insert": 2.0,
            "min_size": 256,
            "timeout": 180.0,
        },
        buffer_size=4_000_000,
        batch_size=BATCH,
        policy_kwargs={"features_extractor_kwargs": {"features_dim": 32}},
        device="cpu",
        seed=seed,
    )
    model.set_logger(configure(None, []))
    buffer = model.replay_buffer
    group = Collectors(buffer, model, make_env, collectors, seed=1)
    killer, choose = Killer(seed), random.Random(seed)
    writers: dict[int, int] = {}  # writer: seed
    asked: list[tuple[int, Any]] = []
    known_seeds: set[int] = set()
    stored: set[tuple[int, int]] = set()  # chunks that shards have acknowledged, and collectors told so
    aimed = nodes = 0
    updates, began = 0, time.monotonic()
    next_kill = began + pause
    try:
        while time.monotonic() < began + seconds:
            for report in group.poll():
                stored |= {(report.writer, number) for number in report.chunks}
            for seed_of, actor in group.members:
                if seed_of not in known_seeds:
                    known_seeds.add(seed_of)
                    asked.append((seed_of, actor.__ray_call__.remote(lambda collector: collector.writer.ident)))
            asked = _answered(asked, writers)
            model.train(gradient_steps=1, batch_size=BATCH)
            updates += 1
            if updates % 20 == 0:
                polyak_update(model.q_net.parameters(), model.q_net_target.parameters(), 1.0)
                group.publish(epsilon=0.2)
            if time.monotonic() > next_kill:
                kind = "collectors" if aimed % 3 == 1 else "shards"
                aimed += 1
                victims = buffer.target.shards if kind == "shards" else [actor for _, actor in group.members]
                killer.aim(choose.choice(victims), kind)
                next_kill = time.monotonic() + choose.uniform(0.5, 1.5) * pause
            killer.fire()
            if kill_node is not None and time.monotonic() > began + seconds / 2:
                kill_node()
                kill_node = None
                nodes = 1
        asked = _answered(asked, writers, wait=True)
        last = group.stop()
        replaced = group.replaced
        stored |= {(report.writer, number) for report in last for number in report.chunks}
        buffer.refresh()
        lost = [chunk for handle in buffer.target.shards for chunk in ray.get(handle.table.remote())[1]]
        found = fingerprints.held(buffer.target.shards)
        sizes = [status.size for status in buffer.refresh()]
    finally:
        longest, checked, reported = buffer.longest, buffer.checked, buffer.lost
        buffer.close()
    held = set(found)
    assert len(held) == len(found) == sum(sizes), "a transition is stored twice"
    assert set(known_players(writers)) >= {player for player, _ in held} - unknown_players(writers, group)
    # Every chunk that was acknowledged is there, whole, or gone, whole; and those that are gone are those reported.
    gone = {key for key in stored if key[0] in writers and not _present(key, writers, held)}
    said = {chunk.key for chunk in lost}
    assert {key for key in said if key in stored} == gone, "loss reported is not loss measured"
    assert not any(_present(key, writers, held) for key in said if key[0] in writers), "what is lost is there"
    measured = len(gone) * CHUNK * ENVS
    unheard = sum(chunk.transitions for chunk in lost if chunk.key not in stored)
    assert reported == measured + unheard, (reported, measured, unheard)
    return {
        "seconds": round(time.monotonic() - began, 1),
        "shards": shards,
        "collectors": collectors,
        "killed_shards": killer.killed["shards"],
        "killed_collectors": killer.killed["collectors"],
        "killed_nodes": nodes,
        "replaced_collectors": replaced,
        "updates": updates,
        "checked_samples": checked,
        "acknowledged": len(stored) * CHUNK * ENVS,
        "held": len(held),
        "lost_reported": reported,
        "lost_measured": measured,
        "lost_unheard": unheard,
        "longest_wait_seconds": round(longest, 2),
    }


def known_players(writers: dict[int, int]) -> list[int]:
    return [player for seed in writers.values() for player in players_of(seed)]


def unknown_players(writers: dict[int, int], group: Any) -> set[int]:
    """Return the players of collectors that died before they could say as whom they write."""
    silent = set(range(1, group.next_seed)) - set(writers.values())
    return {player for seed in silent for player in players_of(seed)}


def _answered(asked: list[tuple[int, Any]], writers: dict[int, int], wait: bool = False) -> list[tuple[int, Any]]:
    waiting = []
    for seed, ref in asked:
        if not ray.wait([ref], timeout=10 if wait else 0)[0]:
            waiting.append((seed, ref))
            continue
        try:
            writers[ray.get(ref)] = seed
        except ray.exceptions.RayError:
            continue
    return waiting


def _present(key: tuple[int, int], writers: dict[int, int], held: set[tuple[int, int]]) -> bool:
    """Tell whether a chunk is there; some of it alone must not be."""
    writer, number = key
    steps = [fingerprints.nth(number * CHUNK + i) for i in range(CHUNK)]
    found = [(player, step) in held for player in players_of(writers[writer]) for step in steps]
    assert all(found) or not any(found), "part of a chunk"
    return all(found)
