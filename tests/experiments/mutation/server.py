"""Runs the tests that cover a mutated line, in a process that has imported the libraries already.

Mutation testing starts a process for each mutant, and torch and transformers take five seconds to import. So a server
imports them once, and forks for each request; faithcheck, where the mutants are, is imported in the fork alone.

``python server.py PLAN SOCKET`` serves; ``python server.py --ask SOCKET`` is the command that cosmic-ray runs in the
clone with the mutant: it exits with 0 if the tests passed, with 1 if one of them failed.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeAlias

LIBRARIES = ("torch", "transformers", "transformers.models.bert.modeling_bert", "scipy.stats", "sympy", "hypothesis")
"""What is imported before the fork: libraries that take long, and nothing of faithcheck."""
Plan: TypeAlias = dict[str, Any]
"""``lines``: file → line → the tests that run it; ``seconds``: test → its time."""
SECONDS = 60
"""The tests of one mutant take so long at most, by their times without a mutant. The shortest come first."""


def changed_lines() -> tuple[str, set[int]]:
    """The file of the clone that differs from the commit, and the lines that do."""
    difference = subprocess.run(["git", "diff", "--unified=0"], capture_output=True, text=True, check=True).stdout
    path, lines = "", set[int]()
    for line in difference.splitlines():
        if line.startswith("--- a/"):
            path = line.removeprefix("--- a/")
        elif line.startswith("@@"):
            start, _, count = line.split()[1].removeprefix("-").partition(",")
            lines.update(range(int(start), int(start) + max(int(count or 1), 1)))
    return path, lines


def tests_of(plan: Plan, path: str, lines: set[int]) -> list[str]:
    """The tests that run one of the lines, the shortest first; of a line that runs on import, those of its module."""
    covered, seconds = plan["lines"].get(path, {}), plan["seconds"]
    tests = {test for line in lines for test in covered.get(str(line), [])}
    tests = tests or {test for of_line in covered.values() for test in of_line}
    chosen, total = [], 0.0
    for test in sorted(tests, key=lambda test: (seconds.get(test, 1.0), test)):
        total += seconds.get(test, 1.0)
        if chosen and total > SECONDS:
            break
        chosen.append(test)
    return chosen


def shortest_tests(plan: Plan) -> set[str]:
    """The shortest test of every file: they must pass where there is no mutant."""
    of_files = ({test for tests in covered.values() for test in tests} for covered in plan["lines"].values())
    return {min(tests, key=lambda test: plan["seconds"].get(test, 1.0)) for tests in of_files}


def run_tests(tests: list[str]) -> int:
    """pytest's exit code; the import of a broken module and no test at all are failures as well."""
    import pytest

    # The libraries that the server imports bring modules that pytest would have rewritten, and pytest warns of it.
    quietly = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *quietly, *tests]))


def serve(plan_file: Path, address: str) -> None:
    """Fork for each request and answer with the exit code; a request is the folder of the clone."""
    for name in LIBRARIES:
        importlib.import_module(name)
    plan = json.loads(plan_file.read_text())
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        while True:
            connection, _ = listener.accept()
            with connection:
                _answer(connection, plan)


def _answer(connection: socket.socket, plan: Plan) -> None:
    clone = connection.recv(4096).decode()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(clone)
        sys.path.insert(0, clone)
        path, lines = changed_lines()
        code = 1  # of a mutant that cannot be imported
        try:
            code = run_tests(tests_of(plan, path, lines) if path else sorted(shortest_tests(plan)))
        finally:
            sys.stdout.flush()
            os._exit(code)
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if select.select([connection], [], [], 0.05)[0]:  # cosmic-ray has stopped the command at its time limit
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return
    connection.send(b"0" if ended[1] == 0 else b"1")


def ask(address: str) -> int:
    """Have the tests run in the current folder; 0 if they passed."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        connection.send(os.getcwd().encode())
        return int(connection.recv(1) or 1)


if __name__ == "__main__":
    if sys.argv[1] == "--ask":
        sys.exit(ask(sys.argv[2]))
    serve(Path(sys.argv[1]), sys.argv[2])
