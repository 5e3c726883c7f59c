"""Measure the distributed buffer on a local Ray cluster of several nodes: wire, speed, a small run, chaos.

    python benchmarks/distributed.py wire throughput run chaos --minutes 4

Each part writes its section of `results/distributed.json`. All nodes share the cores of one machine: figures for more
shards show what they cost, not how several machines would do.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
from about import about
from recordings import Recording, load

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0", OMP_NUM_THREADS="1")

import ray
from ray.cluster_utils import Cluster
from stable_baselines3 import DQN
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_extra_buffers.compressed import CompressedReplayBuffer
from sb3_extra_buffers.distributed import Collectors, DistributedReplayBuffer
from sb3_extra_buffers.training_utils.atari import make_env

RESULTS = Path(__file__).parent / "results" / "distributed.json"
TESTS = Path(__file__).parents[1] / "tests" / "distributed"
GAME, STEPS, ENVS = "MsPacman", 5000, 4
SHARDS = (1, 2, 4)


@contextmanager
def cluster(nodes: int = 3) -> Iterator[Cluster]:
    memory = 200 << 20
    head = {"num_cpus": 8, "object_store_memory": memory, "include_dashboard": False}
    found = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(nodes - 1):
            found.add_node(num_cpus=8, object_store_memory=memory)
        ray.init(address=found.address, log_to_driver=False, logging_level="error")
        yield found
    finally:
        ray.shutdown()
        found.shutdown()


def make_buffer(recording: Recording, shards: int, **settings: Any) -> Any:
    """Return a buffer on so many shards; with none, one in this process."""
    size, spaces = STEPS * ENVS, (recording.observation_space, recording.action_space)
    if shards == 0:
        return CompressedReplayBuffer(size, *spaces, "cpu", n_envs=ENVS, **settings)
    return DistributedReplayBuffer(size, *spaces, "cpu", n_envs=ENVS, shards=shards, **settings)


def add_all(buffer: Any, steps: list[Any]) -> None:
    for step in steps:
        buffer.add(*step)
    if isinstance(buffer, DistributedReplayBuffer):
        buffer.flush()


def cpu_seconds(buffer: Any) -> float:
    """Return the processor time that all shards have taken."""
    return float(sum(on_shards(buffer, lambda shard: time.process_time())))


def on_shards(buffer: Any, function: Any) -> list[Any]:
    return ray.get([handle.__ray_call__.remote(function) for handle in buffer.target.shards])


def wire(args: argparse.Namespace) -> dict[str, Any]:
    """Bytes on the wire and in memory, per MsPacman transition."""
    recording = load(GAME, STEPS, ENVS)
    raw = 2 * recording.obs_bytes
    found: dict[str, Any] = {"raw_bytes": raw}
    for shards in SHARDS:
        buffer = make_buffer(recording, shards)
        add_all(buffer, list(recording.steps()))
        for _ in range(200):
            buffer.sample(32)
        traffic, usage = buffer.traffic, buffer.memory_usage()
        context = ray._private.worker.global_worker.get_serialization_context()
        reply = ray.get(buffer.target.shards[0].sample.remote(32))
        found[f"{shards} shards"] = {
            "sent_bytes": round(traffic["sent_bytes"] / traffic["sent"], 1),
            "sent_percent": round(100 * traffic["sent_bytes"] / traffic["sent"] / raw, 3),
            "received_bytes": round(traffic["received_bytes"] / traffic["received"], 1),
            "received_percent": round(100 * traffic["received_bytes"] / traffic["received"] / raw, 3),
            "ray_bytes_beyond_parcel": context.serialize(reply).total_bytes - reply[1].nbytes,
            "stored_bytes": round(usage.stored_bytes / traffic["sent"], 1),
            "stored_percent": round(100 * usage.stored_bytes / usage.raw_bytes, 3),
        }
        buffer.close()
    return found


def throughput(args: argparse.Namespace) -> dict[str, Any]:
    """Transitions a second, one writer and one learner, beside a local buffer; subjects take turns."""
    recording = load(GAME, STEPS, ENVS)
    steps = list(islice(recording.steps(), 1024))
    subjects = {0: make_buffer(recording, 0), **{shards: make_buffer(recording, shards) for shards in SHARDS}}
    times: dict[tuple[int, str], list[float]] = {}

    def note(shards: int, what: str, began: float, n: int) -> None:
        times.setdefault((shards, what), []).append((time.perf_counter() - began) / n * 1e6)

    processor: dict[tuple[int, str], list[float]] = {}
    for turn in range(args.rounds + 1):  # the first warms up
        if turn == 1:
            times, processor = {}, {}
        for shards, buffer in subjects.items():
            for what in ("add", "sample 32", "sample 256"):
                own, theirs = time.process_time(), cpu_seconds(buffer) if shards else 0.0
                began = time.perf_counter()
                if what == "add":
                    add_all(buffer, steps)
                    n = len(steps) * ENVS
                else:
                    batch = int(what.split()[1])
                    batches = 6400 // batch
                    for _ in range(batches):
                        buffer.sample(batch)
                    n = batches * batch
                note(shards, what, began, n)
                used = (time.process_time() - own, (cpu_seconds(buffer) if shards else 0.0) - theirs)
                for who, seconds in zip(("here", "shards"), used, strict=True):
                    processor.setdefault((shards, f"{what}, {who}"), []).append(seconds / n * 1e6)
    found: dict[str, Any] = {"rounds": args.rounds, "unit": "microseconds per transition, median"}
    for shards, buffer in subjects.items():
        name = f"{shards} shards" if shards else "local"
        found[name] = {what: round(statistics.median(all_), 2) for (s, what), all_ in times.items() if s == shards}
        used = {what: round(statistics.median(all_), 2) for (s, what), all_ in processor.items() if s == shards}
        found[name]["processor"] = used
        if shards:
            buffer.close()
    return found


def game(seed: int) -> Any:
    return make_env("MsPacmanNoFrameskip-v4", ENVS, DummyVecEnv, seed=seed)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Collectors play while a learner samples: what crosses the wire and what the shards take, measured."""
    env = game(0)
    shards, collectors = 2, 2
    settings = {"shards": shards, "samples_per_insert": 2.0, "min_size": 2000, "timeout": 300.0}
    model = DQN(
        "CnnPolicy",
        env,
        buffer_size=500_000,
        replay_buffer_class=DistributedReplayBuffer,
        replay_buffer_kwargs=settings,
        device="cpu",
    )
    buffer = model.replay_buffer
    before = on_shards(buffer, lambda shard: psutil.Process().memory_info().rss)
    group = Collectors(buffer, model, game, collectors, seed=1)
    reports: list[Any] = []
    played, began = 0, 0.0
    while not began or time.monotonic() < began + args.seconds:
        buffer.sample(32)
        reports += group.poll()
        if not began:
            began, played = time.monotonic(), sum(report.transitions for report in reports)
    seconds = time.monotonic() - began
    played = sum(report.transitions for report in reports) - played
    reports += group.stop()
    sizes = [status.size for status in buffer.refresh()]
    sent = {report.writer: report.sent_bytes for report in reports}
    usage, traffic = buffer.memory_usage(), buffer.traffic
    resident = [
        after - b
        for after, b in zip(on_shards(buffer, lambda shard: psutil.Process().memory_info().rss), before, strict=True)
    ]
    buffer.close()
    total = sum(sizes)
    return {
        "seconds": round(seconds, 1),
        "shards": shards,
        "collectors": collectors,
        "envs_of_a_collector": ENVS,
        "transitions": total,
        "transitions_of_each_shard": sizes,
        "transitions_per_second": round(played / seconds, 1),
        "sent_bytes": sum(sent.values()),
        "sent_bytes_per_transition": round(sum(sent.values()) / total, 1),
        "received_bytes_per_transition": round(traffic["received_bytes"] / traffic["received"], 1),
        "stored_bytes": usage.stored_bytes,
        "stored_bytes_per_transition": round(usage.stored_bytes / total, 1),
        "resident_growth_of_each_shard": resident,
        "lost": buffer.lost,
    }


def chaos(args: argparse.Namespace) -> dict[str, Any]:
    """Shards and collectors are killed at random while a model learns."""
    sys.path.insert(0, str(TESTS))
    import chaos as script
    import fingerprints

    for module in (script, fingerprints):
        ray.cloudpickle.register_pickle_by_value(module)

    def kill_node() -> None:
        """Kill a node with all that runs on it, without a word; another one comes."""
        args.cluster.remove_node(args.cluster.list_all_nodes()[-1], allow_graceful=False)
        args.cluster.add_node(num_cpus=8, object_store_memory=200 << 20)

    with tempfile.TemporaryDirectory() as folder:
        return script.run(
            Path(folder), args.minutes * 60, pause=6, shards=4, collectors=2, seed=args.seed, kill_node=kill_node
        )


PARTS = {"wire": wire, "throughput": throughput, "run": run, "chaos": chaos}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="PART", help=f"any of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=7, help="of throughput")
    parser.add_argument("--seconds", type=float, default=60, help="of the run")
    parser.add_argument("--minutes", type=float, default=4, help="of chaos")
    parser.add_argument("--seed", type=int, default=0, help="of chaos")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    unknown = set(args.parts) - PARTS.keys()
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    results = json.loads(args.out.read_text()) if args.out.exists() else {}
    for name in args.parts:
        print(f"{name} ...", flush=True)
        made = about()
        made["versions"]["ray"] = version("ray")
        with cluster() as args.cluster:
            results[name] = {**PARTS[name](args), "about": made}
        print(json.dumps({key: value for key, value in results[name].items() if key != "about"}, indent=1), flush=True)
        args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
