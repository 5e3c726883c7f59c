"""A short chaos; `python benchmarks/distributed.py chaos` runs it for minutes."""

from __future__ import annotations

import pytest

ray = pytest.importorskip("ray")


def test_loss_reported_is_loss_measured(cluster, tmp_path):
    import chaos

    ray.cloudpickle.register_pickle_by_value(chaos)
    found = chaos.run(tmp_path, seconds=10, pause=3, shards=2, collectors=1)
    assert found["killed_shards"] > 0
    assert found["checked_samples"] > 0
