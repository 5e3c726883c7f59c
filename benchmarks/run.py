"""Replay and rollout buffers on the same recorded observations: memory, adding, sampling, as ratios to SB3.

    python benchmarks/run.py                       # ten minutes: the main methods, six recordings
    python benchmarks/run.py --preset untouched    # games and scenes that nothing was tuned on
    python benchmarks/run.py --preset pictures     # ViZDoom in RGB
    python benchmarks/run.py --preset full         # all recordings, more rounds, every method on some of them
    python benchmarks/run.py --recordings Qbert --subjects sb3 sb3:again ours:auto ours:zstd10 cpprb

Every subject has a process of its own. One is busy at a time; they take turns in short slices, in a new order each
round. Before anything is timed, each subject is checked: it must return exactly what it was given. Results go to
`benchmarks/results`: a JSON and a CSV file, and a plot for each recording.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import plot
import psutil
import recordings
import report
from about import about
from plans import ALLOCATORS, MAIN, MORE, PRESETS, Plan
from tqdm import tqdm
from turns import Player, PlayerError

HERE = Path(__file__).parent
FILL_SLICES = 20
BUSY = 0.7  # load average; one other busy process costs each threaded call of torch a time slice of 16 ms
DENSE = ("sb3", "torchrl:LazyTensor", "published:zstd", "published:rle", "published:none")  # need what SB3 needs


def main() -> None:
    options, where, done = parse_args(), about(), []
    if where["load_average_at_start"] > BUSY:
        print(f"Others are busy here (load {where['load_average_at_start']}): times will be of little worth.\n")
    plan = plan_of(options)
    plan = replace(plan, recordings=tuple(filter(partial(can_record, plan), plan.recordings)))
    path = options.out / (options.name or options.preset)
    for allocator in plan.allocators:
        with players(allocator) as find:
            for name in plan.recordings:
                rows = plan.rows_of(name)
                found = {subject: find(subject) for subject in plan.subjects_of(name)}
                results = measure(found, name, rows, plan.rounds, f"{name}, {allocator}")
                for i in range(1, plan.processes_of(name)):
                    with players(allocator) as find_another:
                        found = {s: find_another(s) for s in results if s.startswith(("sb3", "ours"))}
                        merge(results, measure(found, name, rows, plan.rounds, f"{name}, {allocator}, again ({i})"))
                done.append({"name": name, "allocator": allocator, "rows": rows, "results": results})
                print(report.table(done[-1]), end="\n\n", flush=True)
                report.write(path, where, done)
                plot.draw(done, name, path)
    print(report.legend(done))
    print(f"{where['cpu']}, {where['cores']} cores. Written: {path}.json, .csv and -*.png")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="quick")
    parser.add_argument("--recordings", nargs="+", help="Atari games, doom-<scenario>-<rgb or labels>, HalfCheetah")
    parser.add_argument("--subjects", nargs="+", help="sb3 and some of: " + " ".join((MAIN + MORE)[1:]))
    parser.add_argument("--allocators", nargs="+", choices=ALLOCATORS)
    parser.add_argument("--rows", type=int, help="steps of the 4 envs that a buffer holds")
    parser.add_argument("--rounds", type=int, help="turns of each subject; 7 at least for figures worth telling")
    parser.add_argument("--name", help="name of the results files; the preset's otherwise")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder of the results files")
    options = parser.parse_args()
    if options.rows is not None and options.rows < 100:
        parser.error("--rows is at least 100")
    return options


def plan_of(options: argparse.Namespace) -> Plan:
    plan = PRESETS[options.preset]
    if options.recordings:
        plan = replace(plan, recordings=tuple(options.recordings))
    if options.subjects:
        others = [subject for subject in options.subjects if subject != "sb3"]
        plan = replace(plan, subjects=("sb3", *others), more_of=(), all_methods_on=())
    if options.allocators:
        plan = replace(plan, allocators=tuple(options.allocators))
    if options.rows:
        plan = replace(plan, rows=(options.rows,) * 3)
    return replace(plan, rounds=options.rounds or plan.rounds)


def measure(found: dict[str, Player], name: str, rows: int, rounds: int, title: str) -> dict[str, dict[str, Any]]:
    """Measure all subjects on one recording; return `{subject: {values, note, failed}}`."""
    running = dict(found)
    results: dict[str, dict[str, Any]] = {s: {"values": {}, "note": "", "failed": ""} for s in found}
    order = random.Random(0)
    bar = tqdm(total=len(found) * (5 + FILL_SLICES + 4 * rounds), desc=title, unit="turn", leave=False)

    def turn(question: str, *arguments: Any) -> Iterator[tuple[str, Any]]:
        """Ask each subject, in a new order; yield its name and answer. One that fails is out."""
        for subject in order.sample(list(running), len(running)):
            bar.update()
            try:
                yield subject, running[subject].ask(question, *arguments)
            except PlayerError as error:
                results[subject]["failed"] = str(error)
                leave(running.pop(subject))

    def keep(subject: str, **seconds: float) -> None:
        for measure, value in seconds.items():
            results[subject]["values"].setdefault(measure, []).append(round(value, 9))

    for _ in turn("enter"):
        pass
    for subject, note in turn("open", name, recorded_steps(rows), rows):
        results[subject]["note"] = note
    for _ in turn("begin"):
        pass
    for i in range(FILL_SLICES):
        for subject, seconds in turn("fill", rows * (i + 1) // FILL_SLICES - rows * i // FILL_SLICES):
            keep(subject, add_first=seconds)
    for subject, sizes in turn("memory"):
        keep(subject, **sizes)
    for _ in range(rounds):
        for subject, seconds in turn("add"):
            keep(subject, add_full=seconds)
        for subject, seconds in turn("sample", 32):
            keep(subject, sample_32=seconds)
        for subject, seconds in turn("sample", 256):
            keep(subject, sample_256=seconds)
    for subject in [subject for subject, has_rollouts in turn("begin_rollouts") if not has_rollouts]:
        leave(running.pop(subject))
    for _ in range(rounds):
        for subject, (adding, reading) in turn("rollout"):
            keep(subject, rollout_add=adding, rollout_get=reading)
    for player in running.values():
        leave(player)
    bar.close()
    return results


def merge(results: dict[str, dict[str, Any]], others: dict[str, dict[str, Any]]) -> None:
    """Take what was measured in other processes of the same subjects into `results`."""
    for subject, other in others.items():
        for measure, values in other["values"].items():
            results[subject]["values"].setdefault(measure, []).extend(values)
        results[subject]["failed"] = results[subject]["failed"] or other["failed"]


def leave(player: Player) -> None:
    """Have the subject's buffers and memory go; it can enter again."""
    with suppress(PlayerError):
        player.ask("leave")


@contextmanager
def players(allocator: str) -> Iterator[Callable[[str], Player]]:
    """Give a function that returns the process of a subject, started when it is first wanted."""
    started: dict[str, Player] = {}

    def find(subject: str) -> Player:
        if subject not in started:
            started[subject] = Player([str(HERE / "worker.py"), subject], ALLOCATORS[allocator])
        return started[subject]

    try:
        yield find
    finally:
        for player in started.values():
            player.close()


def recorded_steps(rows: int) -> int:
    """Return the steps to record for a buffer of `rows`: the full ring goes on with frames that it has not seen."""
    return rows + rows * 2 // 5


def can_record(plan: Plan, name: str) -> bool:
    """Record what is not yet recorded. False where the env is not installed; refuses what does not fit into memory."""
    rows, subjects = plan.rows_of(name), plan.subjects_of(name)
    try:
        recording = recordings.load(name, recorded_steps(rows))
    except ImportError as error:
        print(f"{name} cannot be recorded here: {error}")
        return False
    one = 2 * rows * recording.n_envs * recording.obs_bytes
    dense = sum(subject.startswith(DENSE) for subject in subjects)
    needed = one * (dense + 0.2 * (len(subjects) - dense)) + 3e8 * len(subjects)
    free = psutil.virtual_memory().available
    if needed > free:
        sys.exit(f"{name} needs about {needed / 1e9:.0f} GB, {free / 1e9:.0f} GB are free: try a lower --rows")
    return True


if __name__ == "__main__":
    main()
