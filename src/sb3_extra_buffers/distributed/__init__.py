"""A replay buffer on several machines, over Ray actors. Needs: pip install "sb3-extra-buffers[ray]"."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sb3_extra_buffers.codecs import optional

if TYPE_CHECKING:
    from sb3_extra_buffers.distributed.buffer import DistributedReplayBuffer
    from sb3_extra_buffers.distributed.collectors import CollectorActor, Collectors
    from sb3_extra_buffers.distributed.limiter import RateLimiter
    from sb3_extra_buffers.distributed.shard import Shard

__all__ = ["CollectorActor", "Collectors", "DistributedReplayBuffer", "RateLimiter", "Shard"]

_HOMES = {
    "CollectorActor": "collectors",
    "Collectors": "collectors",
    "DistributedReplayBuffer": "buffer",
    "RateLimiter": "limiter",
    "Shard": "shard",
}


def __getattr__(name: str) -> Any:
    """Import a class when it is asked for.

    Raises:
        ImportError: Ray or zstandard is missing; it holds the pip command.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for library in ("ray", "zstandard"):
        optional.require(library, name, "ray")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
