"""Counterexamples on disk: saved when a search finds them, and replayed before the next search."""

import hashlib
import json
import logging
import re
from pathlib import Path

from faithcheck.axioms.counterexamples.comparison import attributions, gap_between, refuse_unequal
from faithcheck.axioms.counterexamples.rewrite import Counterexample
from faithcheck.axioms.measure.roundoff import tolerance
from faithcheck.explainers.protocol import Explainer, Unsupported
from faithcheck.models.case import Case
from faithcheck.models.files import write_atomically

log = logging.getLogger(__name__)

FOLDER = Path(".faithcheck") / "counterexamples"
"""The folder of saved counterexamples, under the current folder: beside the explainer that they are about. Its authors
see them there, can put them under version control, and CI replays them. A cache would mix the explainers of all
projects, and could be emptied at any time."""


def replay(explainer: Explainer, case: Case) -> tuple[dict[str, object], list[Counterexample]]:
    """The saved counterexamples that still violate invariance, and the details to report about all saved ones."""
    violating: list[Counterexample] = []
    resolved, unreadable = [], []
    for file in sorted(FOLDER.glob("*.json")):
        try:
            saved = Counterexample.from_json(json.loads(file.read_text(encoding="utf-8")))
            if saved.explainer != explainer.name:
                continue
            saved_case = saved.case(case.inputs)
            refuse_unequal(saved.rewrite, saved_case)
        except (OSError, ValueError) as error:
            unreadable.append(f"{file.name}: {error}")
            log.warning("%s cannot be replayed: %s", file, error)
            continue
        try:
            gap = gap_between(*attributions(explainer, saved.rewrite, saved_case))
        except Unsupported as refusal:
            resolved.append(f"{file.name} (refused: {refusal})")
            continue
        if gap <= tolerance(case.inputs):
            resolved.append(f"{file.name} ({saved.rewrite})")
        else:
            violating.append(Counterexample(explainer.name, saved.rewrite, saved.points, gap))
    violating.sort(key=lambda counterexample: counterexample.rewrite.size)
    detail: dict[str, object] = {}
    if violating:
        detail["replayed"] = f"{len(violating)} saved in {FOLDER}; no search while they violate invariance"
    if resolved:
        detail["no longer separates"] = "; ".join(resolved)
    if unreadable:
        detail["cannot be replayed"] = "; ".join(unreadable)
    return detail, violating


def save(counterexample: Counterexample) -> str:
    """Write a counterexample into `FOLDER`; returns the path, or the reason why it could not be written."""
    entries = counterexample.to_json().items()
    lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in entries]
    key = hashlib.sha256(str(counterexample.rewrite).encode()).hexdigest()[:12]
    file = FOLDER / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', counterexample.explainer)}-{key}.json"
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
        write_atomically(file, "{\n" + ",\n".join(lines) + "\n}\n")
    except OSError as error:
        log.info("the counterexample %s is not saved: %s", counterexample.rewrite, error)
        return f"no: {FOLDER.absolute()} cannot be written ({type(error).__name__}: {error.strerror or error})"
    return str(file)
