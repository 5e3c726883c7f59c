"""A few threads of our own for kernels that run without the GIL.

Not numba's: its thread layers die under concurrent calls, or after a fork. Not an executor's: to hand over a job and
to fetch its result takes that as long as to decode sixty frames.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

WORTH = 3 << 19
"""Bytes of output from which another thread pays for being woken, of an ordinary decoder."""

_NAME = "sb3-extra-buffers"  # of the threads
_PIECES = 16  # at most, of a thread's share
_LEAST = 6  # pieces of what is worth another thread: to begin one takes time, too
_team: Team | None = None
_making = threading.Lock()  # of the team


def n_threads() -> int:
    """Return how many cores this process may use, at most 4: copying is soon bound by memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 4)


def split(n: int, n_bytes: int, do: Callable[[int, int], int], worth: int = WORTH) -> list[int]:
    """Call `do(start, stop)` on parts of `range(n)`, in threads if the output of `n_bytes` is worth it."""
    parts = min(n_bytes // worth + 1, n)
    parts = min(parts, n_threads()) if parts > 1 else parts
    if parts < 2:
        return [do(0, n)]
    team = _team or _make_team()
    work = Work(n, parts, do, n * worth // (_LEAST * n_bytes))
    try:
        team.ask(work, parts - 1)
        work.take_part()
    finally:
        work.end()
    if work.errors:
        raise work.errors[0]
    return work.results


class Work:
    """A range that several threads do, each a piece at a time: one is woken later than another, or is slower.

    Args:
        n: its length.
        parts: how many threads.
        do: does the piece from `start` to `stop`.
        least: how long a piece is at least, but for the last.
    """

    def __init__(self, n: int, parts: int, do: Callable[[int, int], int], least: int = 1) -> None:
        cuts, smallest = [0], max(-(-n // (parts * _PIECES)), least)
        while cuts[-1] < n:  # large pieces first: each costs time of its own
            cuts.append(min(cuts[-1] + max((n - cuts[-1]) * 2 // (3 * parts), smallest), n))
        self.pieces = [*itertools.pairwise(cuts)][::-1]
        self.do = do
        self.is_wanted = True
        self.results: list[int] = []
        self.errors: list[BaseException] = []
        self.begun: list[None] = []
        self.ended: list[None] = []
        self.news: SimpleQueue[None] = SimpleQueue()  # somebody has ended

    def take_part(self) -> None:
        """Do pieces until there are none."""
        while self.is_wanted:
            try:
                start, stop = self.pieces.pop()
            except IndexError:
                return
            self.results.append(self.do(start, stop))

    def help(self) -> None:
        """Take part, in another thread."""
        self.begun.append(None)
        try:
            self.take_part()
        except BaseException as error:  # raised where the work was asked for
            self.errors.append(error)
        self.ended.append(None)
        self.news.put(None)

    def end(self) -> None:
        """Wait for those who have begun, also when Ctrl-C comes meanwhile: they write to memory that is not theirs.

        Others do nothing any more, and hold on to nothing.
        """
        late = None
        while True:
            try:
                self.is_wanted = False
                while len(self.ended) < len(self.begun):  # not counted: news may have been got when Ctrl-C came
                    self.news.get()
                self.do = _nothing
                break
            except BaseException as error:
                late = error
        if late is not None:
            raise late


class Team:
    """Threads that help.

    Args:
        n: how many.
    """

    def __init__(self, n: int) -> None:
        self.works: SimpleQueue[Work] = SimpleQueue()
        self.numbers: list[int] = []  # the system's, of the threads
        for _ in range(n):
            thread = threading.Thread(target=_serve, args=(self.works,), name=_NAME, daemon=True)
            with suppress(RuntimeError):  # there are too many: then without it
                thread.start()
                self.numbers.append(thread.native_id or -1)
        self.away_from = -1
        self._moving = threading.Lock()

    def ask(self, work: Work, n: int) -> None:
        """Have `n` threads help, on other cores than this one.

        Of a virtual machine, Linux takes cores that are asleep for busy ones, and wakes a thread where its waker runs.
        """
        here = _core()
        if here != self.away_from:
            with self._moving:
                self._move(here)
        for _ in range(min(n, len(self.numbers))):
            self.works.put(work)

    def _move(self, here: int) -> None:
        self.away_from = -1  # should this be interrupted
        others = os.sched_getaffinity(0) - {here}
        with suppress(OSError):  # it is not allowed: then as it comes
            for number in self.numbers if others else ():
                os.sched_setaffinity(number, others)
        self.away_from = here


def others_run() -> bool:
    """Tell whether there are threads besides this one and ours: they might write to what is being read."""
    threads = threading.enumerate() if threading.active_count() > 1 else []
    return any(not thread.name.startswith(_NAME) for thread in threads if thread is not threading.current_thread())


def _make_team() -> Team:
    global _team
    with _making:
        if _team is None:
            _team = Team(n_threads() - 1)
        return _team


def _serve(works: SimpleQueue[Work]) -> None:
    while True:
        works.get().help()


def _nothing(start: int, stop: int) -> int:
    return 0


def _find_core() -> Callable[[], int]:
    """Return what tells the number of the core that this thread runs on; -1 where the system does not say."""
    if hasattr(os, "sched_setaffinity"):
        with suppress(AttributeError, OSError):
            return ctypes.PyDLL(None).sched_getcpu
    return lambda: -1


_core = _find_core()


def _forget_threads() -> None:
    """A forked child has no threads: it starts its own when it needs them."""
    global _team, _making
    _team, _making = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
