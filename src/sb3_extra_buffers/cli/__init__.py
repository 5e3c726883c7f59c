"""The command line: `python -m sb3_extra_buffers bench`, `recommend`, `inspect`, `doctor`."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sb3_extra_buffers.cli.measure import Figures

_ME = "python -m sb3_extra_buffers"
_EXAMPLES = f"""examples:
  {_ME} recommend --env PongNoFrameskip-v4
  {_ME} bench --env CarRacing-v3 --plot methods.png
  {_ME} inspect pong.buffer --frames
  {_ME} doctor

exit codes: 0 done; 1 doctor found that buffers do not work here;
2 the command cannot be run like that, or the file cannot be read
"""
_BENCH = f"""examples:
  {_ME} bench --env PongNoFrameskip-v4
  {_ME} bench --env CarRacing-v3 --plot methods.png
  {_ME} bench --env my_module:Env-v0 --methods zstd3 --json
"""
_RECOMMEND = f"""examples:
  {_ME} recommend --env ALE/MsPacman-v5
  {_ME} recommend --env VizdoomBasic-v1 --envs 2
  {_ME} recommend --env HalfCheetah-v5 --steps 500 --json
"""
_INSPECT = f"""examples:
  {_ME} inspect pong.buffer
  {_ME} inspect pong.buffer --frames    # pong.buffer.png
  {_ME} inspect pong.buffer --frames sheet.png
  {_ME} inspect pong.record --json

FILE is what buffer.save, CompressedArray.save or a record buffer's save
wrote. Nothing in it is executed, and every byte of it is verified.
"""
_DOCTOR = f"""examples:
  {_ME} doctor
  {_ME} doctor --json
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code.

    0: done. 1: `doctor` found that buffers do not work here. 2: the command cannot be run like that, or a file is
    missing, damaged or something else. 130: interrupted.
    """
    args = _parser().parse_args(arguments)
    try:
        code: int = args.run(args)
    except OSError as error:
        return _failed(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    except (ImportError, ValueError, TypeError, MemoryError) as error:
        return _failed(str(error) or "out of memory")
    except KeyboardInterrupt:
        return 130
    return code


def _failed(problem: str) -> int:
    print(f"error: {_printable(problem)}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_ME,
        description="Compressed replay and rollout buffers for Stable-Baselines3.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text, examples in (
        ("bench", "measure compression methods on an env: memory, time to add, time to sample", _BENCH),
        ("recommend", "name the method for an env, with its figures", _RECOMMEND),
    ):
        command = _command(commands, name, text, examples)
        command.set_defaults(run=_measure)
        command.add_argument("--env", required=True, help="Gymnasium id, such as PongNoFrameskip-v4 or module:Id-v0")
        command.add_argument("--envs", type=int, default=4, help="envs side by side (default 4)")
        command.add_argument("--stack", type=int, help="frames in an observation (default: 4 for Atari, else 1)")
        command.add_argument("--steps", type=int, default=1500, help="steps of all envs to record (default 1500)")
        command.add_argument("--batch", type=int, default=256, help="transitions in a sampled batch (default 256)")
        command.add_argument("--methods", nargs="+", help="compression methods (default: one or two of each family)")
        command.add_argument("--seed", type=int, default=0, help="of the env, actions and samples (default 0)")
        command.add_argument("--json", action="store_true", help="print the figures as JSON")
        if name == "bench":
            command.add_argument("--plot", type=Path, help="draw memory against sampling time into this file")
    text = "show what is in a saved buffer: spaces, sizes, ratio, episodes, frames"
    command = _command(commands, "inspect", text, _INSPECT)
    command.set_defaults(run=_inspect)
    command.add_argument("file", type=Path, metavar="FILE", help="a saved buffer, array or record")
    command.add_argument(
        "--frames",
        nargs="?",
        const="",
        metavar="PNG",
        help="draw frames spread over the buffer into this file (default FILE.png)",
    )
    command.add_argument("--json", action="store_true", help="print it as JSON")
    command = _command(
        commands, "doctor", "say which codecs, compilers and devices are there, and what to install", _DOCTOR
    )
    command.set_defaults(run=_doctor)
    command.add_argument("--json", action="store_true", help="print it as JSON")
    return parser


def _command(commands: Any, name: str, text: str, examples: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return command


def _measure(args: argparse.Namespace) -> int:
    """Run `bench` or `recommend`."""
    from sb3_extra_buffers.cli import measure, report  # here, so that --help needs no SB3

    figures = _measured(args)
    width = _columns()
    if args.json:
        best, known = report.recommended(figures).method, [each._asdict() for each in figures]
        arguments = measure.arguments_of(best)
        _print_json(
            {"env": args.env, "recommended": best, "arguments": arguments, "rule": report.RULE, "figures": known}
        )
    elif args.command == "bench":
        print(report.table(figures, args.batch, width))
    if args.command == "bench" and args.plot:
        report.plot(figures, args.batch, args.env, args.plot)
        print(f"Written: {args.plot}", file=sys.stderr if args.json else sys.stdout)
    if not args.json:
        print(report.advice(figures, width))
    return 0


def _measured(args: argparse.Namespace) -> list[Figures]:
    from sb3_extra_buffers.cli import envs, measure

    for name in ("envs", "steps", "batch"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} is at least 1, not {getattr(args, name)}")
    measure.check_methods(args.methods or ())
    env = envs.open_env(args.env, args.envs, args.stack, args.seed)
    try:
        methods = args.methods or measure.usual_methods(env.observation_space)
        return measure.measure(env, methods, steps=args.steps, batch_size=args.batch, seed=args.seed)
    finally:
        env.close()


def _inspect(args: argparse.Namespace) -> int:
    from sb3_extra_buffers.cli import contents, pictures, saved

    found = saved.read(args.file)
    drawn = None
    if args.frames is not None:
        drawn = Path(args.frames) if args.frames else args.file.with_name(f"{args.file.name}.png")
        if drawn.suffix.lower() != ".png":
            raise ValueError(f"--frames writes a PNG file; got {drawn.name!r}")
        pictures.write_png(drawn, saved.contact_sheet(found, args.file))
    if args.json:
        _print_json(contents.as_json(found, args.file, drawn))
    else:
        print(_printable(contents.report(found, args.file, drawn, _columns())))
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from sb3_extra_buffers.cli import doctor

    found = doctor.examine()
    if args.json:
        _print_json(doctor.as_json(found))
    else:
        print(doctor.report(found, _columns()))
    return 0 if doctor.usable(found) else 1


def _columns() -> int:
    return max(40, min(shutil.get_terminal_size((100, 24)).columns, 100))


def _print_json(document: Any) -> None:
    print(json.dumps(document, indent=2))


def _printable(text: str) -> str:
    """Return `text` without characters that steer a terminal: names in a file may hold any."""
    return "".join(one if one.isprintable() or one == "\n" else "?" for one in text)
