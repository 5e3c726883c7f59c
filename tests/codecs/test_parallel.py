"""Threads that help to decode."""

import os
import threading
import time
import weakref

import numpy as np
import pytest

from sb3_extra_buffers.codecs import parallel

ENOUGH = 1 << 30  # bytes


@pytest.fixture(params=[2, 3, 4])
def threads(request, monkeypatch):
    monkeypatch.setattr(parallel, "n_threads", lambda: request.param)
    monkeypatch.setattr(parallel, "_team", None)
    return request.param


@pytest.mark.parametrize("n", [2, 3, 7, 64, 1000])
def test_every_part_is_done_once(threads, n):
    for _ in range(20):
        done = np.zeros(n, np.int64)

        def do(start, stop, done=done):
            assert start < stop
            done[start:stop] += 1
            return start

        assert min(parallel.split(n, ENOUGH, do)) == 0
        assert (done == 1).all()


def test_large_parts_come_first(threads):
    sizes = [stop - start for start, stop in parallel.Work(1000, threads, int).pieces[::-1]]
    assert sizes[0] > 1000 // (2 * threads)
    assert sum(sizes) == 1000
    assert len(sizes) < 6 * threads


def test_pieces_are_worth_beginning(threads):
    pieces: list[int] = []
    parallel.split(600, 4 * parallel.WORTH, lambda start, stop: pieces.append(stop - start) or 0)
    assert sum(pieces) == 600
    assert sorted(pieces)[1] >= 25  # a sixth of what is worth a thread; the last may be shorter


def test_little_is_done_here(threads):
    assert parallel.split(5, parallel.WORTH - 1, lambda start, stop: stop - start) == [5]
    assert parallel.split(0, 0, lambda start, stop: stop - start) == [0]
    assert parallel.split(1, ENOUGH, lambda start, stop: stop - start) == [1]
    assert parallel._team is None


def test_parts_in_threads_are_waited_for(threads):
    """When an alarm interrupts this thread's part, nobody decodes on from what may be gone soon."""
    here, begun, ended = threading.current_thread(), threading.Event(), []

    def do(start, stop):
        if threading.current_thread() is here:
            begun.wait()
            raise TimeoutError
        begun.set()
        time.sleep(0.1)
        ended.append(start)
        return 0

    with pytest.raises(TimeoutError):
        parallel.split(100, ENOUGH, do)
    n = len(ended)
    assert n >= 1
    time.sleep(0.2)
    assert len(ended) == n


def test_an_alarm_while_waiting_does_not_end_it(threads, monkeypatch):
    here, begun, ended = threading.current_thread(), threading.Event(), []
    work = parallel.Work(100, threads, lambda start, stop: 0)

    class Interrupted(type(work.news)):
        def get(self):
            if not ended:
                raise KeyboardInterrupt
            return super().get()

    def do(start, stop):
        if threading.current_thread() is here:
            begun.wait()
            return 0
        begun.set()
        time.sleep(0.1)
        ended.append(start)
        return 0

    work.do, work.news = do, Interrupted()
    team = parallel.Team(1)
    team.ask(work, 1)
    work.take_part()
    with pytest.raises(KeyboardInterrupt):
        work.end()
    assert ended


def test_what_is_wrong_in_another_thread_is_raised_here(threads):
    here, begun = threading.current_thread(), threading.Event()

    def do(start, stop):
        if threading.current_thread() is here:
            begun.wait()
            return 0
        begun.set()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        parallel.split(100, ENOUGH, do)


def test_threads_that_do_not_come_are_not_waited_for(threads):
    """They are busy with something else; this thread does it all, and nobody keeps what it was given."""
    free = threading.Event()
    team = parallel._team = parallel.Team(1)
    long = parallel.Work(2, 2, lambda start, stop: free.wait() and 0)
    team.ask(long, 1)
    while not long.begun:
        time.sleep(0.001)
    array = np.zeros(100, np.uint8)

    def do(start, stop, array=array):
        array[start:stop] += 1
        return 0

    parallel.split(100, ENOUGH, do)
    assert (array == 1).all()
    kept = weakref.ref(array)
    del array, do
    assert kept() is None
    free.set()
    long.end()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be told where to run")
def test_threads_run_on_other_cores(threads):
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("there is one core")
    parallel.split(100, ENOUGH, lambda start, stop: 0)
    team = parallel._team
    for core in allowed:
        os.sched_setaffinity(0, {core})
        try:
            team.ask(parallel.Work(1, 2, lambda start, stop: 0), 0)
            assert team.away_from == core
        finally:
            os.sched_setaffinity(0, allowed)
    last = team.away_from
    team.away_from = -1
    team.ask(parallel.Work(1, 2, lambda start, stop: 0), 0)
    assert last in allowed
    for number in team.numbers:
        assert os.sched_getaffinity(number) == allowed - {team.away_from}


def test_threads_where_the_core_is_not_known(threads, monkeypatch):
    monkeypatch.setattr(parallel, "_core", lambda: -1)
    assert sum(parallel.split(100, ENOUGH, lambda start, stop: stop - start)) == 100


def test_threads_that_may_not_be_told_where_to_run(threads, monkeypatch):
    def refuse(number, cores):
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", refuse, raising=False)
    assert sum(parallel.split(100, ENOUGH, lambda start, stop: stop - start)) == 100


def test_without_another_thread(threads, monkeypatch):
    """The system has no more of them: this one does it all, and nothing waits in a queue for them."""

    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert sum(parallel.split(100, ENOUGH, lambda start, stop: stop - start)) == 100
    assert parallel._team.works.empty()


def test_several_callers_at_once(threads):
    wrong = []

    def call(n):
        for _ in range(50):
            done = np.zeros(n, np.int64)

            def do(start, stop, done=done):
                done[start:stop] += 1
                return 0

            parallel.split(n, ENOUGH, do)
            if not (done == 1).all():
                wrong.append(n)

    callers = [threading.Thread(target=call, args=(n,)) for n in (10, 100, 1000, 33)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong
