"""`RateLimiter`: keeps collecting and learning in step, as Reverb's `SampleToInsertRatio` does."""

from __future__ import annotations

import asyncio
import time


class RateLimiter:
    """Makes the faster side wait: a Ray actor that every collector and the learner ask first.

    The learner waits until `min_size` transitions were inserted. From then on, with
    `difference = inserted * samples_per_insert - sampled`, collectors wait before it exceeds
    `samples_per_insert * min_size + error_buffer`, the learner before it falls below
    `samples_per_insert * min_size - error_buffer`.

    Args:
        samples_per_insert: how often each transition is sampled, on average.
        min_size: transitions to insert before the first is sampled.
        error_buffer: how far the two sides may be apart, in samples.

    Raises:
        ValueError: a number that cannot be.
    """

    def __init__(self, samples_per_insert: float, min_size: int, error_buffer: float) -> None:
        if samples_per_insert <= 0 or min_size < 1 or error_buffer <= 0:
            raise ValueError(
                "samples_per_insert and error_buffer are above 0 and min_size is at least 1; "
                f"got {samples_per_insert}, {error_buffer} and {min_size}"
            )
        self.samples_per_insert = samples_per_insert
        self.min_size = min_size
        self.error_buffer = error_buffer
        self.inserted = self.sampled = 0
        self._largest = [0.0, 0.0]  # insert and sample, in samples
        self._changed = asyncio.Condition()

    async def insert(self, n: int, timeout: float = 0.0) -> bool:
        """Ask to insert `n` transitions; returns whether it is granted, after waiting at most `timeout` seconds."""
        self._check(0, n * self.samples_per_insert)
        granted = await self._wait(lambda: self.may_insert(n), timeout)
        if granted:
            await self.count(n)
        return granted

    async def sample(self, n: int, timeout: float = 0.0) -> bool:
        """Ask to sample `n` transitions; returns whether it is granted, after waiting at most `timeout` seconds."""
        self._check(1, n)
        granted = await self._wait(lambda: self.may_sample(n), timeout)
        if granted:
            async with self._changed:
                self.sampled += n
                self._changed.notify_all()
        return granted

    async def count(self, n: int) -> None:
        """Count `n` transitions that were inserted without asking."""
        async with self._changed:
            self.inserted += n
            self._changed.notify_all()

    async def counts(self) -> tuple[int, int]:
        """Return how many transitions were inserted and sampled."""
        return self.inserted, self.sampled

    def may_insert(self, n: int) -> bool:
        """Tell whether `n` more would not be too far ahead."""
        if self.inserted < self.min_size:
            return True
        difference = (self.inserted + n) * self.samples_per_insert - self.sampled
        return difference <= self.samples_per_insert * self.min_size + self.error_buffer

    def may_sample(self, n: int) -> bool:
        """Tell whether `n` samples more would not be too many."""
        difference = self.inserted * self.samples_per_insert - self.sampled - n
        enough = difference >= self.samples_per_insert * self.min_size - self.error_buffer
        return self.inserted >= self.min_size and enough

    async def _wait(self, granted: object, timeout: float) -> bool:
        assert callable(granted)
        end = time.monotonic() + timeout
        async with self._changed:
            while not granted():
                left = end - time.monotonic()
                if left <= 0:
                    return False
                try:
                    await asyncio.wait_for(self._changed.wait(), left)
                except (asyncio.TimeoutError, TimeoutError):
                    return bool(granted())
        return True

    def _check(self, side: int, n: float) -> None:
        """Raise if both sides could wait for each other."""
        self._largest[side] = max(self._largest[side], n)
        if sum(self._largest) > 2 * self.error_buffer:
            raise ValueError(
                f"error_buffer={self.error_buffer:g} is too small: a chunk of transitions and a batch need at least "
                f"{sum(self._largest) / 2:g}"
            )
