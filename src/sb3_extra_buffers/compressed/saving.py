"""Buffers to files and back: what they have beyond arrays and numbers, which is spaces and devices."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import stable_baselines3
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.her.goal_selection_strategy import GoalSelectionStrategy

import sb3_extra_buffers
from sb3_extra_buffers.codecs.base import array_bytes
from sb3_extra_buffers.compressed import small
from sb3_extra_buffers.frames import checks, saving
from sb3_extra_buffers.frames.array import FrameArray
from sb3_extra_buffers.frames.heap import Budget
from sb3_extra_buffers.frames.lock import Lock
from sb3_extra_buffers.frames.observations import ObservationStore
from sb3_extra_buffers.frames.saving import Decoder, Encoder, WrongClassError
from sb3_extra_buffers.frames.spill import Spill

_KEPT_APART = ("_guard", "_stores")
_BOX = 8  # times the bytes of an observation: what gymnasium needs to make its space


def save(buffer: Any, path: str | os.PathLike[str]) -> None:
    """Save a buffer; see `CompressedObservations.save`."""
    stores: dict[str | None, ObservationStore] = buffer._stores

    def describe(encoder: Encoder) -> Any:
        attributes = {name: value for name, value in buffer._saved().items() if name not in _KEPT_APART}
        observations = {name: value for name, value in attributes.items() if _holds_frames(value)}
        return {
            "class": type(buffer).__qualname__,
            "versions": {"sb3-extra-buffers": sb3_extra_buffers.__version__, "sb3": stable_baselines3.__version__},
            "max_bytes": next((store.budget.max_bytes for store in stores.values()), None),
            "keys": list(stores),
            "attributes": {
                name: encoder.value(value, name) for name, value in attributes.items() if name not in observations
            },
            "observations": {name: encoder.value(value, name) for name, value in observations.items()},
        }

    lock, held, is_adding = buffer._lock, list(stores.values()), small.is_adding(buffer)
    saving.save(path, lock, held, describe, encode, array_bytes(buffer), is_adding)


def load(cls: type[Any], path: str | os.PathLike[str], spill: Spill | None = None) -> Any:
    """Return a buffer that was saved; see `CompressedObservations.load`."""
    with saving.loading(path, decode) as (document, decoder, finish):
        content = document["content"]
        if content["class"] != cls.__qualname__:
            raise WrongClassError(f"{os.fspath(path)} holds a {content['class']}, not a {cls.__qualname__}")
        buffer = object.__new__(cls)
        attributes = {name: decoder.value(value) for name, value in content["attributes"].items()}
        lock, budget = Lock(), Budget(content["max_bytes"])
        buffer._restore({**attributes, "_guard": lock, "_stores": {}})

        def opened(*args: Any, **settings: Any) -> ObservationStore:
            settings |= {} if spill is None else {"spill": spill}
            store: ObservationStore = buffer._open_store(*args, budget=budget, lock=lock, **settings)
            return store

        for saved in document["stores"]:
            decoder.store(saved, opened)
        buffer._stores.update(zip(content["keys"], decoder.stores, strict=True))
        vars(buffer).update({name: decoder.value(value) for name, value in content["observations"].items()})
        finish(lock)
        buffer._loaded()
    return buffer


def encode(value: Any, encoder: Encoder, where: str) -> Any:
    """Return a document of a space, a device, a tensor; else NotImplemented."""
    if type(value) is spaces.Dict:
        return {"Dict": [[key, encoder.value(part, f"{where}[{key!r}]")] for key, part in value.spaces.items()]}
    if type(value) is spaces.Tuple:
        return {"Tuple": [encoder.value(part, f"{where}[{i}]") for i, part in enumerate(value.spaces)]}
    if type(value) is spaces.Box:
        encoder.claims.add([*value.shape, _BOX], np.dtype(value.dtype).itemsize)
        bounds = [_bound(part, encoder, f"{where}/{i}") for i, part in enumerate((value.low, value.high))]
        return {"Box": [np.dtype(value.dtype).str, list(value.shape), *bounds]}
    if type(value) is spaces.Discrete:
        return {"Discrete": [int(value.n), int(value.start), np.dtype(value.dtype).str]}
    if type(value) is spaces.MultiDiscrete:
        return {
            "MultiDiscrete": [encoder.value(part, f"{where}/{i}") for i, part in enumerate((value.nvec, value.start))]
        }
    if type(value) is spaces.MultiBinary:
        return {"MultiBinary": list(value.shape)}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if type(value) is torch.Tensor:
        return {"tensor": encoder.value(value.detach().cpu().numpy(), where)}
    if isinstance(value, GoalSelectionStrategy):
        return {"GoalSelectionStrategy": value.name}
    return NotImplemented


def decode(kind: str, content: Any, decoder: Decoder) -> Any:
    """Return what `encode` was given; NotImplemented for other kinds."""
    if kind == "Dict":
        return spaces.Dict({key: decoder.value(part) for key, part in content})
    if kind == "Tuple":
        return spaces.Tuple([decoder.value(part) for part in content])
    if kind == "Box":
        dtype, shape, *bounds = content
        decoder.claims.add([*shape, _BOX], checks.number_dtype(dtype).itemsize)
        low, high = (np.broadcast_to(decoder.value(bound), shape) for bound in bounds)
        return spaces.Box(low, high, dtype=np.dtype(dtype).type)
    if kind == "Discrete":
        n, start, dtype = content
        kind_of = {} if np.dtype(dtype) == np.int64 else {"dtype": np.dtype(dtype).type}  # gymnasium before 1 has none
        return spaces.Discrete(n, start=start, **kind_of)
    if kind == "MultiDiscrete":
        nvec, start = (decoder.value(part) for part in content)
        return spaces.MultiDiscrete(nvec, dtype=nvec.dtype.type, start=start)
    if kind == "MultiBinary":
        return spaces.MultiBinary(content if len(content) > 1 else content[0])
    if kind == "device":
        return torch.device(content)
    if kind == "tensor":
        return torch.from_numpy(decoder.value(content))
    if kind == "GoalSelectionStrategy":
        return GoalSelectionStrategy[content]
    return NotImplemented


def _bound(bound: NDArray[Any], encoder: Encoder, where: str) -> Any:
    """Return a document of one side of a Box; mostly it is one number."""
    same = bound.size > 0 and bool((bound == bound.flat[0]).all())
    return encoder.value(bound.flat[0] if same else bound, where)


def _holds_frames(value: Any) -> bool:
    if type(value) is dict:
        return any(_holds_frames(part) for part in value.values())
    return type(value) is FrameArray
