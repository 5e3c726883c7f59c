"""The command line: `python -m sb3_extra_buffers bench --env <id>`, `... recommend --env <id>`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sb3_extra_buffers.cli.measure import Figures

_EXAMPLES = """examples:
  python -m sb3_extra_buffers recommend --env PongNoFrameskip-v4
  python -m sb3_extra_buffers bench --env CarRacing-v3 --stack 4 --plot methods.png
  python -m sb3_extra_buffers bench --env my_package:MyEnv-v0 --methods auto zstd3 lz4-block/1 --json
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 2 the command cannot be run like that."""
    args = _parser().parse_args(arguments)
    try:
        figures = _measured(args)
        _show(args, figures)
    except (ImportError, ValueError, TypeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sb3_extra_buffers",
        description="Compressed replay and rollout buffers for Stable-Baselines3.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("bench", "measure compression methods on an env: memory, time to add, time to sample"),
        ("recommend", "name the method for an env, with its figures"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--env", required=True, help="Gymnasium id, such as PongNoFrameskip-v4 or module:Id-v0")
        command.add_argument("--envs", type=int, default=4, help="envs side by side (default 4)")
        command.add_argument("--stack", type=int, help="frames in an observation (default: 4 for Atari, else 1)")
        command.add_argument("--steps", type=int, default=1500, help="steps of all envs to record (default 1500)")
        command.add_argument("--batch", type=int, default=256, help="transitions in a sampled batch (default 256)")
        command.add_argument("--methods", nargs="+", help="compression methods (default: one or two of each family)")
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--json", action="store_true", help="print the figures as JSON")
        if name == "bench":
            command.add_argument("--plot", type=Path, help="draw memory against sampling time into this file")
    return parser


def _measured(args: argparse.Namespace) -> list[Figures]:
    from sb3_extra_buffers.cli import envs, measure  # here, so that --help needs no SB3

    for name in ("envs", "steps", "batch"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} is at least 1, not {getattr(args, name)}")
    methods = measure.known_methods(args.methods)
    env = envs.open_env(args.env, args.envs, args.stack, args.seed)
    try:
        return measure.measure(env, methods, steps=args.steps, batch_size=args.batch, seed=args.seed)
    finally:
        env.close()


def _show(args: argparse.Namespace, figures: list[Figures]) -> None:
    from sb3_extra_buffers.cli import report

    best = report.recommended(figures)
    if args.json:
        known = [each._asdict() for each in figures]
        print(
            json.dumps({"env": args.env, "recommended": best.method, "rule": report.RULE, "figures": known}, indent=2)
        )
        return
    if args.command == "bench":
        print(report.table(figures, args.batch))
        if args.plot:
            report.plot(figures, args.batch, args.env, args.plot)
            print(f"Written: {args.plot}")
    print(report.advice(best, figures[0]))
