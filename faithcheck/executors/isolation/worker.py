"""What asks a worker, a process of its own for an explainer's code, and starts the server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from faithcheck.executors.isolation.channel import Closed, NoMessage, receive, send
from faithcheck.json_object import Json

LOADING = 600.0
"""The seconds that a worker may take to load what a request is about, before the request's own time begins."""
GRACE = 10.0
"""The seconds that a supervisor may take to end a worker and to report."""


class WorkerEnded(Exception):
    """The worker's process has ended, by itself or because it had to. The message says why.

    Attributes:
        log: the end of what the process printed, such as the traceback of a segmentation fault.
    """

    def __init__(self, reason: str, log: str = "") -> None:
        super().__init__(reason)
        self.log = log


class TaskFailed(Exception):
    """The function that a worker was asked to call raised an error. The message is that of the error.

    Attributes:
        traceback: of the error.
    """

    def __init__(self, message: str, traceback: str) -> None:
        super().__init__(message)
        self.traceback = traceback


def _half_of_the_memory() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # the limit of a container
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total // 2


@dataclass(frozen=True)
class Limits:
    """What a worker and the processes that it starts may take together, looked at every 0.1 s.

    Attributes:
        memory: bytes in memory; by default half of the machine's.
        processes: their number.
    """

    memory: int = field(default_factory=_half_of_the_memory)
    processes: int = 128


class Worker:
    """A process that calls functions on request.

    It has the folder, the import path, the environment and the number of threads that this process has when the
    worker is made, and a session of its own. What it prints is kept only for `WorkerEnded`.

    Args:
        limits: what it may take.

    Attributes:
        closed: whether it cannot be used again.

    Raises:
        OSError: no process can be started here.
    """

    def __init__(self, limits: Limits) -> None:
        self.closed = False
        self._channel, channel = socket.socketpair()
        self._watch, watch = socket.socketpair()
        with channel, watch:
            _hand_to_server(watch, channel)
        send(self._watch, asdict(limits))
        send(
            self._channel,
            {
                "folder": os.getcwd(),
                "path": [str(Path(entry).absolute()) for entry in sys.path],
                "environment": dict(os.environ),
                "threads": torch.get_num_threads(),
            },
        )

    def call(self, function: Callable[[Any, Callable[[], None]], Json], arguments: Json, seconds: float) -> Json:
        """Call a function of a module in the worker.

        Args:
            function: called with the arguments and a function that it calls when it has loaded what it needs.
            arguments: plain values.
            seconds: the worker is killed if it takes longer from there.

        Raises:
            WorkerEnded: the process has ended, was killed, or sent what is no answer. The worker cannot be used again.
            TaskFailed: the function raised an error.
        """
        name = f"{function.__module__}:{function.__qualname__}"
        try:
            send(self._channel, {"function": name, "arguments": arguments})
            message = receive(self._channel, LOADING)
            if "started" in message:
                message = receive(self._channel, seconds)
        except Closed:
            raise self._ended("") from None
        except NoMessage as error:
            raise self._ended(f"it sent {error}") from None
        except TimeoutError:
            raise self._ended(f"still running after {seconds:g} s: its process was killed") from None
        except BaseException:  # the user's Ctrl-C: the answer that is still to come must not be taken for another
            self.close()
            raise
        if "answer" not in message:
            raise TaskFailed(str(message.get("error")), str(message.get("traceback")))
        answer: Json = message["answer"]
        return answer

    def close(self) -> None:
        """End the worker and all processes that it started."""
        self.closed = True
        self._channel.close()
        self._watch.close()

    def _ended(self, reason: str) -> WorkerEnded:
        """End what is left of the worker, and say why it ended."""
        report: Json = {}
        with suppress(Closed, NoMessage, TimeoutError):
            # The supervisor waits for the end of the process that closed its channel; any other it must be told to end.
            report = receive(self._watch, 1.0 if not reason else 0.01)
        if not report:
            with suppress(OSError):
                self._watch.shutdown(socket.SHUT_WR)
            with suppress(Closed, NoMessage, TimeoutError):
                report = receive(self._watch, GRACE)
        self.close()
        return WorkerEnded(reason or _reason(report), str(report.get("log", "")))


def _reason(report: Json) -> str:
    if "reason" in report:
        return f"{report['reason']}: its process was killed"
    status = report.get("status")
    if not isinstance(status, int):
        return "its process ended, nothing says why"
    if status < 0:
        names = {number.value: number.name for number in signal.Signals}
        return f"its process was ended by the signal {names.get(-status, -status)}"
    return f"it ended its process with exit code {status}"


# --- the server, one for this process --------------------------------------------------------------------------------

_server: list[tuple[subprocess.Popen[bytes], socket.socket]] = []


def start_server() -> None:
    """Start the process that forks workers, if it does not run. It imports faithcheck, while this process goes on."""
    if _server and _server[0][0].poll() is None:
        return
    if not hasattr(os, "fork") or not hasattr(socket, "send_fds"):
        raise OSError("processes of their own for explainers need a POSIX system")
    mine, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-P", "-m", "faithcheck.executors.isolation.server", str(theirs.fileno())]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # the user's Ctrl-C is for this process, which closes the socket
        )
    _server[:] = [(process, mine)]


def _hand_to_server(watch: socket.socket, channel: socket.socket) -> None:
    start_server()
    socket.send_fds(_server[0][1], [b"w"], [watch.fileno(), channel.fileno()])
