"""The processes of isolation: a server that has imported faithcheck and forks; each worker, and its supervisor.

The server never runs an explainer's code, so that every worker starts clean, and at once. The supervisor never does
either: it watches the worker's memory and number of processes, keeps the end of what it prints, and when the worker
ends, or is to be ended, it kills every process that the worker has started. On Linux none escapes: the supervisor
adopts those whose parents have ended. Elsewhere it kills the worker's process group, and memory and processes have no
limit.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any

from faithcheck.axioms.measure.error_text import error_text, traceback_text
from faithcheck.executors.isolation.channel import Closed, receive, send
from faithcheck.json_object import Json
from faithcheck.memory.process_memory import PROCESSES, process_memory

INTERVAL = 0.1
"""The seconds between two looks of a supervisor at its worker."""
LOG = 8192
"""The bytes that are kept of what a worker prints: the last ones."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # of prctl(2)


def main(control: socket.socket) -> None:
    """Fork a supervisor for each pair of sockets that arrives, until the process that sends them has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps the supervisors
    while True:
        content, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        if not content:
            return
        if os.fork() == 0:
            try:
                control.close()
                watch, channel = (socket.socket(fileno=descriptor) for descriptor in descriptors)
                _supervise(watch, channel)
            finally:
                os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


# --- the supervisor ---------------------------------------------------------------------------------------------------


def _supervise(watch: socket.socket, channel: socket.socket) -> None:
    """Fork the worker, watch over it until it ends or is to end, end what it has started, and report."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _process_control(PR_SET_CHILD_SUBREAPER, 1)
    limits = receive(watch)
    printed, prints = os.pipe()
    worker = os.fork()
    if worker == 0:
        watch.close()
        os.close(printed)
        _work(channel, prints)
    channel.close()
    os.close(prints)
    report = _watch(worker, watch, printed, limits)
    _end_all(worker)
    log = report["log"] + _rest(printed)
    with suppress(Closed):
        send(watch, {**report, "log": log[-LOG:].decode(errors="replace")})


def _watch(worker: int, watch: socket.socket, printed: int, limits: Json) -> Json:
    """Why the worker ended or must end: ``status`` as `os.waitpid` gives it, or ``reason``; and its ``log``."""
    inputs: list[Any] = [watch, printed]
    log, used, number, look = b"", -1, 1, 0.0
    while True:
        ready, _, _ = select.select(inputs, [], [], INTERVAL)
        if watch in ready:  # the process that asks wants the worker to end, or has ended itself
            return {"log": log}
        if printed in ready:
            content = os.read(printed, 2**16)
            log = (log + content)[-LOG:]
            if not content:
                inputs.remove(printed)
        if time.monotonic() < look:
            continue
        look = time.monotonic() + INTERVAL
        ended, status = os.waitpid(worker, os.WNOHANG)
        if ended:
            return {"status": os.waitstatus_to_exitcode(status), "log": log}
        now = _seconds_used(worker)
        if now != used or number > 1:  # an idle worker needs no look at all processes
            used, processes = now, _descendants()
            number = len(processes)
            if number > limits["processes"]:
                return {"reason": f"it had more than {limits['processes']} processes", "log": log}
            if sum(map(_memory, processes)) > limits["memory"] and sum(map(_own_memory, processes)) > limits["memory"]:
                return {"reason": f"it took more than {limits['memory'] / 2**30:.3g} GiB of memory", "log": log}


def _end_all(worker: int) -> None:
    """Kill every process that descends from this one, again and again until there is none."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        for process in _descendants():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if not PROCESSES.is_dir():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(worker, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def _rest(printed: int) -> bytes:
    """What is left in the pipe of a worker that has ended."""
    os.set_blocking(printed, False)
    content = b""
    with suppress(BlockingIOError):
        while part := os.read(printed, 2**16):
            content = (content + part)[-LOG:]
    return content


def _descendants() -> list[int]:
    """The processes that descend from this one, as far as the system says."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir(PROCESSES) if PROCESSES.is_dir() else ():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    pending = [os.getpid()]
    while pending:
        direct = children.get(pending.pop(), [])
        found += direct
        pending += direct
    return found


def _stat(process: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` after the name: state, parent, …; none if the process has ended."""
    try:
        content = (PROCESSES / str(process) / "stat").read_text(errors="replace")
    except OSError:
        return []
    return content.rpartition(")")[2].split()


def _seconds_used(process: int) -> int:
    fields = _stat(process)
    return sum(map(int, fields[11:15])) if fields else 0


def _memory(process: int) -> int:
    """The bytes of a process that are in memory and that it shares with no file."""
    memory = process_memory(process)
    return memory.resident - memory.shared


def _own_memory(process: int) -> int:
    """The same, where pages that processes share count in equal parts to each; it takes longer to find out."""
    try:
        lines = (PROCESSES / str(process) / "smaps_rollup").read_text().splitlines()
        return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    except (OSError, ValueError, IndexError):
        return _memory(process)


def _process_control(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


# --- the worker ------------------------------------------------------------------------------------------------------


def _work(channel: socket.socket, prints: int) -> None:
    """Answer requests until the channel is closed; then end."""
    try:
        os.setsid()
        _process_control(PR_SET_PDEATHSIG, signal.SIGKILL)  # no worker without its supervisor
        with suppress(OSError):
            (PROCESSES / "self" / "oom_score_adj").write_text("1000")  # short of memory, the system ends this one first
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(prints, 1)
        os.dup2(prints, 2)
        os.close(prints)
        faulthandler.enable()
        _prepare(receive(channel))
        while True:
            send(channel, _answer(channel, receive(channel)))
    finally:
        os._exit(0)


def _prepare(setup: Json) -> None:
    """Take over folder, import path, environment and threads of the process that asks."""
    import torch

    os.chdir(setup["folder"])
    sys.path[:] = setup["path"]
    os.environ.clear()
    os.environ.update(setup["environment"])
    torch.set_num_threads(setup["threads"])


def _answer(channel: socket.socket, request: Json) -> Json:
    try:
        module, _, name = request["function"].partition(":")
        function: Any = getattr(importlib.import_module(module), name)
        return {"answer": function(request["arguments"], lambda: send(channel, {"started": True}))}
    except Closed:
        raise
    except BaseException as error:  # an explainer's code runs here, and may raise anything
        return {"error": error_text(error), "traceback": traceback_text(error)}


if __name__ == "__main__":
    # Everything that a worker would otherwise import: each starts with it.
    from faithcheck.explainers.registry import builtin_explainers
    from faithcheck.models.pair import registered_pairs

    registered_pairs()
    builtin_explainers()
    gc.freeze()  # the workers share the memory of what is loaded, which no collection then writes to
    main(socket.socket(fileno=int(sys.argv[1])))
