"""Kill shards and collectors at random while a model learns, and compare what is lost with what is said to be lost.

What is lost is measured without asking the library what it has lost. Each shard has a witness: before a chunk is
stored, it writes down which transitions are in it, as their pixels say; after it was stored, that it was. A kill may
come between the two. For such a chunk the shard's own journal decides, of which the witness keeps copies: a chunk is
stored when it is there. All that was stored, less what the shards hold in the end, pixel by pixel, is what was lost.
"""

from __future__ import annotations

import itertools
import os
import random
import secrets
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import fingerprints
import numpy as np
import ray
from fingerprints import make_env
from stable_baselines3 import DQN
from stable_baselines3.common.logger import configure
from stable_baselines3.common.utils import polyak_update

from sb3_extra_buffers.distributed import Collectors, DistributedReplayBuffer, Shard, wire
from sb3_extra_buffers.distributed.shard import ShardSettings

CHUNK, BATCH = 8, 32
BEGUN, DONE, DIED = 0, 1, 2
PLACES = ["", "stored", "given", "saved"]
"""Where shards are killed: anywhere; before a stored chunk is acknowledged; before it is stored; when a checkpoint is
written and the journal does not know it yet."""

Key = tuple[int, int]  # writer and number of a chunk
Transition = tuple[int, int]  # player and step


class WitnessedShard(Shard):
    """A shard that writes down in files of its own what it was given, and what it has stored."""

    def __init__(self, packed: bytes) -> None:
        settings = ShardSettings.unpacked(packed)
        assert settings.folder is not None
        self.witness, self.name = settings.folder / "witness", settings.name
        self.copy_journals(settings.folder)
        name = f"{settings.name}-{secrets.token_hex(8)}.ledger"
        self.ledger = os.open(self.witness / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.dies_at = ""
        super().__init__(packed)

    def copy_journals(self, folder: Path) -> None:
        for path in folder.glob(f"{self.name}.*.journal"):
            shutil.copyfile(path, self.witness / f"{path.name}-{secrets.token_hex(8)}")

    def note(self, kind: int, writer: int, number: int, transitions: Any = ((0, 0),)) -> None:
        rows = [(kind, writer, number, *transition) for transition in transitions]
        os.write(self.ledger, np.array(rows, np.int64).tobytes())  # one call: it is there, or not

    def add(self, writer: int, number: int, parcel: Any) -> Any:
        obs = wire.unpack(parcel)["observations"][:, :, 0]  # [envs, steps, *obs]
        players, steps = fingerprints.read(obs.reshape(-1, *obs.shape[2:]))
        self.note(BEGUN, writer, number, zip(players.tolist(), steps.tolist(), strict=True))
        self.pass_by("given")
        status = super().add(writer, number, parcel)
        self.pass_by("stored")
        self.note(DONE, writer, number)
        return status

    def save(self, path: Path | None = None) -> Any:
        self.copy_journals(self.witness.parent)  # before the library forgets them
        return super().save(path)

    def _forget(self) -> None:
        self.pass_by("saved")
        super()._forget()

    def pass_by(self, place: str) -> None:
        if self.dies_at == place:
            self.note(DIED, 0, 0)
            os.kill(os.getpid(), signal.SIGKILL)


class Testimony:
    """What the witnesses have written.

    Attributes:
        content: the transitions of each chunk that a shard was given.
        done: chunks that were stored.
        noted: chunks that are in a journal.
        processes: that the shards have had.
        died: how many of these were killed at one of the `PLACES`.
    """

    def __init__(self, folder: Path) -> None:
        self.content: dict[Key, set[Transition]] = {}
        self.done: set[Key] = set()
        ledgers = list((folder / "witness").glob("*.ledger"))
        self.processes, self.died = len(ledgers), 0
        for path in ledgers:
            for kind, writer, number, player, step in _rows(path, 5):
                if kind == DIED:
                    self.died += 1
                elif kind == DONE:
                    self.done.add((writer, number))
                else:
                    self.content.setdefault((writer, number), set()).add((player, step))
        journals = [*folder.glob("*.journal"), *(folder / "witness").glob("*.journal-*")]
        self.noted = {(row[0], row[1]) for path in journals for row in _rows(path, 4) if row[0] >= 0}

    def transitions(self, chunks: set[Key]) -> set[Transition]:
        return {transition for key in chunks for transition in self.content[key]}


def _rows(path: Path, width: int) -> list[list[int]]:
    found = np.fromfile(path, np.int64)
    return found[: found.size // width * width].reshape(-1, width).tolist()


class CheckedBuffer(DistributedReplayBuffer):
    """Checks every transition that is sampled, by its pixels."""

    shard_class = WitnessedShard
    checked, last, longest = 0, 0.0, 0.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: set[Transition] = set()

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        batch = super().sample(*args, **kwargs)
        self.seen.update(map(tuple, fingerprints.check(batch).tolist()))
        self.checked += len(batch.rewards)
        now = time.monotonic()
        self.longest = max(self.longest, now - self.last) if self.last else 0.0
        self.last = now
        return batch


class Killer:
    """Kills the process of an actor some time after it is asked to; now and then also the one that comes next."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.asked: list[tuple[Any, Any, str]] = []
        self.later: list[tuple[float, Any, str]] = []
        self.killed = {"shards": 0, "collectors": 0}

    def aim(self, actor: Any, kind: str, retries: int = 0) -> None:
        call = actor.__ray_call__.options(max_task_retries=retries)
        self.asked.append((call.remote(lambda _: os.getpid()), actor, kind))

    def fire(self) -> None:
        """Kill those whose process is known and whose time has come."""
        now, later = time.monotonic(), self.later
        self.later = [aim for aim in later if aim[0] > now]
        for _, actor, kind in (aim for aim in later if aim[0] <= now):
            self.aim(actor, kind)
        asked, self.asked = self.asked, []
        for ref, actor, kind in asked:
            if not ray.wait([ref], timeout=0)[0]:
                self.asked.append((ref, actor, kind))
                continue
            try:
                pid = ray.get(ref)
            except ray.exceptions.RayError:  # it was dead already
                continue
            time.sleep(self.random.uniform(0, 0.05))  # in the middle of anything
            with suppress(ProcessLookupError):  # it died meanwhile, with its node
                os.kill(pid, signal.SIGKILL)
                self.killed[kind] += 1
            if kind == "shards" and self.random.random() < 0.3:
                self.aim(actor, kind, retries=-1)  # as soon as it is back


def run(
    folder: Path,
    seconds: float,
    pause: float,
    shards: int = 3,
    collectors: int = 2,
    seed: int = 0,
    kills: int = 1,
    kill_node: Callable[[], object] | None = None,
) -> dict[str, Any]:
    """Learn for some seconds with a kill about every `pause` seconds; returns what happened.

    Args:
        folder: for checkpoints.
        seconds: how long, at least.
        pause: between kills.
        shards: how many.
        collectors: how many.
        seed: of the victims.
        kills: how many, at least.
        kill_node: called once, in the middle.

    Raises:
        AssertionError: wrong data was sampled or stored, or the loss is not what was reported.
    """
    (folder / "witness").mkdir()
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
    killer, choose, places = Killer(seed), random.Random(seed), itertools.cycle(PLACES)
    heard: set[Key] = set()  # chunks that collectors know to be stored
    aimed = nodes = 0
    updates, began = 0, time.monotonic()
    next_kill = began + pause
    try:
        while time.monotonic() < began + seconds or aimed < kills:
            heard |= {(report.writer, number) for report in group.poll() for number in report.chunks}
            model.train(gradient_steps=1, batch_size=BATCH)
            updates += 1
            if updates % 20 == 0:
                polyak_update(model.q_net.parameters(), model.q_net_target.parameters(), 1.0)
                group.publish(epsilon=0.2)
            if time.monotonic() > next_kill:
                players = [actor for _, actor in group.members]
                if aimed % 3 == 1:
                    killer.aim(choose.choice(players), "collectors")
                else:
                    victim, place = choose.choice(buffer.target.shards), next(places)
                    if place:
                        victim.__ray_call__.remote(lambda shard, place=place: setattr(shard, "dies_at", place))
                    else:
                        killer.aim(victim, "shards")
                    if place == "stored":  # and then who sent the chunk, before the shard is back
                        killer.later += [(time.monotonic() + 0.4, player, "collectors") for player in players]
                aimed += 1
                next_kill = time.monotonic() + choose.uniform(0.5, 1.5) * pause
            killer.fire()
            if kill_node is not None and time.monotonic() > began + seconds / 2:
                kill_node()
                kill_node = None
                nodes = 1
        heard |= {(report.writer, number) for report in group.stop() for number in report.chunks}
        _wait_for_calls(buffer)
        held = fingerprints.held(buffer.target.shards)
        tables = ray.get([handle.table.remote() for handle in buffer.target.shards])
        sizes = [status.size for status in buffer.refresh()]
        told = Testimony(folder)
    finally:
        reported = buffer.lost
        buffer.close()
    assert len(set(held)) == len(held) == sum(sizes), "a transition is stored twice"
    # The sources agree: nothing is acknowledged, sampled or held that was not stored, or stored that was not sent.
    assert heard <= told.done <= told.noted <= told.content.keys(), "the journals are wrong"
    assert len(told.noted - told.done) <= told.processes - shards, "more chunks than kills are in journals alone"
    assert all(len(told.content[key]) == CHUNK * buffer.n_envs for key in told.noted), "part of a chunk"
    stored = told.transitions(told.noted)
    assert buffer.seen <= told.transitions(told.done), "sampled, and not stored"
    assert set(held) <= stored, "held, and not stored"
    # The loss: transition by transition, and the number that a user reads.
    lost = stored - set(held)
    said = told.transitions({chunk.key for _, gone in tables for chunk in gone})
    assert said == lost, f"said to be lost and held: {len(said - lost)}; lost and not said: {len(lost - said)}"
    assert reported == len(lost), f"loss reported: {reported}; loss measured: {len(lost)}"
    unheard = told.transitions(told.noted - heard)
    return {
        "seconds": round(time.monotonic() - began, 1),
        "seed": seed,
        "shards": shards,
        "collectors": collectors,
        "killed_shards": killer.killed["shards"] + told.died,
        "killed_collectors": killer.killed["collectors"],
        "killed_nodes": nodes,
        "replaced_collectors": group.replaced,
        "updates": updates,
        "checked_samples": buffer.checked,
        "stored": len(stored),
        "stored_unheard": len(unheard),
        "stored_by_journal_alone": len(told.transitions(told.noted - told.done)),
        "held": len(held),
        "lost_reported": reported,
        "lost_measured": len(lost),
        "lost_unheard": len(lost & unheard),
        "longest_wait_seconds": round(buffer.longest, 2),
    }


def _wait_for_calls(buffer: DistributedReplayBuffer) -> None:
    """Wait until calls of collectors that have died are done: sizes do not change any more."""
    before: list[int] = []
    while (sizes := [status.size for status in buffer.refresh()]) != before:
        before = sizes
        time.sleep(2)
