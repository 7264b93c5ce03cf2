"""A process that runs jobs on request, as the process that asks sees it."""

import atexit
import json
import multiprocessing
import pickle
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from weakref import WeakSet

from msgspec import UNSET

from faithcheck.executors.executor import Remote
from faithcheck.executors.supervisor import Limits, Message, Report, Surroundings, supervise
from faithcheck.reports.documents.document import from_json

PRELOADED = "faithcheck.executors.preload"
LOADING = 600.0
"""The seconds in which a process must load what a job needs, before the time of the job itself begins."""
GRACE = 10.0
"""The seconds in which a supervisor must end its process and report."""
LIMIT = 2**26
"""The most bytes of an answer."""


class ProcessEnded(Exception):
    """A process has ended, and why; ``printed`` is the last of what it printed, such as the traceback of a crash."""

    def __init__(self, reason: str, printed: str = "") -> None:
        super().__init__(reason)
        self.printed = printed


class JobFailed(Exception):
    """The job raised an error. The message is that of the error."""

    def __init__(self, message: str, traceback: str) -> None:
        super().__init__(message)
        self.traceback = traceback


class Process:
    """A process that runs one job at a time, forked with its supervisor by a server that runs no explainer's code.

    It takes over this process's folder, import path, environment and number of threads. Its answers are JSON: nothing
    that comes back is unpickled. `OSError` if none can be started.
    """

    def __init__(self, limits: Limits) -> None:
        if "forkserver" not in multiprocessing.get_all_start_methods():
            raise OSError("processes of their own for explainers need a POSIX system")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([PRELOADED])
        self.closed = self._timed_out = False
        self._jobs, jobs = context.Pipe()
        self._watch, watch = context.Pipe()
        with jobs, watch, _without_main_module():
            context.Process(target=supervise, args=(jobs, watch, limits)).start()
        self._jobs.send_bytes(pickle.dumps(Surroundings.of_this_process()))
        _open.add(self)

    def run(self, remote: Remote, seconds: float) -> object:
        """The result of a job in plain values; after ``seconds``, not counting `Remote.prepare`, the process is killed.

        `JobFailed`: the job raised an error. `ProcessEnded`: the process cannot be used again.
        """
        try:
            with suppress(ConnectionError):  # the reason is found when the answer is missing
                self._jobs.send_bytes(pickle.dumps(remote))
            answer = self._receive(LOADING)
            if answer.prepared:
                answer = self._receive(seconds)
        except BaseException:  # the user's Ctrl-C: the answer that is still to come must not be taken for another
            self.close()
            raise
        if answer.result is UNSET:
            raise JobFailed(answer.error, answer.traceback)
        return answer.result

    def close(self) -> None:
        """End the process and all that it started."""
        self.closed = True
        self._jobs.close()
        self._watch.close()

    def _receive(self, seconds: float) -> Message:
        """The next message of the process."""
        timer = threading.Timer(seconds, self._stop)
        timer.start()
        try:
            return from_json(json.loads(self._jobs.recv_bytes(LIMIT)), Message)
        except (EOFError, ConnectionError):
            late = f"still running after {seconds:g} s: its process was killed" if self._timed_out else ""
            raise self._ended(late) from None
        except (OSError, ValueError):
            raise self._ended(f"it sent a message that is no JSON, or above the limit of {LIMIT:,} bytes") from None
        finally:
            timer.cancel()

    def _stop(self) -> None:
        """Have the supervisor end the process: then `_receive` finds its connection closed."""
        self._timed_out = True
        with suppress(OSError):
            self._watch.send_bytes(b"end")

    def _ended(self, reason: str) -> ProcessEnded:
        """End what is left of the process, and say why it ended."""
        report = Report()
        with suppress(EOFError, OSError, ValueError):
            # The supervisor notices the end of its process by itself; one that closed its connection alone goes on.
            if not self._watch.poll(0 if reason else 1.0):
                self._watch.send_bytes(b"end")
            if self._watch.poll(GRACE):
                report = from_json(json.loads(self._watch.recv_bytes(LIMIT)), Report)
        self.close()
        return ProcessEnded(reason or in_words(report), report.printed)


def in_words(report: Report) -> str:
    """Why a process ended, by the report of its supervisor."""
    if report.reason:
        return f"{report.reason}: its process was killed"
    if report.status is None:
        return "its process ended, nothing says why"
    if report.status < 0:
        names = {number.value: number.name for number in signal.Signals}
        return f"its process was ended by the signal {names.get(-report.status, -report.status)}"
    return f"it ended its process with exit code {report.status}"


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Within the block, `multiprocessing` finds no main module that each process would run again."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


_open: WeakSet[Process] = WeakSet()


@atexit.register  # runs before multiprocessing's own, which waits for all supervisors
def _close_all() -> None:
    for process in list(_open):
        process.close()
