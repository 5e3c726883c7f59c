"""Three record buffers with one face: all, all but frames, nothing. Calling code never changes between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sb3_extra_buffers.frames.cast import exact_cast


class BaseRecordBuffer(ABC):
    """What the three have in common."""

    @abstractmethod
    def add(self, frame: Any, reward: float, action: Any, features: Sequence[Any] = ()) -> None:
        """Record one step.

        Args:
            frame: `[height, width, channels]`.
            reward: reward of the step.
            action: discrete action of the step.
            features: one value for each feature dtype the buffer was made with.
        """

    @abstractmethod
    def __len__(self) -> int: ...


class DummyRecordBuffer(BaseRecordBuffer):
    """Records nothing. Takes the arguments of the others."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take and forget all arguments."""

    def add(self, frame: Any, reward: float, action: Any, features: Sequence[Any] = ()) -> None:
        """Forget the step."""

    def __len__(self) -> int:
        return 0


class FramelessRecordBuffer(BaseRecordBuffer):
    """Records everything but frames; `add` takes them all the same.

    Args:
        res: height and width of a frame.
        ch_num: channels of a frame.
        size: steps to keep; later ones overwrite the oldest.
        dtypes: of frames, rewards, and each feature. None: uint8, float32, no features.

    Attributes:
        rewards: `[size]`.
        actions: `[size]`.
        features: `[size, n]` of their common dtype, or `[size]` with a field for each where dtypes differ.
    """

    def __init__(
        self,
        res: tuple[int, int] = (240, 320),
        ch_num: int = 3,
        size: int = 40_000,
        dtypes: Sequence[DTypeLike] | None = None,
    ) -> None:
        if size < 1 or ch_num < 1 or len(res) != 2 or min(res) < 1:
            raise ValueError(f"res, ch_num and size are at least 1; got res={res}, ch_num={ch_num}, size={size}")
        kinds = [np.dtype(kind) for kind in (dtypes if dtypes is not None else (np.uint8, np.float32))]
        if len(kinds) < 2:
            raise ValueError(f"dtypes are those of frames, rewards and each feature; got {len(kinds)}")
        self.size = size
        self.frame_shape = (*res, ch_num)
        self.frame_dtype, reward, *feature = kinds
        self.n_features = len(feature)
        self.rewards = np.zeros(size, reward)
        self.actions = np.zeros(size, np.int64)
        if len(set(feature)) > 1:
            self.features = np.zeros(size, [(f"f{i}", kind) for i, kind in enumerate(feature)])
        else:
            self.features = np.zeros((size, self.n_features), feature[0] if feature else np.float32)
        self._added = 0
        self._allocate()

    def __len__(self) -> int:
        return min(self._added, self.size)

    def add(self, frame: Any, reward: float, action: Any, features: Sequence[Any] = ()) -> None:
        """Record one step; bad input raises and records nothing.

        Raises:
            ValueError: a frame of another shape, or not one value for each feature.
        """
        image = self._checked(frame)
        if len(features) != self.n_features:
            raise ValueError(f"{len(features)} features where each step has {self.n_features}")
        row = self._added % self.size
        values = np.array(reward, self.rewards.dtype), np.array(action, self.actions.dtype)
        self.features[row] = tuple(features)
        self.rewards[row], self.actions[row] = values
        self._keep(row, image)
        self._added += 1

    def _allocate(self) -> None:
        """Make room for frames, where they are kept."""

    def _checked(self, frame: Any) -> NDArray[Any] | None:
        """Return the frame to keep, if any."""
        return None

    def _keep(self, row: int, image: NDArray[Any] | None) -> None:
        """Keep the frame, where frames are kept."""


class RecordBuffer(FramelessRecordBuffer):
    """Records everything.

    Attributes:
        frames: `[size, channels, height, width]`.
    """

    def _allocate(self) -> None:
        *res, channels = self.frame_shape
        self.frames = np.zeros((self.size, channels, *res), self.frame_dtype)

    def _checked(self, frame: Any) -> NDArray[Any]:
        image = np.asarray(frame)
        if image.shape == self.frame_shape[:2] and self.frame_shape[2] == 1:
            image = image[..., None]
        if image.shape != self.frame_shape:
            raise ValueError(f"a frame is [height, width, channels] {self.frame_shape}, not {image.shape}")
        return exact_cast(image, self.frame_dtype)

    def _keep(self, row: int, image: NDArray[Any] | None) -> None:
        self.frames[row] = np.moveaxis(image, -1, 0) if image is not None else 0
