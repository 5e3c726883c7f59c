"""`Shards`: what one process knows of the shards, and how it hears from them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayActorError

from sb3_extra_buffers.distributed.shard import Status

log = logging.getLogger(__name__)


class Shards:
    """Handles of the shards, and the newest status of each; None while a shard does not answer.

    Args:
        handles: of the actors.
        quiet: whether to leave it to others to log what is lost.
    """

    def __init__(self, handles: Sequence[Any], quiet: bool = False) -> None:
        self.handles = list(handles)
        self.quiet = quiet
        self.unaccounted = 0  # transitions that a shard held and knows nothing of, since it lost its files, too
        self.statuses: list[Status | None] = [None] * len(self.handles)
        self._last: list[Status | None] = [None] * len(self.handles)
        self._past: set[int] = set()  # lives of shards that have ended
        self._pings: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.handles)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Transitions in each shard that answers, 0 for others."""
        return np.array([0 if status is None else status.size for status in self.statuses], np.int64)

    @property
    def lost(self) -> int:
        """Transitions that died with shards, as far as this process has heard."""
        return self.unaccounted + sum(status.lost for status in self._last if status is not None)

    def heard(self, i: int, status: Status) -> None:
        """Take note of what shard `i` says, and log what it has lost."""
        if status.life in self._past:
            return  # an answer from before it died, heard late
        before = self._last[i]
        self.statuses[i] = self._last[i] = status
        if before is None:
            if status.lost and not self.quiet:
                log.warning("shard %d has lost %d transitions (%d bytes)", i, status.lost, status.lost_bytes)
            return
        if before.life != status.life:
            self._past.add(before.life)
            unknown = max(0, before.size + before.lost - status.size - status.lost)
            self.unaccounted += unknown
            if not self.quiet:
                log.warning(
                    "shard %d died and is back with %d transitions; lost: %d transitions (%d bytes)",
                    *(i, status.size, status.lost - before.lost + unknown, status.lost_bytes - before.lost_bytes),
                )
        elif before.lost != status.lost and not self.quiet:
            log.info("shard %d was sent %d of the lost transitions again", i, before.lost - status.lost)

    def forget(self) -> None:
        """Forget what was heard."""
        self.statuses, self._last = [None] * len(self), [None] * len(self)
        self.unaccounted = 0

    def down(self, i: int) -> None:
        """Take note that shard `i` does not answer: nothing is asked of it until it does."""
        if self.statuses[i] is not None and not self.quiet:
            log.warning("shard %d does not answer; going on without it", i)
        self.statuses[i] = None

    def refresh(self, timeout: float = 0.0) -> None:
        """Hear from the shards that are empty or did not answer, for as long as `timeout` seconds."""
        end = time.monotonic() + timeout
        while True:
            for i in np.flatnonzero(self.sizes == 0).tolist():
                if i not in self._pings:
                    self._pings[i] = self.handles[i].status.remote()
            self._collect(max(0.0, min(0.1, end - time.monotonic())))
            if self.sizes.any() or time.monotonic() >= end:
                return

    def all(self, method: str, *args: Sequence[Any], timeout: float) -> list[Any]:
        """Call a method of every shard, with `args[i]` for shard i, and wait for all: also for those that are dead.

        Raises:
            GetTimeoutError: one did not answer in time.
        """
        each = zip(*args, strict=True) if args else ((),) * len(self)
        calls = [getattr(handle, method).options(max_task_retries=-1) for handle in self.handles]
        refs = [call.remote(*own) for call, own in zip(calls, each, strict=True)]
        found = ray.get(refs, timeout=timeout)
        for i, result in enumerate(found):
            if isinstance(result, Status):
                self.heard(i, result)
        return found

    def _collect(self, timeout: float) -> None:
        if not self._pings:
            return
        ready, _ = ray.wait(list(self._pings.values()), num_returns=len(self._pings), timeout=timeout)
        for i, ref in list(self._pings.items()):
            if ref in ready:
                del self._pings[i]
                try:
                    self.heard(i, ray.get(ref))
                except RayActorError:
                    self.down(i)
