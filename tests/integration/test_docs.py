"""The tutorials do what they say: every block of code is saved or run, in order, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import faithcheck.tests

CLONE = Path(faithcheck.tests.__path__[0]).resolve().parent
TUTORIALS = ("verify.md", "add_a_pair.md", "read_the_report.md")

pytestmark = pytest.mark.skipif(not (CLONE / "docs").is_dir(), reason="the docs are in the clone, not in the wheel")


def blocks(text):
    """``(language, code, name)`` of each fenced block; its name where the text before it says "as `name`:"."""
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    for block in found:
        saved = re.search(r"as\s+`([\w.]+)`:\s*\Z", text[: block.start()])
        yield block[1], block[2], saved[1] if saved else None


def run(folder, *command):
    """Run a command with this Python's programs first; its output, and its exit code."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "200"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    print(done.stdout, done.stderr)
    return done.stdout, done.returncode


def follow(text, folder):
    """Follow a tutorial in a folder, and compare what it promises with what comes."""
    output = ""
    for language, code, name in blocks(text):
        if name:
            (folder / name).write_text(code, encoding="utf-8")
        elif language in ("sh", "python"):
            expected = int(found[1]) if (found := re.search(r"# exit code (\d+)", code)) else 0
            output, code_ = run(folder, *(("bash", "-ec", code) if language == "sh" else (sys.executable, "-c", code)))
            assert code_ == expected, code
        elif language == "text":
            flat = " ".join(output.split())
            assert all(" ".join(line.split()) in flat for line in code.splitlines()), f"{code}\nis not in\n{output}"


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_works_to_the_letter(name, tmp_path):
    text = (CLONE / "docs" / name).read_text(encoding="utf-8")
    follow(text, tmp_path)
    for link in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
        assert link.startswith("http") or (CLONE / "docs" / link).exists(), link


@pytest.mark.parametrize(
    "text",
    [
        "```sh\nfalse\n```\n",
        "```sh\ntrue  # exit code 1\n```\n",
        "```sh\necho red\n```\n\n```text\ngreen\n```\n",
        "```python\nassert False\n```\n",
    ],
)
def test_a_tutorial_that_does_not_work_is_red(text, tmp_path):
    with pytest.raises(AssertionError):
        follow(text, tmp_path)
