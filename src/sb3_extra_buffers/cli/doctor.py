"""What is installed, what it is good for, what is missing, and whether buffers work here."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import sb3_extra_buffers
from sb3_extra_buffers.codecs import optional

State = Literal["ok", "missing", "broken", "none"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        group: heading that it is shown under.
        name: what it is.
        state: `ok`; `missing`: not installed; `broken`: installed, but does not work; `none`: not on this machine.
        version: or what there is.
        use: what it is good for.
        fix: the command that installs it, or what is wrong.
        essential: nothing works without it.
    """

    group: str
    name: str
    state: State
    version: str
    use: str
    fix: str = ""
    essential: bool = False


# Distribution, module, what it is good for, the extra that installs it.
_REQUIRED = [
    ("numpy", "numpy", "arrays"),
    ("gymnasium", "gymnasium", "spaces"),
    ("torch", "torch", "tensors"),
    ("stable-baselines3", "stable_baselines3", "the buffers that ours extend"),
]
_CODECS = [
    ("numba", "numba", "compiled kernels: delta and the frame store are several times as fast, rle-jit", "numba"),
    ("zstandard", "zstandard", "zstd; auto takes it for pictures that delta does not suit", "zstd"),
    ("lz4", "lz4.block", "lz4-frame, lz4-block", "lz4"),
    ("isal", "isal.igzip", "igzip; faster checksums of saved files", "isal"),
]
_TOOLS = [  # not imported: some say so on the terminal
    ("sb3-contrib", "sb3_contrib", "maskable and recurrent buffers", "contrib"),
    ("ray", "ray", "a replay buffer on several machines", "ray"),
    ("ale-py", "ale_py", "Atari games", "atari"),
    ("vizdoom", "vizdoom", "ViZDoom scenarios", "vizdoom"),
    ("pillow", "PIL", "GIF of records", "video"),
    ("imageio-ffmpeg", "imageio_ffmpeg", "MP4 of records", "video"),
    ("tqdm", "tqdm", "progress bars", "extra"),
    ("matplotlib", "matplotlib", "bench --plot", "extra"),
]


def examine() -> list[Finding]:
    """Return everything that was found, by group."""
    found = [_library("required", *each, "", essential=True) for each in _REQUIRED]
    complete = usable(found)
    found += [_library("speed and codecs", *each) for each in _CODECS]
    if complete:
        found += [_gpu(), _triton()]
    found += [_library("tools", *each, load=False) for each in _TOOLS]
    if complete:
        found += [_tried("a buffer is filled and sampled", _fill_and_sample)]
    return found


def usable(found: list[Finding]) -> bool:
    """Tell whether buffers work."""
    return all(each.state == "ok" for each in found if each.essential)


def _library(
    group: str, name: str, module: str, use: str, extra: str, *, essential: bool = False, load: bool = True
) -> Finding:
    """Look for a library, and load it as buffers would: one that is there and does not load breaks them."""
    install = f'pip install "sb3-extra-buffers[{extra}]"' if extra else f"pip install {name}"
    if not optional.has(module.partition(".")[0]):
        return Finding(group, name, "missing", "", use, install, essential)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if load:
                importlib.import_module(module)
    except Exception as error:  # whatever a library that does not suit the others raises
        return Finding(group, name, "broken", _version(name), use, f"{type(error).__name__}: {error}", essential)
    return Finding(group, name, "ok", _version(name), use, "", essential)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _gpu() -> Finding:
    import torch

    use = "gpu_buffers on a device; on the CPU they work, too"
    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(0)
        more = f" and {torch.cuda.device_count() - 1} more" if torch.cuda.device_count() > 1 else ""
        return Finding("device", "GPU", "ok", f"{device.name}, {device.total_memory / 1e9:.0f} GB{more}", use)
    if torch.backends.mps.is_available():
        return Finding("device", "GPU", "ok", "MPS", use)
    seen = "torch sees none" if torch.version.cuda else f"torch {torch.__version__} is built without CUDA"
    return Finding("device", "GPU", "none", "", use, seen)


def _triton() -> Finding:
    """Look for Triton: without CUDA nobody needs it."""
    import torch

    found = _library("device", "triton", "triton", "kernels of gpu_buffers on CUDA", "")
    if found.state == "ok" or torch.cuda.is_available():
        return found
    return Finding("device", "triton", "none", found.version, found.use, "needed with CUDA only")


def _tried(name: str, work: Callable[[], str]) -> Finding:
    try:
        return Finding("buffers", name, "ok", work(), "", essential=True)
    except Exception as error:  # whatever it is, it is the answer
        return Finding("buffers", name, "broken", "", "", f"{type(error).__name__}: {error}", essential=True)


def _fill_and_sample() -> str:
    """Put a few transitions into SB3's buffer and ours: samples must be equal."""
    import numpy as np
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer

    from sb3_extra_buffers.compressed import CompressedReplayBuffer

    frames = (np.arange(44 * 30 * 30).reshape(44, 30, 30) // 97 % 5).astype(np.uint8)
    common: tuple[Any, ...] = (40, spaces.Box(0, 255, (4, 30, 30), np.uint8), spaces.Discrete(2), "cpu")
    ours, theirs = CompressedReplayBuffer(*common), ReplayBuffer(*common)
    for t in range(40):
        for buffer in (ours, theirs):
            obs, next_obs = frames[None, t : t + 4], frames[None, t + 1 : t + 5]
            buffer.add(obs, next_obs, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
    state = np.random.get_state()  # what a caller's seed says should go on
    try:
        np.random.seed(0)
        mine = ours.sample(32)
        np.random.seed(0)
        wanted = theirs.sample(32)
    finally:
        np.random.set_state(state)
    if not (mine.observations.equal(wanted.observations) and mine.next_observations.equal(wanted.next_observations)):
        raise RuntimeError("samples differ from those of SB3")
    return f"as by SB3's, with {ours.memory_usage().method}"


def report(found: list[Finding], width: int = 100) -> str:
    """Return the findings for a terminal of `width` columns."""
    lines = [f"sb3-extra-buffers {sb3_extra_buffers.__version__}, Python {platform.python_version()}, {_machine()}"]
    widest = max(len(each.name) for each in found if each.group != "buffers")
    for group in dict.fromkeys(each.group for each in found):
        lines += ["", group]
        for each in (each for each in found if each.group == group):
            head = f"  {each.name.ljust(widest)}  {each.state.ljust(7)}  "
            lines += _wrapped(", ".join(part for part in (each.version, each.use) if part), head, width)
            lines += _wrapped(each.fix, " " * 6, width)
    return "\n".join([*lines, "", *_conclusion(found)])


def _wrapped(text: str, head: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        max(width, len(head) + 20),
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _machine() -> str:
    return f"{platform.system()} {platform.machine()}"


def _conclusion(found: list[Finding]) -> list[str]:
    if not usable(found):
        wrong = [each.name for each in found if each.essential and each.state != "ok"]
        return [f"Not usable: {', '.join(wrong)}."]
    broken = [each.name for each in found if each.state == "broken"]
    if broken:
        return [f"Usable, without what is broken: {', '.join(broken)}."]
    missing = [each.name for each in found if each.group == "speed and codecs" and each.state == "missing"]
    if missing:
        return ["Usable. To have all that makes it fast:", '  pip install "sb3-extra-buffers[fast]"']
    return ["Usable, and all that makes it fast is there."]


def as_json(found: list[Finding]) -> dict[str, Any]:
    """Return the findings as a document."""
    return {
        "version": sb3_extra_buffers.__version__,
        "python": platform.python_version(),
        "machine": _machine(),
        "usable": usable(found),
        "found": [asdict(each) for each in found],
    }
