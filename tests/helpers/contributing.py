"""The recipes of docs/contributing as code: the blocks that make or change files, and a copy of the repository."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import faithcheck.tests

CLONE = Path(faithcheck.tests.__path__[0]).resolve().parent
PACKAGES = ("axioms", "explainers", "models", "reports", "tests")


def recipes():
    """``{title: text}`` of the pages of docs/contributing that begin with ``# Add``."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((CLONE / "docs" / "contributing").glob("*.md"))]
    return {text.partition("\n")[0].removeprefix("# "): text for text in texts if text.startswith("# Add ")}


def edits(text):
    """``(path, language, code)`` of the blocks of a recipe that make or change a file, in their order."""
    for block in re.finditer(r"^```(\w+)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
        saved = re.search(r"[Ss]ave\s+it\s+as\s+`([\w./]+)`:\s*\Z", text[: block.start()])
        if block[1] == "diff":
            path = re.search(r"^\+\+\+ (?:b/)?(\S+)$", block[2], flags=re.MULTILINE)
            assert path, f"a diff block must name its file in a line '+++ b/path':\n{block[2]}"
            yield path[1], "diff", block[2]
        elif saved:
            yield saved[1], block[1], block[2]


def hunks(diff):
    """``(old, new)`` texts of the hunks of a unified diff; line numbers are not needed."""
    for hunk in re.split(r"^@@.*\n", diff, flags=re.MULTILINE)[1:]:
        lines = [line or " " for line in hunk.splitlines()]
        old = "".join(line[1:] + "\n" for line in lines if line[0] in " -")
        yield old, "".join(line[1:] + "\n" for line in lines if line[0] in " +")


def apply(path, language, code):
    """Write a new file, or apply a diff: the old lines of a hunk must be in the file exactly once."""
    if language != "diff":
        assert not path.exists(), f"{path} exists already: a recipe must not overwrite a file"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code, encoding="utf-8")
        return
    text = path.read_text(encoding="utf-8")
    for old, new in hunks(code):
        assert text.count(old) == 1, f"{path}: these lines are there {text.count(old)} times, expected once:\n{old}"
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


class Copy:
    """A copy of the repository, with a `faithcheck` of its own: links to the folders of the copy."""

    def __init__(self, folder):
        self.root, self.site = folder / "clone", folder / "site"
        for name in files_of_the_clone():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CLONE / name, self.root / name)
        package = self.site / "faithcheck"
        package.mkdir(parents=True)
        for file in (self.root / "faithcheck").iterdir():
            (package / file.name).symlink_to(file)
        for name in PACKAGES:
            (package / name).symlink_to(self.root / name, target_is_directory=True)

    def extend(self, titles):
        """Apply the blocks of these recipes."""
        for title in titles:
            for path, language, code in edits(recipes()[title]):
                apply(self.root / path, language, code)

    def run(self, *command, timeout=600):
        """Run Python in the copy; it must succeed. The variables of the running pytest do not reach it."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))}
        environment |= {"PYTHONPATH": str(self.site), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            (sys.executable, "-P", *command),
            cwd=self.root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        print(done.stdout[-8000:], done.stderr[-8000:])
        assert done.returncode == 0, f"exit code {done.returncode}: {command}"
        return done.stdout


def files_of_the_clone():
    """The files that are in version control or would be added to it."""
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    done = subprocess.run(command, cwd=CLONE, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the copy is made from a git clone: {done.stderr}")
    return [name for name in done.stdout.splitlines() if (CLONE / name).is_file()]
