"""`Shards`: what one process knows of the shards, and how it hears from them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayActorError, RayError

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
        self.statuses: list[Status | None] = [None] * len(self.handles)
        self._last: list[Status | None] = [None] * len(self.handles)
        self._written_off: dict[int, int] = {}  # journal: transitions that its shard knows nothing of any more
        self._gone: set[int] = set()  # shards that will not come back
        self._pings: dict[int, tuple[Any, int | None]] = {}  # shard: call, and the life it was asked in

    def __len__(self) -> int:
        return len(self.handles)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Transitions in each shard that answers, 0 for others."""
        return np.array([0 if status is None else status.size for status in self.statuses], np.int64)

    @property
    def lost(self) -> int:
        """Transitions that died with shards, as far as this process has heard."""
        return sum(self._written_off.values()) + sum(status.lost for status in self._last if status is not None)

    def life(self, i: int) -> int | None:
        """Return the life of shard `i` that was heard of last. Who asks something keeps it for `heard`."""
        last = self._last[i]
        return None if last is None else last.life

    def heard(self, i: int, status: Status, asked: int | None) -> None:
        """Take note of what shard `i` says, and log what it has lost.

        Args:
            i: the shard.
            status: its answer.
            asked: `life(i)` when it was asked. An answer of yet another life than that and the last one may be of an
                earlier one, and heard late: it does not count.
        """
        before = self._last[i]
        if self.life(i) not in (status.life, asked):
            return
        self.statuses[i] = self._last[i] = status
        if before is None:
            if status.lost and not self.quiet:
                log.warning("shard %d has lost %d transitions (%d bytes)", i, status.lost, status.lost_bytes)
            return
        if before.life != status.life:
            # A journal that was written off before is that of a node where the shard has been before: it began there
            # with nothing of what `before` had.
            back = self._written_off.pop(status.journal, None) if before.journal != status.journal else None
            unknown = max(0, before.size + before.lost - (status.began if back is None else 0))
            self._write_off(before, unknown)
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
        self._written_off.clear()
        self._pings.clear()

    def down(self, i: int) -> None:
        """Take note that shard `i` does not answer: nothing is asked of it until it does."""
        if self.statuses[i] is not None and not self.quiet:
            log.warning("shard %d does not answer; going on without it", i)
        self.statuses[i] = None

    def gone(self, i: int) -> None:
        """Take note that shard `i` will not come back: all that it held is lost."""
        self.down(i)
        last = self._last[i]
        if i in self._gone:
            return
        self._gone.add(i)
        held = 0 if last is None else last.size
        if last is not None:
            self._write_off(last, held)
        if not self.quiet:
            log.error("shard %d is gone for good; lost: %d transitions", i, held)

    def _write_off(self, last: Status, transitions: int) -> None:
        self._written_off[last.journal] = self._written_off.get(last.journal, 0) + transitions

    def refresh(self, timeout: float = 0.0) -> None:
        """Hear from the shards that are empty or did not answer, for as long as `timeout` seconds."""
        end = time.monotonic() + timeout
        while True:
            for i in np.flatnonzero(self.sizes == 0).tolist():
                if i not in self._pings:
                    self._pings[i] = self.handles[i].status.remote(), self.life(i)
            self._collect(max(0.0, min(0.1, end - time.monotonic())))
            if self.sizes.any() or time.monotonic() >= end:
                return

    def all(self, method: str, *args: Sequence[Any], timeout: float) -> list[Any]:
        """Call a method of every shard, with `args[i]` for shard i, and wait for all: also for those that are dead.

        Raises:
            GetTimeoutError: one did not answer in time.
            RayActorError: one is gone for good.
        """
        each = zip(*args, strict=True) if args else ((),) * len(self)
        calls = [getattr(handle, method).options(max_task_retries=-1) for handle in self.handles]
        lives = [self.life(i) for i in range(len(self))]
        refs = [call.remote(*own) for call, own in zip(calls, each, strict=True)]
        try:
            found = ray.get(refs, timeout=timeout)
        except RayActorError:
            for i in (i for i, ref in enumerate(refs) if _is_gone(ref)):
                self.gone(i)
            raise
        for i, result in enumerate(found):
            if isinstance(result, Status):
                self.heard(i, result, lives[i])
        return found

    def _collect(self, timeout: float) -> None:
        if not self._pings:
            return
        refs = [ref for ref, _ in self._pings.values()]
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=timeout)
        for i, (ref, life) in list(self._pings.items()):
            if ref in ready:
                del self._pings[i]
                try:
                    self.heard(i, ray.get(ref), life)
                except RayActorError:
                    self.down(i)


def _is_gone(ref: Any) -> bool:
    """Tell whether a call that is repeated as long as its actor comes back has failed since it does not."""
    if not ray.wait([ref], timeout=0)[0]:
        return False
    try:
        ray.get(ref)
    except RayActorError:
        return True
    except RayError:
        return False
    return False
