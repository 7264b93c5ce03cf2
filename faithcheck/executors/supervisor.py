"""The supervisor of a process that runs an explainer's code, and what that process does.

The supervisor runs no such code. It watches memory and the number of processes, keeps the end of what is printed, and
at the end kills every process that was started. On Linux none escapes: it adopts those whose parents have ended.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import pickle
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import msgspec
import psutil
import torch
from msgspec import UNSET, Struct, structs, to_builtins

from faithcheck.axioms.measure.error_text import error_text, traceback_text

INTERVAL = 0.1
"""The seconds between two looks at the process."""
PRINTED = 8192
"""The bytes that are kept of what a process prints: the last ones."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # of prctl(2)


def _half_of_the_memory() -> int:
    total = int(psutil.virtual_memory().total)
    with suppress(OSError, ValueError):  # the limit of a container
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total // 2


@dataclass(frozen=True)
class Limits:
    """What a process and those that it starts may take together, looked at every 0.1 s."""

    memory: int = field(default_factory=_half_of_the_memory)  # bytes in memory; by default half of the machine's
    processes: int = 128


@dataclass(frozen=True)
class Surroundings:
    """What a process takes over from the one that asks for it."""

    folder: str
    path: list[str]
    environment: dict[str, str]
    threads: int

    @classmethod
    def of_this_process(cls) -> Surroundings:
        """Those of this process."""
        path = [str(Path(entry).absolute()) for entry in sys.path]
        return cls(os.getcwd(), path, dict(os.environ), torch.get_num_threads())

    def take_over(self) -> None:
        """Make them those of this process."""
        os.chdir(self.folder)
        sys.path[:] = self.path
        os.environ.clear()
        os.environ.update(self.environment)
        torch.set_num_threads(self.threads)


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a process sends while a job runs: that all is loaded, and then the result in plain values, or the error."""

    prepared: bool = False
    result: Any = UNSET
    error: str = ""
    traceback: str = ""


class Report(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a process ended or had to end."""

    status: int | None = None  # its exit code, negative for a signal
    reason: str = ""  # why it was killed
    printed: str = ""  # the end of what it printed


def supervise(jobs: Connection[Any, Any], watch: Connection[Any, Any], limits: Limits) -> None:
    """Fork the process for ``jobs``; end it at its limits or at a message through ``watch``; send the report there."""
    os.setsid()  # the user's Ctrl-C is for the process that asks, which closes the connections
    _process_control(PR_SET_CHILD_SUBREAPER, 1)
    printed, prints = os.pipe()
    process = os.fork()
    if process == 0:
        watch.close()
        os.close(printed)
        _work(jobs, prints)
    jobs.close()
    os.close(prints)
    report, content = _watched(process, watch, printed, limits)
    _end_all(process)
    content += _rest(printed)
    with suppress(OSError):
        printed_text = content[-PRINTED:].decode(errors="replace")
        watch.send_bytes(msgspec.json.encode(structs.replace(report, printed=printed_text)))


def _watched(process: int, watch: Connection[Any, Any], printed: int, limits: Limits) -> tuple[Report, bytes]:
    """Why the process ended or has to end, and the end of what it printed."""
    inputs: list[Any] = [watch, printed]
    content, look, number = b"", 0.0, 1
    used: object = None
    while True:
        ready = wait(inputs, INTERVAL)
        if watch in ready:
            return Report(), content
        if printed in ready:
            part = os.read(printed, 2**16)
            content = (content + part)[-PRINTED:]
            if not part:
                inputs.remove(printed)
        if time.monotonic() < look:
            continue
        look = time.monotonic() + INTERVAL
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return Report(status=os.waitstatus_to_exitcode(status)), content
        with suppress(psutil.Error):
            now = psutil.Process(process).cpu_times()
            if now == used and number == 1:
                continue  # an idle process needs no look at all processes
            used, started = now, psutil.Process().children(recursive=True)
            number = len(started)
            if number > limits.processes:
                return Report(reason=f"it had more than {limits.processes} processes"), content
            # What is exact takes long to find out, because processes share pages.
            if sum(map(_memory, started)) > limits.memory and sum(map(_own_memory, started)) > limits.memory:
                return Report(reason=f"it took more than {limits.memory / 2**30:.3g} GiB of memory"), content


def _memory(process: psutil.Process) -> int:
    """The bytes of a process that are in memory and that it shares with no file."""
    try:
        memory = process.memory_info()
    except psutil.Error:
        return 0
    return int(memory.rss - getattr(memory, "shared", 0))


def _own_memory(process: psutil.Process) -> int:
    """The bytes of a process in memory; where it is known, each process counts its share of what several use."""
    try:
        memory = process.memory_full_info()
    except psutil.Error:
        return 0
    return int(getattr(memory, "pss", memory.uss))


def _end_all(process: int) -> None:
    """Kill every process that descends from this one, again and again until there is none."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        for started in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                started.kill()
        if sys.platform != "linux":  # where no one adopts them, they are still in its session
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def _rest(printed: int) -> bytes:
    """What is left in the pipe of a process that has ended."""
    os.set_blocking(printed, False)
    content = b""
    with suppress(BlockingIOError):
        while part := os.read(printed, 2**16):
            content = (content + part)[-PRINTED:]
    return content


def _process_control(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


# --- the process that runs jobs ---------------------------------------------------------------------------------------


def _work(jobs: Connection[Any, Any], prints: int) -> None:
    """Run jobs until the connection is closed; then end."""
    try:
        os.setsid()
        _process_control(PR_SET_PDEATHSIG, signal.SIGKILL)  # it never outlives its supervisor
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")  # short of memory, the system ends this one first
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(prints, 1)
        os.dup2(prints, 2)
        _leave_server(jobs)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # so that a crash loses nothing printed
        faulthandler.enable()
        pickle.loads(jobs.recv_bytes()).take_over()
        while True:
            for message in _messages(jobs.recv_bytes()):
                jobs.send_bytes(json.dumps(to_builtins(message)).encode())
    finally:
        os._exit(0)


def _leave_server(jobs: Connection[Any, Any]) -> None:
    """Close the files of the server: an explainer may write to any. `multiprocessing` starts a server of its own."""
    for name in os.listdir("/dev/fd"):
        if int(name) > 2 and int(name) != jobs.fileno():
            with suppress(OSError):  # the one through which the folder was read
                os.close(int(name))
    forkserver._forkserver.__init__()  # type: ignore[misc]
    resource_tracker._resource_tracker.__init__()  # type: ignore[misc]


def _messages(job: bytes) -> Iterator[Message]:
    try:
        remote = pickle.loads(job)
        remote.prepare()
        yield Message(prepared=True)
        yield Message(result=remote.run())
    except BaseException as error:  # an explainer's code runs here, and may raise anything
        yield Message(error=error_text(error), traceback=traceback_text(error))
