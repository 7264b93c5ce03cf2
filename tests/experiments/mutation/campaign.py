"""The campaign: a random sample of the mutants of axioms, explainers and reports, and how many of them a test kills.

``make mutation`` runs it; everything it makes lies in ``build/mutation``. A second run goes on where the first stopped.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
import sqlite3
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import cosmic_ray.commands
from cosmic_ray.modules import find_modules
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import TestOutcome, WorkItem
from scipy.stats import binomtest

ROOT = Path(__file__).parents[3]
MUTATED = ("axioms", "explainers", "reports")
SCORED = (*MUTATED, "explainers/lrp")
BUILD = ROOT / "build" / "mutation"
PLAN = BUILD / "plan.json"
PROCESSES = 2
TIME_LIMIT = 240  # seconds of one mutant; the tests chosen for it take at most 60 without it


def clone(number: int) -> Path:
    """A clone of the commit, in which mutants are made; its packages shadow the installed ones."""
    folder = BUILD / str(number)
    if not folder.exists():
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
        for package in ("axioms", "explainers", "models", "reports", "tests"):
            (folder / "faithcheck" / package).symlink_to(folder / package)
    return folder


def commit(folder: Path) -> str:
    """The commit that a folder is at."""
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def environment(folder: Path) -> dict[str, str]:
    """The environment in which a clone's own code is imported, with one thread."""
    return {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def write_plan() -> None:
    """Run the unit tests once and note which test runs which line, and how long it takes."""
    folder = clone(0)
    arguments = [
        "-q",
        "-m",
        "unit",
        "tests/unit",
        "-p",
        "no:cacheprovider",
        "--junitxml=times.xml",
        "--cov-context=test",
    ]
    coverage = [f"--cov={path}" for path in MUTATED]  # by folder: a package would be imported, numpy with it, twice
    subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, *coverage, "--cov-report="],
        cwd=folder,
        env=environment(folder),
        check=True,
    )
    lines: dict[str, dict[int, list[str]]] = {}
    with contextlib.closing(sqlite3.connect(folder / ".coverage")) as database:
        from coverage.numbits import numbits_to_nums

        rows = database.execute(
            "SELECT file.path, context.context, line_bits.numbits FROM line_bits "
            "JOIN file ON file.id = file_id JOIN context ON context.id = context_id WHERE context.context != ''"
        )
        for path, context, numbits in rows:
            relative = str(Path(path).resolve().relative_to(folder))
            for number in numbits_to_nums(numbits):
                lines.setdefault(relative, {}).setdefault(number, []).append(context.split("|")[0])
    seconds: Counter[str] = Counter()
    for case in ET.parse(folder / "times.xml").iter("testcase"):
        module = case.attrib["classname"].replace(".", "/")
        seconds[f"{module}.py::{case.attrib['name']}"] += float(case.attrib["time"])
    PLAN.write_text(json.dumps({"lines": lines, "seconds": seconds}))


# --- which mutants ---------------------------------------------------------------------------------------------------


class _WithoutAnnotations(ast.NodeTransformer):
    """Removes what never runs: annotations, since every module has ``from __future__ import annotations``."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)


def _code(source: str) -> str:
    return ast.dump(_WithoutAnnotations().visit(ast.parse(source)))


def changes_what_runs(item: WorkItem, folder: Path) -> bool:
    """Whether a mutant is a program, and differs from its original in more than annotations."""
    (mutation,) = item.mutations
    source = (folder / mutation.module_path).read_text()
    mutant = mutate_code(source, get_operator(mutation.operator_name)(**mutation.operator_args), mutation.occurrence)
    try:
        return mutant is not None and _code(mutant) != _code(source)
    except SyntaxError:
        return False


def draw(number: int, seed: int) -> tuple[list[WorkItem], int]:
    """A random sample of mutants in clone 0, and how many there are in all, those of annotations included."""
    folder = clone(0)
    with contextlib.chdir(folder), use_db(":memory:") as database:
        cosmic_ray.commands.init(find_modules(map(Path, MUTATED)), database, {})
        items = sorted(database.work_items, key=lambda item: str(item.mutations))
    random.Random(seed).shuffle(items)
    sample: list[WorkItem] = []
    for item in items:
        if len(sample) == number:
            break
        if changes_what_runs(item, folder):
            sample.append(item)
    return sample, len(items)


# --- the run ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def server(number: int) -> Iterator[str]:
    """A server of tests (see `server`) for one clone; its address is the file of a socket."""
    address = BUILD / f"server{number}"
    address.unlink(missing_ok=True)
    command = [sys.executable, str(Path(__file__).with_name("server.py")), str(PLAN), str(address)]
    with (BUILD / f"server{number}.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment(clone(number)))
        try:
            while not address.exists():
                if process.poll() is not None:
                    raise RuntimeError(f"the server of the tests did not start: see {log.name}")
                time.sleep(0.1)
            yield str(address)
        finally:
            process.kill()
            process.wait()


def execute() -> None:
    """Run the tests of every mutant that has no result yet, in as many clones as there are processes."""
    with contextlib.ExitStack() as stack:
        commands = []
        for number in range(PROCESSES):
            address = stack.enter_context(server(number))
            configuration = BUILD / f"{number}.toml"
            command = f"{sys.executable} {Path(__file__).with_name('server.py')} --ask {address}"
            if subprocess.run(command.split(), cwd=clone(number)).returncode:
                raise RuntimeError(f"tests fail without a mutant, see {BUILD}/server{number}.log")
            configuration.write_text(
                f"[cosmic-ray]\nmodule-path = {json.dumps(MUTATED)}\ntimeout = {TIME_LIMIT}\n"
                f"excluded-modules = []\ntest-command = {json.dumps(command)}\n"
                '[cosmic-ray.distributor]\nname = "local"\n'
            )
            run = [str(Path(sys.executable).with_name("cosmic-ray")), "exec", str(configuration), str(session(number))]
            commands.append(subprocess.Popen(run, cwd=clone(number)))
        for started in commands:
            if started.wait():
                raise RuntimeError("cosmic-ray failed: see its message above")


def session(number: int) -> Path:
    """The file in which cosmic-ray keeps a clone's mutants and their results."""
    return BUILD / f"{number}.sqlite"


def report(total: int | None) -> str:
    """The score with its 95 % interval (Wilson), by module, and the diffs of the mutants that survived."""
    killed, survived, diffs = Counter[str](), Counter[str](), []
    for number in range(PROCESSES):
        with use_db(str(session(number)), WorkDB.Mode.open) as database:
            modules = {item.job_id: str(item.mutations[0].module_path) for item in database.work_items}
            for job, result in database.results:
                if result.test_outcome == TestOutcome.SURVIVED:
                    survived[modules[job]] += 1
                    diffs.append(result.diff)
                else:
                    killed[modules[job]] += 1
    BUILD.joinpath("survivors.diff").write_text("\n".join(diffs))
    lines = [f"commit {commit(clone(0))}", f"{'module':60} killed  of"]
    for module in sorted(killed | survived):
        lines.append(f"{module:60} {killed[module]:6} {killed[module] + survived[module]:3}")
    for folder in SCORED:
        mine = {name: count for name, count in (killed + survived).items() if name.startswith(f"{folder}/")}
        hits, tries = sum(killed[name] for name in mine), sum(mine.values())
        if tries:
            interval = binomtest(hits, tries).proportion_ci(method="wilson")
            lines.append(
                f"{folder}: {hits} of {tries} killed, {hits / tries:.1%} "
                f"(95 % interval {interval.low:.1%} to {interval.high:.1%})"
            )
    if total is not None:
        lines.append(f"drawn from {total} mutants, those of annotations included")
    return "\n".join(lines)


def main() -> None:
    """Parse the arguments, and run what has not run yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=300, help="how many to draw (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: %(default)s)")
    arguments = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    for number in range(PROCESSES):
        if commit(clone(number)) != commit(ROOT):
            sys.exit(f"{BUILD} has a campaign of another commit, {commit(clone(number))}: remove it to begin anew")
    if not PLAN.exists():
        write_plan()
    total = None
    if not session(0).exists():
        sample, total = draw(arguments.mutants, arguments.seed)
        for number in range(PROCESSES):
            with use_db(str(session(number))) as database:
                database.add_work_items(sample[number::PROCESSES])
    execute()
    print(report(total))


if __name__ == "__main__":
    main()
