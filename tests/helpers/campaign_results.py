"""The results of a campaign: JSON lines, each with the state of the code. Another state is measured again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import faithcheck.axioms
import faithcheck.explainers
import faithcheck.models


def state_of_the_code(tests: Iterable[ModuleType]) -> str:
    """A hash of the axioms, explainers and models, and of these modules and packages of tests."""
    digest = hashlib.sha256()
    for module in (faithcheck.axioms, faithcheck.explainers, faithcheck.models, *tests):
        folders = [Path(folder) for folder in getattr(module, "__path__", ())]
        files = [path for folder in folders for path in folder.rglob("*.py")] or [Path(str(module.__file__))]
        for path in sorted(files):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def stored(path: Path, state: str) -> list[dict[str, Any]]:
    """The results of this state; a line that a kill cut short does not count."""
    rows: list[dict[str, Any]] = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return [row for row in rows if row["state"] == state]


def store(path: Path, state: str, row: Mapping[str, Any]) -> None:
    """Append a result; a line is written at once, so that processes can share the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps({"state": state, **row}) + "\n")
