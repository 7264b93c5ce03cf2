"""Checking one explainer from Python, without pytest."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import Any

from faithcheck.axioms.engine.check import Settings
from faithcheck.axioms.engine.plan import plan
from faithcheck.axioms.engine.record import Record
from faithcheck.explainers.adapters import as_explainer
from faithcheck.explainers.registry import unknown_name
from faithcheck.models.pair import Pair, registered_pairs

DEFAULT_AXIOMS = ("invariance", "generated", "completeness", "loo", "trace")


def check_explainer(
    explainer: Any,
    axioms: Iterable[str] = DEFAULT_AXIOMS,
    subjects: Iterable[str | Pair] | None = None,
    settings: Settings | None = None,
) -> list[Record]:
    """Check one explainer without pytest.

    Args:
        explainer: an object with ``name`` and ``attribute(model, case)``, or anything that `as_explainer` accepts.
        axioms: names in `AXIOMS`.
        subjects: pairs, their names, or globs; all registered pairs by default.
        settings: seed 0, float64 on the CPU by default.

    Returns:
        One record per check, red ones included: see ``record.passed``. An axiom that does not apply to the explainer
        has none: see `faithcheck.axioms.engine.plan.not_applicable`.

    Raises:
        ValueError: no explainer; an unknown axiom or subject; or an expectation that matches no check.
    """
    checked, registered = as_explainer(explainer), registered_pairs()
    chosen: dict[str, Pair] = {}
    for subject in registered if subjects is None else subjects:
        names = [] if isinstance(subject, Pair) else fnmatch.filter(registered, subject)
        matches = [subject] if isinstance(subject, Pair) else [registered[name] for name in names]
        if not matches:
            raise ValueError(unknown_name("subject", str(subject), registered))
        chosen |= {pair.name: pair for pair in matches}
    checks = [check for axiom in axioms for check in plan(axiom, [checked], chosen.values())]
    return [check.run(settings or Settings()) for check in checks]
