"""Measure buffers on a CUDA device: against dense tensors there, SB3's buffer, a plain copy, nvCOMP, and in training.

    python benchmarks/gpu.py                      # a few minutes; writes benchmarks/results/gpu.json
    python benchmarks/gpu.py --device cpu --steps 300 --quick    # does it run?

All subjects live in one process and take turns in short slices; figures are medians of wall-clock times (of samples
minima, too), each call waiting for the device. MsPacman frames of a random policy, 4 envs, stack of 4.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from about import about
from gpu_training import compare_training
from recordings import Recording, load
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_extra_buffers.gpu_buffers import GpuReplayBuffer
from sb3_extra_buffers.gpu_buffers.mirror import Mirror

RESULTS = Path(__file__).parent / "results" / "gpu.json"
BATCHES = (32, 256, 1024, 4096, 16384)
# SB3's large temporaries then stay with the process instead of being faulted in again for every sample.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "4294967296"}

Action = Callable[[], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=5_000, help="steps of the 4 envs in the buffers")
    parser.add_argument("--quick", action="store_true", help="few rounds, small batches, short trainings")
    parser.add_argument("--only", nargs="*", help="parts to measure, such as sample add; all if left out")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in ALLOCATOR.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ALLOCATOR})
    device = torch.device(options.device)
    recording = load("MsPacman", options.steps)
    buffers = filled(recording, device)
    rounds = 3 if options.quick else 40
    parts: dict[str, Action] = {
        "sample": lambda: measure_samples(buffers, rounds, BATCHES[:2] if options.quick else BATCHES),
        "decode": lambda: measure_decode(buffers["delta"], rounds),
        "nvcomp": lambda: measure_nvcomp(recording, buffers["delta"], rounds),
        "add": lambda: measure_add(buffers, recording, rounds),
        "memory": lambda: measure_memory(recording, device, 4_000 if options.quick else 100_000),
        "training": lambda: compare_training(device, quick=options.quick),
    }
    results: dict[str, Any] = {"about": {**about(), **card(device)}}
    for name, measure in parts.items():
        if options.only and name not in options.only:
            continue
        results[name] = measure()
        print(f"{name}: {json.dumps(results[name], indent=2)}", flush=True)
        options.results.parent.mkdir(exist_ok=True)
        options.results.write_text(json.dumps(results, indent=2) + "\n")


def card(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {"device": str(device)}
    import triton

    properties = torch.cuda.get_device_properties(device)
    return {
        "device": properties.name,
        "device_memory_bytes": properties.total_memory,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
    }


def filled(recording: Recording, device: torch.device) -> dict[str, Any]:
    """Return buffers that hold the whole recording: ours, ours dense, SB3's, and bare tensors."""
    size = len(recording) * recording.n_envs
    given = (size, recording.observation_space, recording.action_space, device, recording.n_envs)
    buffers: dict[str, Any] = {
        "delta": GpuReplayBuffer(*given),
        "none": GpuReplayBuffer(*given, compression_method="none"),
        "sb3": ReplayBuffer(*given),
    }
    for step in recording.steps():
        for buffer in buffers.values():
            buffer.add(*step)
    for seed in range(3):
        check_same(buffers, seed)
    sb3 = buffers["sb3"]
    buffers["bare"] = [torch.from_numpy(array).to(device) for array in (sb3.observations, sb3.next_observations)]
    return buffers


def check_same(buffers: dict[str, Any], seed: int) -> None:
    """Samples are the same, or the figures mean nothing."""
    batches = []
    for buffer in buffers.values():
        np.random.seed(seed)
        batches.append(buffer.sample(500))
    for batch in batches[:-1]:
        for got, wanted in zip(batch[:5], batches[-1][:5], strict=True):
            assert torch.equal(got, wanted)


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def in_turns(subjects: dict[str, Action], rounds: int, calls: int = 10) -> dict[str, float]:
    """Return the median seconds of a call of each subject."""
    return {name: statistics.median(times) for name, times in timed_in_turns(subjects, rounds, calls).items()}


def timed_in_turns(subjects: dict[str, Action], rounds: int, calls: int = 10) -> dict[str, list[float]]:
    """Return the seconds of each call of each subject. All make some calls in each round, in a new order."""
    times: dict[str, list[float]] = {name: [] for name in subjects}
    order = random.Random(0)
    for i in range(rounds + 2):
        for name in order.sample(list(subjects), len(subjects)):
            for _ in range(calls):
                wait()
                start = time.perf_counter()
                subjects[name]()
                wait()
                if i >= 2:
                    times[name].append(time.perf_counter() - start)
    return times


def measure_samples(buffers: dict[str, Any], rounds: int, batches: tuple[int, ...]) -> list[dict[str, float]]:
    """Complete samples: rows and envs drawn as SB3 draws them, every field a tensor on the device."""
    rows, n_envs, device = buffers["sb3"].buffer_size, buffers["sb3"].n_envs, buffers["sb3"].device

    def gather(n: int) -> None:
        i = torch.from_numpy(np.random.randint(0, rows, n)).to(device)
        e = torch.from_numpy(np.random.randint(0, n_envs, n)).to(device)
        for tensor in buffers["bare"]:
            tensor[i, e]

    results = []
    for n in batches:
        subjects: dict[str, Action] = {
            "delta": lambda n=n: buffers["delta"].sample(n),  # type: ignore[misc]
            "none": lambda n=n: buffers["none"].sample(n),  # type: ignore[misc]
            "bare": lambda n=n: gather(n),  # type: ignore[misc]
        }
        if n <= 1024:
            subjects["sb3"] = lambda n=n: buffers["sb3"].sample(n)  # type: ignore[misc]
        times = timed_in_turns(subjects, rounds if n <= 1024 else max(rounds // 2, 1))
        result: dict[str, float] = {"batch": n}
        for suffix, of in (("", statistics.median), ("_of_minima", min)):  # what else the host does only adds
            seconds = {name: of(values) for name, values in times.items()}
            result |= {f"{name}_ms{suffix}": value * 1e3 for name, value in seconds.items()}
            result[f"delta_over_none{suffix}"] = seconds["delta"] / seconds["none"]
            if "sb3" in seconds:
                result[f"times_faster_than_sb3{suffix}"] = seconds["sb3"] / seconds["delta"]
        results.append(result)
    return results


def kernel_seconds(act: Action, rounds: int, calls: int = 20) -> float:
    """Return the median seconds that the device needs for one call: many are queued, and timed by the device."""
    if not torch.cuda.is_available():
        return in_turns({"act": act}, rounds, 2)["act"]
    times = []
    for _ in range(rounds + 2):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(2_000_000)  # the calls are queued meanwhile
        start.record()
        for _ in range(calls):
            act()
        end.record()
        wait()
        times.append(start.elapsed_time(end) / 1e3 / calls)
    return statistics.median(times[2:])


def measure_decode(buffer: GpuReplayBuffer, rounds: int) -> dict[str, float]:
    """Bytes of output per second of the decode kernel, and of a copy of the same tensor on the device."""
    mirror, ids = stored_frames(buffer)
    chosen = torch.from_numpy(np.random.default_rng(0).permutation(ids)).to(buffer.buffer_device)
    out = torch.empty((len(ids), mirror.frame_bytes), dtype=torch.uint8, device=chosen.device)
    floats = torch.empty_like(out, dtype=torch.float32)
    all_of_them = len(chosen), 1, chosen, None
    mirror.decode(*all_of_them, (out,), False, False)
    target = torch.empty_like(out)
    seconds = {
        "decode": kernel_seconds(lambda: mirror.decode(*all_of_them, (target,), False, False), rounds),
        "decode_to_float": kernel_seconds(lambda: mirror.decode(*all_of_them, (floats,), True, True), rounds),
        "copy": kernel_seconds(lambda: target.copy_(out), rounds),
    }
    return {
        "frames": len(ids),
        "output_bytes": out.nbytes,
        "decode_gb_per_s": out.nbytes / seconds["decode"] / 1e9,
        "decode_to_float_gb_per_s": floats.nbytes / seconds["decode_to_float"] / 1e9,
        "copy_gb_per_s": out.nbytes / seconds["copy"] / 1e9,
        "decode_over_copy": seconds["copy"] / seconds["decode"],
    }


def stored_frames(buffer: GpuReplayBuffer) -> tuple[Mirror, np.ndarray]:
    """Return where the device keeps the frames of a buffer, and their ids."""
    store = buffer._stores[None]
    store.refresh()
    return store._mirror, np.flatnonzero(store.frames.counts)[1:].astype(np.int32)


def measure_nvcomp(recording: Recording, buffer: GpuReplayBuffer, rounds: int) -> dict[str, Any]:
    """The same frames with every algorithm of nvCOMP, batched: 2,048 of them, one array each."""
    try:
        from nvidia import nvcomp
    except ImportError:
        return {"not measured": "the package nvidia-nvcomp is not installed"}
    count = 2048
    frames = np.array(recording.frames[: count // recording.n_envs]).reshape(count, -1)
    tensor = torch.from_numpy(frames).to(buffer.buffer_device)
    results: dict[str, Any] = {}
    algorithms = "LZ4", "Snappy", "Zstd", "Cascaded", "ANS", "GDeflate", "Bitcomp", "Deflate"
    kinds = ("", "NVCOMP_NATIVE"), (", raw", "RAW")
    for algorithm, (suffix, kind) in itertools.product(algorithms, kinds):
        name = algorithm + suffix
        try:
            codec = nvcomp.Codec(algorithm=algorithm, bitstream_kind=getattr(nvcomp.BitstreamKind, kind))
            encoded = codec.encode(nvcomp.as_arrays(list(tensor)))
            decoded = torch.zeros_like(tensor)
            out = nvcomp.as_arrays(list(decoded))
            codec.decode(encoded, out=out)
            wait()
            assert torch.equal(decoded, tensor)
            seconds = in_turns({name: lambda c=codec, e=encoded, o=out: c.decode(e, out=o)}, rounds, 3)
            size = sum(encoded.buffer_sizes)
            results[name] = {"ms": seconds[name] * 1e3, "share_of_raw": size / frames.nbytes}
        except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError) as error:
            results[name] = {"not measured": repr(error)[:200]}
    mirror, ids = stored_frames(buffer)
    chosen = torch.from_numpy(ids[:count]).to(buffer.buffer_device)
    out = torch.empty((count, mirror.frame_bytes), dtype=torch.uint8, device=chosen.device)
    seconds = in_turns({"delta": lambda: mirror.decode(len(chosen), 1, chosen, None, (out,), False, False)}, rounds, 3)
    share = buffer.device_usage().total_bytes / (len(ids) * mirror.frame_bytes)
    results["delta, keys and tables included"] = {"ms": seconds["delta"] * 1e3, "share_of_raw": share}
    return results


def measure_add(buffers: dict[str, Any], recording: Recording, rounds: int) -> dict[str, float]:
    """One step of 4 envs into buffers that are full, without waiting for the device: `error` makes torch refuse to."""
    steps: Iterator[Any] = itertools.cycle(list(itertools.islice(recording.steps(np.random.default_rng(1)), 400)))
    if torch.cuda.is_available():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that this is a prototype
            torch.cuda.set_sync_debug_mode("error")
    for step in itertools.islice(steps, 100):
        buffers["delta"].add(*step)
        buffers["delta"].sample(32)
    if torch.cuda.is_available():
        torch.cuda.set_sync_debug_mode("default")
    times: dict[str, list[float]] = {name: [] for name in ("delta", "none", "sb3", "delta_and_sample")}
    for _ in range(rounds):
        chosen = list(itertools.islice(steps, 128))
        for name, values in times.items():
            buffer = buffers["delta" if name == "delta_and_sample" else name]
            start = time.perf_counter()
            for step in chosen:
                buffer.add(*step)
                if name == "delta_and_sample":
                    buffer.sample(32)
            values.append((time.perf_counter() - start) / len(chosen))
            wait()
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        **{f"{name}_us": value * 1e6 for name, value in medians.items()},
        "delta_over_sb3": medians["delta"] / medians["sb3"],
        "waits_for_the_device": 0,
    }


def measure_memory(recording: Recording, device: torch.device, transitions: int) -> dict[str, float]:
    """Device memory of a full buffer. After its first pass the recording comes with 4 changed pixels per frame."""
    before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    buffer = GpuReplayBuffer(transitions, recording.observation_space, recording.action_space, device, recording.n_envs)
    steps = itertools.chain(recording.steps(), recording.endless(np.random.default_rng(0)))
    for step in itertools.islice(steps, transitions // recording.n_envs):
        buffer.add(*step)
    usage = buffer.device_usage()
    wait()
    allocated = (torch.cuda.memory_allocated() if device.type == "cuda" else usage.total_bytes + before) - before
    dense = transitions * 2 * recording.obs_bytes
    return {
        "transitions": transitions,
        "dense_bytes": dense,
        "device_bytes": usage.total_bytes,
        "allocated_bytes": allocated,
        "share_of_dense": allocated / dense,
        "heap_bytes": usage.heap_bytes,
        "heap_slack_share": usage.heap_slack / usage.heap_bytes,
        "host_bytes": buffer.memory_usage().stored_bytes,
    }


if __name__ == "__main__":
    main()
