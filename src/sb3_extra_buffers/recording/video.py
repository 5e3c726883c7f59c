"""Frames as GIF (Pillow) and MP4 (ffmpeg). One frame in, one frame out: equal frames are not merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from subprocess import PIPE, Popen
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from sb3_extra_buffers.codecs import optional
from sb3_extra_buffers.recording.files import replacing

Image = NDArray[np.uint8]  # [height, width] grey, or [height, width, 3]


def write(path: Path, frames: Iterable[NDArray[Any]], n: int, fps: float, scale: int) -> int:
    """Write `n` frames `[channels, height, width]`; see `BaseRecordBuffer.export`."""
    writers = {".gif": _write_gif, ".mp4": _write_mp4}
    if path.suffix.lower() not in writers:
        raise ValueError(f"videos end in {' or '.join(writers)}; got {path.name!r}")
    if n < 1:
        raise ValueError("the span holds no frames")
    if not fps > 0 or scale < 1:
        raise ValueError(f"fps is above 0 and scale at least 1; got fps={fps}, scale={scale}")
    images = (as_image(frame, scale) for frame in frames)
    with replacing(path) as partial:
        writers[path.suffix.lower()](partial, next(images), images, fps)
    return n


def as_image(frame: NDArray[Any], scale: int = 1) -> Image:
    """Return the picture of a frame `[channels, height, width]`: its last three channels as RGB, or its last one.

    Raises:
        ValueError: values that are not uint8 or bool.
    """
    if frame.dtype == np.bool_:
        frame = frame * np.uint8(255)
    if frame.dtype != np.uint8:
        raise ValueError(f"videos are made of uint8 frames, not {frame.dtype}")
    image = np.moveaxis(frame[-3:], 0, -1) if len(frame) % 3 == 0 else frame[-1]
    return np.ascontiguousarray(image.repeat(scale, axis=0).repeat(scale, axis=1))


def _write_gif(path: Path, first: Image, others: Iterator[Image], fps: float) -> None:
    # Frame by frame: `Image.save(save_all=True)` leaves out a frame that equals the one before.
    gif = optional.require("PIL.GifImagePlugin", "GIF", "video")
    duration = max(round(100 / fps), 2) * 10  # milliseconds; viewers play less than 2/100 s as 10/100 s
    with path.open("wb") as file:
        for part in gif.getheader(_with_palette(first), info={"loop": 0, "duration": duration})[0]:
            file.write(part)
        for image in chain([first], others):
            for part in gif.getdata(_with_palette(image), duration=duration, include_color_table=True):
                file.write(part)
        file.write(b";")


def _with_palette(image: Image) -> Any:
    """Return a Pillow image of at most 256 colours: exactly those of `image`, if it has no more."""
    pillow = optional.require("PIL.Image", "GIF", "video")
    rgb = np.broadcast_to(image[..., None], (*image.shape[:2], 3)) if image.ndim == 2 else image
    packed = (rgb.astype(np.uint32) << np.array([16, 8, 0], np.uint32)).sum(axis=-1, dtype=np.uint32)
    colours, indices = np.unique(packed, return_inverse=True)
    if len(colours) > 256:
        return pillow.fromarray(np.ascontiguousarray(rgb)).quantize(256)
    picture = pillow.fromarray(indices.reshape(packed.shape).astype(np.uint8), "P")
    picture.putpalette(np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=-1).astype(np.uint8).tobytes())
    return picture


def _write_mp4(path: Path, first: Image, others: Iterator[Image], fps: float) -> None:
    ffmpeg = optional.require("imageio_ffmpeg", "MP4", "video").get_ffmpeg_exe()
    height, width = (n + n % 2 for n in first.shape[:2])  # the pixel format that plays everywhere halves both
    pixels = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(fps), "-i", "-"]
    coded = ["-c:v", "libx264", "-crf", "18", "-pix_fmt", "yuv420p", "-movflags", "+faststart"]
    command = [ffmpeg, "-y", "-loglevel", "error", *pixels, *coded, str(path)]
    with Popen(command, stdin=PIPE, stderr=PIPE) as process:
        frames_in, problems_out = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stderr)
        with suppress(BrokenPipeError):  # ffmpeg has given up: it says why
            for image in chain([first], others):
                rgb = np.broadcast_to(image[..., None], (*image.shape[:2], 3)) if image.ndim == 2 else image
                more = ((0, height - rgb.shape[0]), (0, width - rgb.shape[1]), (0, 0))
                frames_in.write(np.pad(rgb, more, mode="edge").tobytes())
            frames_in.close()
        problem = problems_out.read().decode(errors="replace").strip()
    if process.returncode:
        raise RuntimeError(f"ffmpeg could not write the video: {problem}")
