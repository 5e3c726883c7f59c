"""A short chaos; `python benchmarks/distributed.py chaos` runs it for minutes."""

from __future__ import annotations

import pytest

ray = pytest.importorskip("ray")


def test_loss_reported_is_loss_measured(cluster, tmp_path):
    """`chaos.run` compares the two, transition by transition."""
    import chaos

    ray.cloudpickle.register_pickle_by_value(chaos)
    found = chaos.run(tmp_path, seconds=10, pause=2.0, shards=2, collectors=1, kills=4)
    assert found["lost_reported"] == found["lost_measured"] == found["stored"] - found["held"] > 0
    assert found["killed_shards"] > 0
    assert found["killed_collectors"] > 0
    assert found["checked_samples"] > 0
