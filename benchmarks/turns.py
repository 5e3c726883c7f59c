"""Processes that take turns: each waits until it is asked, so that one at a time is busy.

The parent starts a `Player` for each subject and calls `ask`; the process answers with `serve`, or with `receive`,
which serves every visit in a fork of the process as it was after its imports.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

PATIENCE = 1800  # seconds for one answer; slow codecs need minutes


class PlayerError(Exception):
    """The process could not do what it was asked; the message says why, in one line."""


class Player:
    """A process that waits for questions.

    Args:
        command: Python file and its arguments. It is given the handle of the connection before them.
        environment: variables to add to the environment.
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self.connection, theirs = Pipe()
        self.output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process
        file, *arguments = command
        self.process = subprocess.Popen(
            [sys.executable, file, str(theirs.fileno()), *arguments],
            pass_fds=[theirs.fileno()],
            env={**os.environ, **environment},
            stdout=self.output,
            stderr=self.output,
        )
        theirs.close()

    def ask(self, question: str, *arguments: Any) -> Any:
        """Have the process call its function `question`, and return what that returns.

        Raises:
            PlayerError: it raised, ended, or gave no answer in time.
        """
        try:
            self.connection.send((question, arguments))
            if not self.connection.poll(PATIENCE):
                self.process.kill()
                self.connection.close()  # a fork that is still busy ends when it finds nobody to answer to
                raise PlayerError(f"no answer to {question!r} in {PATIENCE} s")
            answer, error = self.connection.recv()
        except (EOFError, OSError):
            self.process.wait()
            raise PlayerError(f"the process ended, exit status {self.process.returncode}{self._last_words()}") from None
        if error:
            raise PlayerError(error)
        return answer

    def close(self) -> None:
        self.connection.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.output.close()

    def _last_words(self) -> str:
        self.output.seek(0)
        lines = self.output.read().strip().splitlines()
        return f": {lines[-1]}" if lines else ""


def serve(connection: Connection, functions: dict[str, Callable[..., Any]]) -> None:
    """Answer questions until the parent asks to `leave`, or is gone."""
    while True:
        try:
            question, arguments = connection.recv()
        except EOFError:
            return
        if question == "leave":
            return
        try:
            connection.send((functions[question](*arguments), ""))
        except Exception as error:
            connection.send((None, one_line(error)))


def receive(connection: Connection, prepare: Callable[[], Any], functions: dict[str, Callable[..., Any]]) -> None:
    """Answer each `enter` with a fork that serves until it is asked to `leave`.

    Args:
        connection: to the parent; the fork uses it while it lives.
        prepare: called before a fork, for imports; that it raises is the answer.
        functions: what the fork can be asked.
    """
    while True:
        try:
            question, _ = connection.recv()
        except EOFError:
            return
        try:
            if question == "enter":
                prepare()
        except Exception as error:
            connection.send((None, one_line(error)))
            continue
        if question == "enter":
            fork = os.fork()
            if fork == 0:
                connection.send((None, ""))
                serve(connection, functions)
                sys.exit()
            status = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
            connection.send((None, f"the process ended, exit status {status}" if status else ""))
        else:
            connection.send((None, "" if question == "leave" else "nobody is here"))


def one_line(error: Exception) -> str:
    """Return what is wrong in one line; the process's output has the rest."""
    traceback.print_exception(error)
    message = str(error).strip().splitlines()
    return f"{type(error).__name__}: {message[0] if message else ''}"
