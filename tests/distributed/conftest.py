"""One local Ray cluster of three nodes for all tests here, and buffers on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fingerprints
import pytest
from gymnasium import spaces

ray = pytest.importorskip("ray")


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under xdist with `--dist loadgroup`, one worker runs all of them: there is one cluster."""
    for item in items:
        if "distributed" in item.path.parts:
            item.add_marker(pytest.mark.xdist_group("ray"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    os.environ.update(
        RAY_USAGE_STATS_ENABLED="0",
        RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",  # else Ray warns of what it will change
        RAY_worker_niceness="0",  # as nice as they are by default, they would starve beside the other tests
        OMP_NUM_THREADS="1",
    )
    memory = 80 << 20
    head = {"num_cpus": 8, "object_store_memory": memory, "include_dashboard": False}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            nodes.add_node(num_cpus=8, object_store_memory=memory)
        ray.init(address=nodes.address, log_to_driver=False, logging_level="error")
        ray.cloudpickle.register_pickle_by_value(fingerprints)  # workers do not find the tests
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()


def make(buffer_size: int = 10_000, space: Any = fingerprints.OBSERVATIONS, **settings: Any) -> Any:
    from sb3_extra_buffers.distributed import DistributedReplayBuffer

    actions = spaces.Discrete(fingerprints.ACTIONS)
    settings = {"n_envs": 2, "shards": 1, "chunk_steps": 4, "timeout": 120.0, "device": "cpu", **settings}
    return DistributedReplayBuffer(buffer_size, space, actions, **settings)


@pytest.fixture
def make_buffer(cluster: Any) -> Iterator[Callable[..., Any]]:
    made = []

    def remembered(*args: Any, **settings: Any) -> Any:
        made.append(make(*args, **settings))
        return made[-1]

    yield remembered
    for buffer in made:
        buffer.close()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="session")
def _shared(cluster: Any, folder: Path) -> Iterator[Any]:
    buffer = make(shards=3, checkpoint_dir=folder)
    yield buffer
    buffer.close()


@pytest.fixture
def buffer(_shared: Any) -> Any:
    """A buffer of three shards, empty. Processes take seconds to start, so tests share it."""
    _shared.reset()
    return _shared
