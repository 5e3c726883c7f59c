"""From a method string to a codec: `zstd-3` becomes `Zstd(level=-3)`, or an error that says what is allowed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from sb3_extra_buffers.codecs.base import Codec, check_settings
from sb3_extra_buffers.codecs.delta import Delta
from sb3_extra_buffers.codecs.gzip import Gzip, IGzip
from sb3_extra_buffers.codecs.interleave import Interleave
from sb3_extra_buffers.codecs.lz4 import Lz4Block, Lz4Frame
from sb3_extra_buffers.codecs.near import Near
from sb3_extra_buffers.codecs.none import NoCompression
from sb3_extra_buffers.codecs.palette import Palette
from sb3_extra_buffers.codecs.rle import Rle, RleJit
from sb3_extra_buffers.codecs.spans import Spans
from sb3_extra_buffers.codecs.zstd import Zstd

CODECS: dict[str, type[Codec]] = {
    codec.name: codec for codec in (NoCompression, Rle, RleJit, Gzip, IGzip, Zstd, Lz4Frame, Lz4Block, Delta, Near)
}
"""Every codec by its method name."""

FILTERS: tuple[type[Palette] | type[Interleave], ...] = (Palette, Interleave)
"""What may stand before a codec."""

_OF_LEVEL: dict[tuple[str, int | None], type[Codec]] = {("delta", Spans.level): Spans}  # a level of its own kind

_WITH_LEVEL = re.compile(r"^((?:[A-Za-z]+)|(?:[\w\-]+/))(\-?[0-9]+)$")


def parse_method(method: str) -> tuple[str, int | None]:
    """Split a method string into its name and level: `zstd-5` gives `("zstd", -5)`, `rle` gives `("rle", None)`.

    Raises:
        ValueError: unknown name, malformed shorthand, or a level the method does not have.
    """
    if not isinstance(method, str):
        raise TypeError(f"compression_method is a string such as 'zstd-3', not {method!r}")
    if method in CODECS:
        return method, None
    known = ", ".join(sorted([*CODECS, "auto"]))
    match = _WITH_LEVEL.fullmatch(method)
    if match is None:
        raise ValueError(
            f"unknown compression method {method!r}; known: {known} (with a level: 'zstd-3', 'igzip3', 'lz4-frame/5')"
        )
    name, level = match[1].removesuffix("/"), int(match[2])
    if name not in CODECS:
        raise ValueError(f"unknown compression method {name!r} in {method!r}; known: {known}")
    allowed = CODECS[name].levels
    if not any(level in span for span in allowed):
        spans = " and ".join(f"{span[0]}..{span[-1]}" for span in allowed) or "no levels"
        raise ValueError(f"{name} has no level {level} (from {method!r}); allowed: {spans}")
    return name, level


def get_codec(
    method: str,
    compression_kwargs: Mapping[str, Any] | None = None,
    decompression_kwargs: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Codec:
    """Return the codec that a method string names.

    Args:
        method: name, optionally with a level.
        compression_kwargs: settings of that codec, such as `dictionary_bytes` of zstd; `compresslevel` sets the level,
            `filter` puts a filter before it.
        decompression_kwargs: accepted for symmetry; no codec has any.
        **settings: settings that apply where the codec or filter has them (`item_bytes`, `runs_type`, `row_bytes`,
            `channels`, `planar`).

    Raises:
        ValueError: unknown name, level or setting.
        ImportError: the library is missing; the message holds the pip command.
    """
    if method == "auto":
        raise ValueError("'auto' is for buffers, which choose a codec from their first data: name a codec here")
    name, level = parse_method(method)
    chosen = dict(compression_kwargs or {})
    if "compresslevel" in chosen:
        level = parse_method(f"{name}/{chosen.pop('compresslevel')}")[1]
    kind = _OF_LEVEL.get((name, level), CODECS[name])
    known = [field.name for field in fields(kind)]
    own = [key for key in known if key not in ("level", "item_bytes", "row_bytes")]
    check_settings(name, chosen, [*own, "compresslevel", "filter"])
    check_settings(f"{name} decompression", decompression_kwargs or {}, [])
    wanted = chosen.pop("filter", None)
    applying = {key: value for key, value in settings.items() if key in known}
    codec = kind.from_level(level, **{**applying, **chosen})
    return codec if wanted is None else _filtered(wanted, codec, settings)


def likely_channels(name: str, channels: int, stack: int) -> int:
    """Return for how many channels of a frame to open a filter, where it is not known yet how frames are stacked.

    Args:
        name: of the filter.
        channels: of a frame, if there were `stack` frames.
        stack: as it seems.
    """
    total = channels * stack
    kind = {kind.name: kind for kind in FILTERS}.get(name)
    fitting = [n for n in range(total, 0, -1) if total % n == 0 and kind is not None and n in kind.sizes]
    return channels if channels in fitting or not fitting else fitting[0]


def for_channels(codec: Codec, channels: int) -> Codec:
    """Return the codec without a filter that has nothing to do for frames of so many channels."""
    return codec if not isinstance(codec, FILTERS) or channels in codec.sizes else codec.named


def _filtered(name: str, codec: Codec, settings: Mapping[str, Any]) -> Codec:
    kinds = {kind.name: kind for kind in FILTERS}
    if name not in kinds:
        raise ValueError(f"unknown filter {name!r}; known: {', '.join(kinds)}")
    known = [field.name for field in fields(kinds[name])]
    applying = {key: value for key, value in settings.items() if key in known}
    if name == Palette.name:
        return Palette.before(codec, settings.get("row_bytes", 1), **applying)
    return kinds[name](codec, **applying)
