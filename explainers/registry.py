"""The explainers at hand, by name, and a stranger's, by ``module:Object``."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable

from faithcheck.explainers.blockwise import BlockwiseLRP
from faithcheck.explainers.budget import BudgetedLeaveOneOut
from faithcheck.explainers.deeplift import DeepLiftRescale
from faithcheck.explainers.gates import FiniteMaskGate, GroupedMaskGate, MaskGate
from faithcheck.explainers.gradients import GradientTimesInput, IntegratedGradients
from faithcheck.explainers.loo import LeaveOneOut
from faithcheck.explainers.lrp import CPLRP, AttnLRP, EpsilonLRP
from faithcheck.explainers.protocol import Explainer
from faithcheck.explainers.readout import ReadoutGate
from faithcheck.explainers.rollout import AttentionRollout


def builtin_explainers() -> dict[str, Explainer]:
    """The built-in explainers by name."""
    explainers: list[Explainer] = [
        LeaveOneOut(),
        GradientTimesInput(),
        IntegratedGradients(),
        AttentionRollout(),
        EpsilonLRP(),
        AttnLRP(),
        CPLRP(),
        DeepLiftRescale(),
        BlockwiseLRP(),
        MaskGate(),
        FiniteMaskGate(),
        ReadoutGate(),
        GroupedMaskGate(),
        BudgetedLeaveOneOut(),
    ]
    return {explainer.name: explainer for explainer in explainers}


def load_explainer(spec: str) -> Explainer:
    """A built-in explainer by name, or any object by ``pkg.module:Object``; a class is called without arguments.

    Raises:
        ValueError: no such built-in (with the nearest name), no such object, an object that is no explainer, or a name
            that a built-in has.
        ImportError: the module does not import; the traceback is its own.
    """
    builtin = builtin_explainers()
    if spec in builtin:
        return builtin[spec]
    module_name, colon, path = spec.partition(":")
    if not colon or not module_name or not path:
        raise ValueError(unknown("explainer", spec, builtin) + "; your own is given as pkg.module:Object")
    found: object = importlib.import_module(module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            raise ValueError(
                unknown(f"object in {module_name}", part, vars(found) if hasattr(found, "__dict__") else ())
            )
        found = getattr(found, part)
    explainer = found() if isinstance(found, type) else found
    if not callable(getattr(explainer, "attribute", None)) or not isinstance(getattr(explainer, "name", None), str):
        raise ValueError(
            f"{spec} is no explainer: expected an object or class with a string `name` and a method "
            f"`attribute(model, case) -> tensor`, found {type(explainer).__name__} {explainer!r:.80}"
        )
    assert isinstance(explainer, Explainer)
    if explainer.name in builtin:
        raise ValueError(f"{spec} is named {explainer.name!r}, which is a built-in explainer's name: choose another")
    return explainer


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The message for an unknown name: the nearest known ones, or all of them."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
    return f"unknown {kind} {name!r}: {hint}"
