"""The rate limiter: who must wait, and that not both do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

RateLimiter = pytest.importorskip("sb3_extra_buffers.distributed.limiter").RateLimiter


def run(limiter: Any, *calls: tuple[str, int]) -> list[bool]:
    async def all_calls() -> list[bool]:
        return [await getattr(limiter, name)(n) for name, n in calls]

    return asyncio.run(all_calls())


def test_nothing_is_sampled_before_min_size():
    limiter = RateLimiter(samples_per_insert=4, min_size=100, error_buffer=200)
    assert run(limiter, ("sample", 1), ("insert", 99), ("sample", 1), ("insert", 1), ("sample", 1)) == [
        *(False, True, False, True, True),
    ]


def test_both_sides_keep_their_distance():
    limiter = RateLimiter(samples_per_insert=2, min_size=10, error_buffer=20)
    assert run(limiter, ("insert", 10), ("insert", 10), ("insert", 1)) == [True, True, False]  # 2 * 20 = 20 + 20
    assert run(limiter, ("sample", 20), ("sample", 20), ("sample", 1)) == [True, True, False]  # 2 * 20 - 40 = 20 - 20
    assert run(limiter, ("insert", 1), ("sample", 2), ("sample", 1)) == [True, True, False]
    assert asyncio.run(limiter.counts()) == (21, 42)


@pytest.mark.parametrize("insert", [1, 7, 64])
@pytest.mark.parametrize("sample", [1, 32])
def test_one_side_may_always_go_on(insert, sample):
    """With an error buffer of just what a chunk and a batch need, they never wait for each other."""
    limiter = RateLimiter(samples_per_insert=1.5, min_size=10, error_buffer=(1.5 * insert + sample) / 2)
    for _ in range(300):
        granted = run(limiter, ("sample", sample), ("insert", insert))
        assert any(granted)
    inserted, sampled = limiter.inserted, limiter.sampled
    assert abs(sampled - 1.5 * (inserted - 10)) <= limiter.error_buffer + 1.5 * insert


def test_an_error_buffer_that_is_too_small_is_an_error():
    limiter = RateLimiter(samples_per_insert=1, min_size=10, error_buffer=20)
    run(limiter, ("insert", 30))
    with pytest.raises(ValueError, match=r"error_buffer=20 is too small.* at least 31"):
        run(limiter, ("sample", 32))


def test_who_waits_goes_on_when_the_other_side_has():
    limiter = RateLimiter(samples_per_insert=1, min_size=10, error_buffer=20)

    async def wait() -> list[bool]:
        waiting = asyncio.create_task(limiter.sample(5, timeout=60))
        await asyncio.sleep(0)
        assert not waiting.done()
        return [await limiter.insert(10), await waiting]

    assert asyncio.run(wait()) == [True, True]


def test_waiting_ends():
    limiter = RateLimiter(samples_per_insert=1, min_size=10, error_buffer=20)
    assert asyncio.run(limiter.sample(5, timeout=0.05)) is False


@pytest.mark.parametrize("bad", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (-1, 1, 1)])
def test_numbers_that_cannot_be(bad):
    with pytest.raises(ValueError, match="samples_per_insert"):
        RateLimiter(*bad)
