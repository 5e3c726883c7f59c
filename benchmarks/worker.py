"""The process of one subject: fills its buffers and times them, a slice at a time. `run.py` starts it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

import numpy as np
import recordings
import subjects
import torch
from recordings import Step
from resident import resident_bytes, touch_memory
from turns import receive

CHECK_ROWS = 60
SLICE = 0.03  # seconds of sampling, or of adding to the full ring, in a turn; also of the fastest buffers
MOST_CALLS = 200
MOST_STEPS = 10_000
ROLLOUT_ROWS = 256
ROLLOUT_BATCH = 256
ROLLOUT_EPOCHS = 4


class Worker:
    """One subject."""

    def __init__(self, name: str) -> None:
        self.name, self.method = name, subjects.split(name)[1]

    def load(self) -> None:
        """Import the subject's package."""
        self.subject = subjects.find(self.name)

    def open(self, recording: str, steps: int, rows: int) -> str:
        """Check that a small buffer gives back what it is given; return the package's note.

        Args:
            recording: what to feed the buffers.
            steps: how much of it.
            rows: steps that the replay buffer will hold.
        """
        self.recording, self.rows = recordings.load(recording, steps), rows
        self._check_replay()
        return str(self.subject.NOTE)

    def begin(self) -> None:
        """Make the empty replay buffer. Memory is counted from here."""
        self.before = resident_bytes()
        self.buffer = self.subject.replay(self.recording, self.rows, self.method)
        self.stream = self.recording.endless()

    def fill(self, steps: int) -> float:
        """Add steps, to memory that was touched; return seconds per step."""
        touch_memory(int(1.25 * steps * self.recording.n_envs * 2 * self.recording.obs_bytes))
        add, stream, seconds = self.buffer.add, self.stream, 0.0
        for step in itertools.islice(stream, steps):
            start = perf_counter()
            add(*step)
            seconds += perf_counter() - start
        return seconds / steps

    def add(self) -> float:
        """Return seconds per step added to the full ring, of as many as fit into a slice, after one not counted."""
        add, steps, seconds = self.buffer.add, 0, 0.0
        add(*next(self.stream))
        while seconds < SLICE and steps < MOST_STEPS:
            step = next(self.stream)
            start = perf_counter()
            add(*step)
            seconds += perf_counter() - start
            steps += 1
        return seconds / steps

    def memory(self) -> dict[str, int]:
        """Return what the full buffer says it owns, and what the process has grown by."""
        return {"owned": self.subject.owned_bytes(self.buffer), "rss": resident_bytes() - self.before}

    def sample(self, batch_size: int) -> float:
        """Return seconds per `sample`, of as many as fit into a slice, after one that is not counted."""
        sample = self.buffer.sample
        start = perf_counter()
        sample(batch_size)
        calls = min(1 + int(SLICE / (perf_counter() - start)), MOST_CALLS)
        start = perf_counter()
        for _ in range(calls):
            sample(batch_size)
        return (perf_counter() - start) / calls

    def begin_rollouts(self) -> bool:
        """Make a rollout buffer, check it as the other; False where the package has none."""
        del self.buffer
        self._check_rollout()
        self.rollouts = self.subject.rollout(self.recording, ROLLOUT_ROWS, self.method)
        self.rollout_stream = rollout_steps(self.recording.endless())
        return self.rollouts is not None

    def rollout(self) -> tuple[float, float]:
        """Do what PPO does with a rollout; return the seconds per step of filling it, and per epoch of reading it."""
        buffer, stream = self.rollouts, self.rollout_stream
        start = perf_counter()
        buffer.reset()
        filling = perf_counter() - start
        for step in itertools.islice(stream, ROLLOUT_ROWS):
            start = perf_counter()
            buffer.add(*step)
            filling += perf_counter() - start
        finish_rollout(buffer)
        start = perf_counter()
        for _ in range(ROLLOUT_EPOCHS):
            for _batch in buffer.get(ROLLOUT_BATCH):
                pass
        return filling / ROLLOUT_ROWS, (perf_counter() - start) / ROLLOUT_EPOCHS

    def _check_replay(self) -> None:
        from subjects import sb3

        rows = min(CHECK_ROWS, self.rows)
        buffer = self.subject.replay(self.recording, rows, self.method)
        reference = sb3.replay(self.recording, rows)
        for i, step in enumerate(itertools.islice(self.recording.endless(), 3 * rows + rows // 2)):
            buffer.add(*step)
            reference.add(*step)
            if i == rows - 1:
                self.subject.same(buffer, reference)
        self.subject.same(buffer, reference)

    def _check_rollout(self) -> None:
        from subjects import sb3

        buffers = [module.rollout(self.recording, CHECK_ROWS, self.method) for module in (self.subject, sb3)]
        if buffers[0] is None:
            return
        for buffer in buffers:
            for step in itertools.islice(rollout_steps(self.recording.endless()), CHECK_ROWS):
                buffer.add(*step)
            finish_rollout(buffer)
        np.random.seed(0)
        expected = list(buffers[1].get(64))
        np.random.seed(0)
        for batch, wanted in zip(buffers[0].get(64), expected, strict=True):
            sb3.compare(batch, wanted)


def rollout_steps(steps: Iterator[Step]) -> Iterator[tuple[Any, ...]]:
    """Yield the arguments of `RolloutBuffer.add` for `steps`; the policy's outputs are made up."""
    starts: Any = None
    for obs, _, action, reward, done, _ in steps:
        starts = np.ones(len(done), np.float32) if starts is None else starts
        yield obs, action, reward, starts, torch.zeros(len(done), 1), torch.full((len(done),), -1.0)
        starts = done.astype(np.float32)


def finish_rollout(buffer: Any) -> None:
    buffer.compute_returns_and_advantage(torch.zeros(buffer.n_envs, 1), np.zeros(buffer.n_envs, np.float32))


def main() -> None:
    handle, name = sys.argv[1:]
    worker = Worker(name)
    questions = ("open", "begin", "fill", "memory", "add", "sample", "begin_rollouts", "rollout")
    receive(Connection(int(handle)), worker.load, {question: getattr(worker, question) for question in questions})


if __name__ == "__main__":
    main()
