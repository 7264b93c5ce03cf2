"""Checking one explainer from Python, without pytest."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import Any

from faithcheck.axioms.engine.check import Settings
from faithcheck.axioms.engine.expectations import held_like, refuse_malformed, stated_axioms
from faithcheck.axioms.engine.plan import plan
from faithcheck.axioms.engine.record import Record
from faithcheck.explainers.adapters import as_explainer
from faithcheck.explainers.protocol import Explainer
from faithcheck.explainers.registry import unknown_name
from faithcheck.models.pair import Pair, registered_pairs

FIRST_AXIOMS = ("invariance", "generated", "completeness", "loo", "trace")
"""Measured by default, whatever an explainer claims: what authors ask about first."""


def default_axioms(explainer: Explainer, pairs: Iterable[Pair]) -> list[str]:
    """The first axioms, and every other of which something is claimed, or expected on one of the pairs."""
    return list(dict.fromkeys((*FIRST_AXIOMS, *stated_axioms(explainer, list(pairs)))))


def check_explainer(
    explainer: Any,
    axioms: Iterable[str] | None = None,
    subjects: Iterable[str | Pair] | None = None,
    settings: Settings | None = None,
    *,
    like: str | None = None,
) -> list[Record]:
    """Check one explainer without pytest.

    Args:
        explainer: an object with ``name`` and ``attribute(model, case)``, or anything that `as_explainer` accepts.
        axioms: names in `AXIOMS`; those of `default_axioms` by default.
        subjects: pairs, their names, or globs; all registered pairs by default.
        settings: seed 0, float64 on the CPU by default.
        like: the built-in explainer that this one implements anew, such as ``"attnlrp"``: it is held to that one's
            claims and expectations, closed forms included.

    Returns:
        One record per check, red ones included: see ``record.passed``. An axiom that does not apply to the explainer
        has none: see `faithcheck.axioms.engine.plan.not_applicable`.

    Raises:
        ValueError: no explainer, or one that is named like a built-in one; no built-in explainer of the name ``like``;
            an unknown axiom or subject; or an expectation that matches no check.
    """
    checked, registered = as_explainer(explainer), registered_pairs()
    if like is not None:
        checked = held_like(checked, like)
    chosen: dict[str, Pair] = {}
    for subject in registered if subjects is None else subjects:
        names = [] if isinstance(subject, Pair) else fnmatch.filter(registered, subject)
        matches = [subject] if isinstance(subject, Pair) else [registered[name] for name in names]
        if not matches:
            raise ValueError(unknown_name("subject", str(subject), registered))
        chosen |= {pair.name: pair for pair in matches}
    refuse_malformed(checked)
    measured = default_axioms(checked, chosen.values()) if axioms is None else axioms
    checks = [check for axiom in measured for check in plan(axiom, [checked], chosen.values())]
    return [check.run(settings or Settings()) for check in checks]
