"""What happens around a fork, when other threads and signals come at a bad time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sb3_extra_buffers.frames import lock as module
from sb3_extra_buffers.frames.lock import Lock, is_held_here


class Busy(list[Lock]):
    """Locks, to which another thread adds one while they are listed for the first time."""

    is_changing = True

    def __iter__(self) -> Iterator[Lock]:
        if self.is_changing:
            self.is_changing = False
            raise RuntimeError("Set changed size during iteration")
        return super().__iter__()


class Alarming(Lock):
    """Waited for when the handler of a signal raises."""

    is_calm = False

    def acquire(self, *args: int) -> bool:
        if not self.is_calm:
            self.is_calm = True
            raise TimeoutError
        return super().acquire(*args)


def test_locks_that_are_made_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    some = [Lock(), Lock()]
    monkeypatch.setattr(module, "_locks", Busy(some))
    module._before_fork()
    assert all(map(is_held_here, some))
    module._after_fork()
    assert not any(map(is_held_here, some))


def test_a_signal_while_a_lock_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python forks whatever the hook raises: all locks are taken first."""
    some = [Alarming(), Alarming()]
    monkeypatch.setattr(module, "_locks", some)
    with pytest.raises(TimeoutError):
        module._before_fork()
    assert all(map(is_held_here, some))
    module._after_fork()
    assert not any(map(is_held_here, some))
