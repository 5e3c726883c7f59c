"""Casting observations to a dtype without losing anything unasked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


def exact_cast(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return `values` as `dtype`: float spaces round as SB3 does, integer spaces take only what they can hold.

    Raises:
        TypeError: `values` are no numbers.
        ValueError: a fraction, NaN or out-of-range value for an integer or boolean `dtype`.
    """
    if values.dtype == dtype:
        return values
    if values.dtype.kind not in "biuf":
        raise TypeError(f"observations of dtype {values.dtype} do not fit a space of dtype {dtype}")
    if dtype.kind not in "biu" or np.can_cast(values.dtype, dtype, "safe"):
        return values.astype(dtype)
    low, high = (0, 1) if dtype.kind == "b" else _limits(dtype)
    source = values.astype(np.float64) if values.dtype == np.float16 else values  # float16 cannot hold the limits
    with np.errstate(invalid="ignore"):  # the comparison below finds what the cast cannot do
        cast = source.astype(dtype)
    held = (source >= low) & (source <= high) & (cast == source)
    if source.dtype.kind == "f" and dtype.kind != "b":
        held &= source < 2.0 ** (8 * dtype.itemsize - (dtype.kind == "i"))  # the limit itself rounds up to this
    if not held.all():
        wrong = values[~held].ravel()[0]
        raise ValueError(f"a space of dtype {dtype} cannot hold the observed value {wrong!r} exactly")
    return cast


def clipped_cast(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return `values` narrowed to `dtype`, clipped to its range (NaN becomes 0); fractions are cut off."""
    if dtype.kind == "b" or values.dtype.kind == "b":
        return values.astype(dtype)
    if dtype.kind == "f":
        limit = np.finfo(dtype).max
        return np.where(np.isfinite(values), np.clip(values, -limit, limit), values).astype(dtype)
    low, high = _limits(dtype)
    if values.dtype.kind == "f":
        values = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
    with np.errstate(invalid="ignore"):
        cast = values.astype(dtype)
    cast = np.where(values >= high, dtype.type(high), cast)
    return np.where(values <= low, dtype.type(low), cast)


def narrows(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Tell whether storing `source` values as `target` may lose something."""
    wide = source.kind in "iu" and source.itemsize == 8 and target.kind == "f"  # NumPy calls 2**53 + 1 safe
    return wide or not np.can_cast(source, target, "safe")


def parse_dtypes(dtypes: Mapping[str, Any] | DTypeLike | None) -> dict[str, Any]:
    """Return what the caller gave as `{"elem_type": ..., "runs_type": ...}`, both optional.

    Raises:
        ValueError: another key.
        TypeError: a dtype that holds no numbers.
    """
    if dtypes is None:
        return {}
    wanted = dict(dtypes) if isinstance(dtypes, Mapping) else {"elem_type": dtypes}
    unknown = sorted(str(key) for key in wanted.keys() - {"elem_type", "runs_type"})
    if unknown:
        raise ValueError(f"dtypes has elem_type and runs_type, not {', '.join(unknown)}")
    if wanted.get("elem_type") is not None and np.dtype(wanted["elem_type"]).kind not in "biuf":
        raise TypeError(f"observations are stored as numbers; dtypes asks for {np.dtype(wanted['elem_type'])}")
    return wanted


def checked_values(values: Any, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return `values` broadcast to `shape` and cast to `dtype` exactly; see `exact_cast`."""
    array: NDArray[Any] = np.asarray(values)
    if array.shape == shape and array.dtype == dtype:  # the usual case
        return array
    while array.ndim > len(shape) and array.shape[0] == 1:  # as NumPy's assignment does
        array = array[0]
    if array.shape != shape:
        try:
            array = np.broadcast_to(array, shape)
        except ValueError:
            raise ValueError(f"observations of shape {array.shape} do not fit {shape}") from None
    return exact_cast(array, np.dtype(dtype))


def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)
