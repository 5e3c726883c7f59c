"""Files that replace others when they are complete."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sb3_extra_buffers.frames.files import sync, sync_folder


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a file to write in the folder of `path`; it takes that name once it is complete and on the disk."""
    target = path.resolve()  # of a symbolic link, what it points to is written
    new = target.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")  # ffmpeg goes by the ending
    try:
        yield new
        with new.open("rb+") as written:
            sync(written.fileno())
        new.replace(target)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)
