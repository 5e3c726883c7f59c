"""Write the figures of README and docs from the results files, and redraw the plots.

    make figures                        # after a benchmark has written new results
    python scripts/figures.py --check   # say what is out of date, change nothing; a test runs this

In a page, whatever stands between `<!-- figure FILE.NAME -->` and `<!-- end -->` is written here, from
`benchmarks/results/FILE.json`: a number in a sentence, or a table. Where the file is missing there is nothing between
them. To add a figure, add its NAME to the function that is named like the file.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
REGION = re.compile(r"(<!-- figure ([\w-]+)\.([\w-]+) -->)(.*?)(<!-- end -->)", re.DOTALL)
TABLES = ("quick", "untouched", "pictures")  # of `benchmarks/run.py`: pages show them whole, and their plots
Data = dict[str, Any]

sys.path.insert(0, str(ROOT / "benchmarks"))  # its modules import each other by name

import report  # noqa: E402

# Figures as people read them


def with_unit(number: float, digits: int, unit: str) -> str:
    """Return a number and its unit, with a space between them at which lines do not break."""
    return f"{number:,.{digits}f}\N{NO-BREAK SPACE}{unit}"


def size(n: float) -> str:
    """Return bytes with three digits."""
    unit, name = (1e9, "GB") if n >= 1e9 else (1e6, "MB")
    return with_unit(n / unit, 1 if n / unit < 100 else 0, name)


def share(part: float) -> str:
    """Return a part of a whole in percent."""
    return with_unit(100 * part, 2 if part < 0.0995 else 0, "%")


def times(ratio: float) -> str:
    return with_unit(ratio, 2, "x")


def seconds(s: float) -> str:
    return with_unit(s * 1e6, 0, "us") if s < 1e-4 else with_unit(s * 1e3, 2, "ms")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, with the empty lines that it needs around it."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n\n"


def machine(data: Data) -> str:
    """Return where it was measured."""
    about = data["about"]
    return f"{about['cpu']}, {about['cores']} cores, Python {about['python'].rpartition('.')[0]}"


def named(subject: str) -> str:
    """Return a subject of the benchmarks as pages call it."""
    family, _, method = subject.partition(":")
    if family == "torchrl":
        return f"TorchRL `{method}`"
    if family == "cpprb":
        return "cpprb"
    if family == "sb3":
        return {"": "SB3", "again": "SB3, again", "tuned": "SB3, malloc as with ours"}[method]
    return {"ours": "ours", "published": "0.5.0", "plain": "plain"}[family] + f", `{method}`"


# One function for each results file: the names in it, and what is written


def quick(data: Data) -> dict[str, str]:
    """`make bench`."""
    recordings = {(each["name"], each["allocator"]): each for each in data["recordings"]}
    pinned = [each for each in data["recordings"] if each["allocator"] == "pinned"] or data["recordings"]
    pacman = recordings.get(("MsPacman", "pinned")) or recordings["MsPacman", "default"]
    measures = ["owned", "rss", "add_first", "add_full", "sample_32", "sample_256", "rollout_get"]
    header = ["MsPacman", "memory", "resident", "add, first fill", "add, full ring", "`sample(32)`"]
    rows = [
        [f"**{named(subject)}**" if subject.startswith("ours") else named(subject)]
        + [_quick_cell(measure, pacman["results"], subject) for measure in measures]
        for subject in (
            *("sb3", "ours:auto", "ours:zstd3", "published:zstd-3", "published:lz4-block/1", "cpprb"),
            *("torchrl:LazyTensorStorage", "torchrl:CompressedListStorage"),
        )
        if subject in pacman["results"]
    ]
    ours = [s for s in pacman["results"] if s.startswith("ours:")]
    return {
        "cpu": table([*header, "`sample(256)`", "PPO: read a rollout"], rows),
        "machine": machine(data),
        "transitions": f"{4 * pacman['rows']:,}",
        "methods": table(
            ["recording", "SB3", *(f"`{s.partition(':')[2]}`" for s in ours)],
            (
                [each["name"], _quick_cell("owned", each["results"], "sb3")]
                + [
                    f"{_quick_cell('owned', each['results'], s)}, {_quick_cell('sample_256', each['results'], s)}"
                    for s in ours
                ]
                for each in pinned
            ),
        ),
        "memory": _quick_cell("owned", pacman["results"], "ours:auto").replace("*", ""),
        "sample": _quick_cell("sample_256", pacman["results"], "ours:auto").replace("*", ""),
    }


def _quick_cell(measure: str, results: Data, subject: str) -> str:
    values, base = results[subject]["values"].get(measure), results["sb3"]["values"][measure]
    if not values:
        return ""
    ratio = median(values) / median(base)
    if measure in report.BYTES:
        text = size(median(values)) if subject == "sb3" else share(ratio)
    else:
        text = seconds(median(values)) if subject == "sb3" else times(ratio)
    return f"**{text}**" if subject.startswith("ours") and ratio < 0.995 else text


def scenes(data: Data) -> dict[str, str]:
    """`python benchmarks/run.py --preset pictures`."""
    ours = ("ours:auto", "ours:palette+near", "ours:palette+none")
    measures = ("owned", "add_first", "sample_32", "sample_256")
    return {
        "machine": machine(data),
        "methods": table(
            ["scene", *(f"`{subject.partition(':')[2]}`" for subject in ours)],
            (
                [each["name"].removeprefix("doom-").removesuffix("-rgb")]
                + [", ".join(_quick_cell(measure, each["results"], one) for measure in measures) for one in ours]
                for each in data["recordings"]
                if each["allocator"] == "pinned"
            ),
        ),
    }


def limits(data: Data) -> dict[str, str]:
    """`python benchmarks/limits.py`."""
    coders = {"zstd3": "`zstd3`", "ours": "ours, `auto`", "zstd19": "`zstd19`", "webp": "WebP"}
    total = {"recording": "one frame of each", **{coder: sum(each[coder] for each in data["rows"]) for coder in coders}}
    rows = (
        [each["recording"].removeprefix("doom-").removesuffix("-rgb"), f"{each['zstd3']:,.0f}"]
        + [f"{each[coder]:,.0f} ({share(each[coder] / each['zstd3'])})" for coder in list(coders)[1:]]
        for each in (*data["rows"], total)
    )
    return {"table": table(["scene", *coders.values()], rows)}


def memory(data: Data) -> dict[str, str]:
    """`python benchmarks/memory.py`."""
    rows = (
        [
            each["game"],
            f"`{each['method']}`",
            size(each["sb3_bytes"]),
            size(each["owned_bytes"]),
            share(each["share"]),
            size(each["rss_growth_bytes"]),
        ]
        for each in data["rows"]
    )
    return {
        "table": table(["game", "method", "SB3", "ours", "share", "process grew by"], rows),
        "transitions": f"{data['rows'][0]['transitions']:,}",
        "command": f"`{data['about']['command']}`",
        "machine": machine(data),
    }


def million(data: Data) -> dict[str, str]:
    """`python benchmarks/million.py`."""
    last, adds = data["points"][-1], [each["add_seconds"] for each in data["points"]]
    return {
        "transitions": f"{last['transitions']:,}",
        "resident": size(last["rss_bytes"]),
        "sb3": size(data["sb3_bytes"]),
        "ratio": f"{data['sample_256']['ratio']:.2f}",
        "small": f"{data['sample_256']['small_transitions']:,}",
        "add-first": seconds(adds[0]),
        "add-last": seconds(adds[-1]),
    }


def training(data: Data) -> dict[str, str]:
    """`python benchmarks/training.py`."""
    rows = (
        [
            each["algorithm"].upper(),
            f"{each['steps']:,}",
            named(each["subject"]),
            with_unit(median(each["seconds"]), 1, "s"),
            with_unit(each["median_ratio"], 3, "x"),
            f"{min(each['ratios']):.2f} to {max(each['ratios']):.2f}",
            with_unit(each["median_ratio_of_turns"], 3, "x"),
            f"{median(each['faults']):,.0f}",
            "the same" if each["same_weights"] else "other",
        ]
        for each in data["rows"]
    )
    header = ["Pong", "steps", "buffer", "wall clock", "ratio", "of the repeats", "by turn", "page faults", "weights"]
    repeats = {each["algorithm"].upper(): len(each["seconds"]) for each in data["rows"]}
    note = (
        f"`{data['about']['command']}` wrote these figures to `benchmarks/results/training.json` ({machine(data)}). "
        "Each training is a process of its own, one is busy at a time, and they take turns with the"
        f" same work in each; medians ({', '.join(f'{name} {n}' for name, n in repeats.items())} repeats). `SB3, again`"
        " shows the noise; `SB3, malloc as with ours` has the same settings of malloc by environment variables."
    )
    ratios = {each["algorithm"]: each["median_ratio"] for each in data["rows"] if each["subject"] == "ours:auto"}
    return {
        "table": table(header, rows) + note + "\n\n",
        **{algorithm: with_unit(ratio, 2, "x") for algorithm, ratio in ratios.items()},
    }


def checkpoint(data: Data) -> dict[str, str]:
    """`python benchmarks/checkpoint.py`."""
    first, later, pickled = data["first"], data["later"], data["pickle"]
    again = f"{later['seconds']:.3f} ({share(data['later_to_first'])})"
    rows = [
        ["first save", f"{first['seconds']:.2f}", size(first["file_bytes"]), size(first["memory"])],
        [f"after {data['more']:,} more", again, size(later["written_bytes"]), size(later["memory"])],
        [
            "`pickle`, while another thread runs",
            f"{pickled['seconds']:.2f}",
            size(pickled["file_bytes"]),
            size(pickled["memory"]),
        ],
        ["load", f"{data['load_seconds']:.2f}", "", ""],
    ]
    return {
        "table": table(["", "seconds", "written", "extra memory"], rows),
        "transitions": f"{data['transitions']:,}",
        "sb3": size(data["sb3_bytes"]),
        "machine": machine(data),
    }


def soak(data: Data) -> dict[str, str]:
    """`make soak`."""
    fuzz = data["fuzz"]
    return {
        "kills": f"{data['kills']['kills']:,} kills",
        "full-disks": f"{data['full_disks']['refused']:,} of {data['full_disks']['saves']:,} saves refused",
        "damage": f"{data['flips']['cases']:,} files",
        "forgeries": f"{data['forgeries']['cases']:,} files",
        "fuzz": f"{fuzz['cases']:,} payloads for {len(fuzz['decoded, refused'])} decoders",
        "spill": f"{size(data['spill']['bytes added'])} with a limit of {size(data['spill']['max_bytes'])}",
        "threads": f"{data['threads']['adds']:,} adds, {data['threads']['samples']:,} samples, "
        f"{data['threads']['saves']:,} saves",
    }


def records(data: Data) -> dict[str, str]:
    """`python benchmarks/records.py`."""
    names = list(dict.fromkeys(each["recording"] for each in data["rows"]))
    methods = list(dict.fromkeys(each["method"] for each in data["rows"]))
    by = {(each["recording"], each["method"]): each for each in data["rows"]}
    rows = []
    for name in names:
        first = by[name, methods[0]]
        frame = " x ".join(map(str, first["frame"]))
        shares = (share(by[name, method]["share"]) for method in methods)
        rows.append([f"{name}, {frame}", size(first["raw_bytes"]), *shares])
    return {
        "table": table(["frames", "raw", *(f"`{method}`" for method in methods)], rows),
        "steps": f"{data['rows'][0]['steps']:,}",
        "exact": "Every frame was compared with what had been recorded."
        if all(each["exact"] for each in data["rows"])
        else "NOT EXACT",
        "machine": machine(data),
    }


def doom(data: Data) -> dict[str, str]:
    """`python benchmarks/doom.py`."""
    by = {(each["subject"], each["kind"]): each for each in data["rows"]}
    rows = []
    for subject in dict.fromkeys(each["subject"] for each in data["rows"]):
        cells = [named(subject)]
        for kind in ("labels", "rgb"):
            each = by.get((subject, kind))
            cells += [size(each["owned"]), share(each["share"]), size(each["grew"])] if each else ["", "", ""]
        rows.append(cells)
    header = ["buffer", "masks", "share", "process grew by", "RGB", "share", "process grew by"]
    return {"table": table(header, rows), "transitions": f"{data['transitions']:,}", "machine": machine(data)}


def learning(data: Data) -> dict[str, str]:
    """`python benchmarks/learning.py`."""
    lines = [f"{each['algorithm'].upper()} {each['buffer']:24} {each['report']}" for each in data["rows"]]
    pairs = list(zip(data["rows"][::2], data["rows"][1::2], strict=True))
    same = all(sb3[part] == ours[part] for sb3, ours in pairs for part in ("curve", "weights", "returns"))
    return {
        "reports": "\n\n```text\n" + "\n".join(lines) + "\n```\n\n",
        "same": "every episode of the training has the same return, the weights at the end are the same, and so is the"
        " evaluation"
        if same
        else "THEY DIFFER",
    }


def gpu(data: Data) -> dict[str, str]:
    """`make bench-gpu`."""
    about, mem, decode, add = data["about"], data["memory"], data["decode"], data["add"]
    versions = about["versions"]
    samples, minima = (
        [
            [
                f"{each['batch']:,}",
                *(with_unit(each[f"{name}_{ms}"], 2, "ms") for name in ("delta", "none", "bare")),
                with_unit(each[f"sb3_{ms}"], 2, "ms") if f"sb3_{ms}" in each else "",
                *(times(each[f"delta_{ms}"] / each[f"{name}_{ms}"]) for name in ("none", "bare")),
                times(each[f"sb3_{ms}"] / each[f"delta_{ms}"]) if f"sb3_{ms}" in each else "",
            ]
            for each in data["sample"]
        ]
        for ms in ("ms", "ms_of_minima")
    )
    short = [
        [
            f"{each['batch']:,}",
            with_unit(each["delta_ms"], 2, "ms"),
            with_unit(each["none_ms"], 2, "ms"),
            with_unit(each["sb3_ms"], 2, "ms") if "sb3_ms" in each else "not measured",
        ]
        for each in data["sample"]
    ]
    trainings = [
        [
            name,
            with_unit(each["sb3_steps_per_s"], 0, "steps/s"),
            with_unit(each["ours_steps_per_s"], 0, "steps/s"),
            times(each["speed_up"]),
            "the same" if each["same_weights"] else "other",
        ]
        for name, each in data.get("training", {}).items()
    ]
    speed, copying = (with_unit(decode[name], 0, "GB/s") for name in ("decode_gb_per_s", "copy_gb_per_s"))
    ours_add, sb3_add = (with_unit(add[name], 0, "us") for name in ("delta_us", "sb3_us"))
    waits = add["waits_for_the_device"]
    rows = [
        [
            f"device memory of {mem['transitions']:,} transitions",
            f"{size(mem['allocated_bytes'])}, {share(mem['share_of_dense'])} of dense; "
            f"{share(mem['heap_slack_share'])} of the heap is allocated ahead",
        ],
        ["host memory beside it", size(mem["host_bytes"])],
        [
            "decode kernel",
            f"{speed} of output, {share(decode['decode_over_copy'])} of a copy of the same tensor ({copying})",
        ],
        [
            "`add` of a 4-env step",
            f"{ours_add}, {times(add['delta_over_sb3'])} SB3's {sb3_add}; "
            + (f"waits for the device {waits} times" if waits else "never waits for the device"),
        ],
    ]
    others = {name: one for name, one in data.get("nvcomp", {}).items() if isinstance(one, dict) and "ms" in one}
    ours = others.pop("delta, keys and tables included", None)
    if ours and others:
        fastest = min(others, key=lambda name: others[name]["ms"])
        smallest = min(others, key=lambda name: others[name]["share_of_raw"])
        rows.append(
            [
                "2,048 frames decoded",
                f"{with_unit(ours['ms'], 3, 'ms')} at {share(ours['share_of_raw'])} of raw, keys and tables included; "
                f"nvCOMP's fastest ({fastest}) {with_unit(others[fastest]['ms'], 1, 'ms')}, its smallest ({smallest}) "
                f"{share(others[smallest]['share_of_raw'])}",
            ]
        )
    header = ["sample of", "`delta`", "`none`", "bare `tensor[i, e]`", "SB3 to the GPU"]
    header += ["`delta` : `none`", "`delta` : bare", "SB3 : `delta`"]
    return {
        "short": table(["sample of", "ours, `delta`", "ours, `none` (dense)", "SB3, to the GPU"], short),
        "samples": table(header, samples),
        "minima": table(header, minima),
        "rest": table(["", ""], rows),
        "training": table(["recorded Pong", "SB3's buffer", "ours", "speed", "weights"], trainings),
        "share": share(mem["share_of_dense"]),
        "memory": size(mem["allocated_bytes"]),
        "dense": size(mem["dense_bytes"]),
        "memory-transitions": f"{mem['transitions']:,}",
        "device": about["device"],
        "versions": f"torch {versions['torch']} for CUDA {about.get('cuda')}, Triton {about.get('triton')}, "
        f"Python {about['python'].rpartition('.')[0]}",
    }


def distributed(data: Data) -> dict[str, str]:
    """`python benchmarks/distributed.py`."""
    wire, speed, run, chaos = (data[part] for part in ("wire", "throughput", "run", "chaos"))
    shards = [name for name in wire if name.endswith("shards")]
    most, processor = wire[shards[-1]], speed[shards[-1]]["processor"]
    measures = ["add", "sample 32", "sample 256"]
    kills = ", ".join(f"{chaos[f'killed_{kind}']} {kind}" for kind in ("shards", "collectors", "nodes"))
    rate = run["transitions_per_second"] / run["collectors"]
    inserts, raw = 100 * rate, wire["raw_bytes"]
    in_shards = inserts * 1e-6 * (processor["add, shards"] + 8 * processor["sample 32, shards"])

    def per_second(n_bytes: float) -> str:
        return with_unit(n_bytes / 1e6, 1 if n_bytes < 1e8 else 0, "MB/s")

    predicted = [run["transitions"] * most[name] for name in ("sent_bytes", "stored_bytes")]
    measured = run["sent_bytes"], run["stored_bytes"]
    return {
        "wire": table(
            ["", "sent", "sampled", "kept in the shards"],
            (
                [name.replace("1 shards", "1 shard")]
                + [
                    f"{share(wire[name][f'{way}_percent'] / 100)}, {wire[name][f'{way}_bytes']:.0f} bytes"
                    for way in ("sent", "received", "stored")
                ]
                for name in shards
            ),
        ),
        "speed": table(
            ["", "add", "`sample(32)`", "`sample(256)`", "processor, add", "processor, `sample(32)`"],
            (
                [name.replace("1 shards", "1 shard"), *(f"{speed[name][measure]:.0f}" for measure in measures)]
                + [
                    f"{used[f'{measure}, here']:.0f} here"
                    + ("" if name == "local" else f" + {used[f'{measure}, shards']:.0f} in shards")
                    for measure in measures[:2]
                ]
                for name in ("local", *shards)
                for used in [speed[name]["processor"]]
            ),
        ),
        "rounds": str(speed["rounds"]),
        "machine": machine(speed),
        "rate": f"{rate:,.0f} transitions a second",
        "run": f"{run['transitions']:,} transitions of {run['collectors']} collectors on {run['shards']} shards",
        "arithmetic": table(
            ["", "compressed", "as SB3 holds it"],
            [
                ["inserts", f"{inserts:,.0f} transitions a second", ""],
                ["to the shards, all together", per_second(inserts * most["sent_bytes"]), per_second(inserts * raw)],
                [
                    "to the learner",
                    per_second(8 * inserts * most["received_bytes"]),
                    per_second(8 * inserts * raw),
                ],
                ["kept by each shard", size(1e8 / 16 * most["stored_bytes"]), size(1e8 / 16 * raw)],
                ["processors that the shards need", f"{in_shards:.0f} in all, {in_shards / 16:.1f} each", ""],
            ],
        ),
        "check": table(
            ["", "computed", "measured"],
            [
                *(
                    [name, size(a), f"{size(b)} ({with_unit(100 * b / a, 0, '%')})"]
                    for name, a, b in zip(
                        ("sent to the shards", "kept by the shards"), predicted, measured, strict=True
                    )
                ),
                ["processes of the shards grew by", "", size(sum(run["resident_growth_of_each_shard"]))],
            ],
        ),
        "chaos-time": with_unit(chaos["seconds"] / 60, 1, "minutes"),
        "chaos-kills": f"{kills} were killed",
        "chaos-checked": f"{chaos['checked_samples']:,}",
        "chaos-reported": f"{chaos['lost_reported']:,} of {chaos['stored']:,}",
        "chaos-measured": f"{chaos['lost_measured']:,}",
        "chaos-unheard": f"{chaos['stored_unheard']:,}",
        "chaos-unheard-lost": f"{chaos['lost_unheard']:,}",
        "chaos-journal": f"{chaos['stored_by_journal_alone']:,}",
        "chaos-wait": with_unit(chaos["longest_wait_seconds"], 1, "s"),
    }


FILES: dict[str, Callable[[Data], dict[str, str]]] = {
    make.__name__: make
    for make in (quick, limits, memory, million, training, checkpoint, soak, records, doom, learning, gpu, distributed)
} | {"pictures": scenes}


# Pages and pictures


def load(file: str) -> Data | None:
    path = RESULTS / f"{file}.json"
    return json.loads(path.read_text()) if path.exists() else None


def figures() -> dict[str, dict[str, str]]:
    """Return `{file: {name: text}}` of the results files that are there."""
    return {file: make(data) for file, make in FILES.items() if (data := load(file)) is not None}


def filled(page: str, known: dict[str, dict[str, str]]) -> str:
    """Return the text of a page with the figures of today.

    Raises:
        ValueError: there is no such figure.
    """

    def write(match: re.Match[str]) -> str:
        start, file, name, _, end = match.groups()
        if file not in FILES:
            raise ValueError(f"no figures of {file!r}; known: {', '.join(FILES)}")
        if file not in known:
            return start + end
        if name not in known[file]:
            raise ValueError(f"no figure {file}.{name}; known: {', '.join(known[file])}")
        return start + known[file][name] + end

    return REGION.sub(write, page)


def pictures() -> dict[Path, tuple[str, Callable[[], Any]]]:
    """Return, for each plot, the digest of what it has to show, and how to draw it."""
    found: dict[Path, tuple[str, Callable[[], Any]]] = {}
    for file in TABLES:
        if (data := load(file)) is None:
            continue
        import plot

        recordings = data["recordings"]
        for name in dict.fromkeys(each["name"] for each in recordings):
            shown = report.digest(plot.shown(recordings, name))
            draw = functools.partial(plot.draw, recordings, name, RESULTS / file)
            found[RESULTS / f"{file}-{name}.png"] = shown, draw
    if (data := load("learning")) is not None:
        rows, env = data["rows"], data["env"]
        path = ROOT / "docs" / "images" / "learning.png"

        def draw_curves() -> None:
            import learning as curves

            curves.plot(rows, env, path)

        found[path] = report.digest([[each["buffer"], each["curve"]] for each in rows]), draw_curves
    return found


def digest_in(path: Path) -> str | None:
    """Return the digest that was written into a picture when it was drawn."""
    from PIL import Image

    if not path.exists():
        return None
    with Image.open(path) as picture:
        return str(picture.info.get("Description"))


def outdated() -> dict[Path, Callable[[], Any]]:
    """Return every file that differs from the results, with what brings it up to date."""
    found: dict[Path, Callable[[], Any]] = {}
    known = figures()
    for page in PAGES:
        before = page.read_text()
        after = filled(before, known)
        if before != after:
            found[page] = lambda page=page, after=after: report.replace(page, after)
    for file in TABLES:
        if (data := load(file)) is not None:
            path, text = RESULTS / f"{file}.txt", report.text(data["recordings"])
            if not path.exists() or path.read_text() != text:
                found[path] = functools.partial(report.replace, path, text)
    for picture, (digest, draw) in pictures().items():
        if digest_in(picture) != digest:
            found[picture] = draw
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if something is out of date")
    options = parser.parse_args()
    found = outdated()
    for path, update in found.items():
        if not options.check:
            update()
        print(f"{'Out of date' if options.check else 'Written'}: {path.relative_to(ROOT)}")
    return 1 if found and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
