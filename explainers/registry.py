"""The explainers at hand: built in, installed with other packages (entry points), or a stranger's ``module:Object``."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points, version

from faithcheck.explainers.adapters import NotAnExplainer, as_explainer
from faithcheck.explainers.attention_rollout import AttentionRollout
from faithcheck.explainers.deeplift import DeepLiftRescale
from faithcheck.explainers.gates.finite_mask_gate import FiniteMaskGate
from faithcheck.explainers.gates.grouped_mask_gate import GroupedMaskGate
from faithcheck.explainers.gates.mask_gate import MaskGate
from faithcheck.explainers.gates.readout_gate import ReadoutGate
from faithcheck.explainers.gradients import GradientTimesInput, IntegratedGradients
from faithcheck.explainers.loo.budget import BudgetedLeaveOneOut
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.lrp.attnlrp import AttnLRP
from faithcheck.explainers.lrp.blockwise import BlockwiseLRP
from faithcheck.explainers.lrp.cplrp import CPLRP
from faithcheck.explainers.lrp.epsilon_lrp import EpsilonLRP
from faithcheck.explainers.protocol import Explainer

GROUP = "faithcheck.explainers"
"""The group of entry points under which a package offers explainers: ``their_name = "their.module:Object"``."""


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


def installed(group: str) -> dict[str, EntryPoint]:
    """What installed packages offer under a group of entry points, by name; nothing of it is imported.

    Raises:
        ValueError: two packages offer something under one name.
    """
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise ValueError(
                f"{provider(other)} and {provider(point)} both offer a {point.name!r} in {group}: uninstall one, or "
                "name the object itself, as module:Object"
            )
    return found


def provider(point: EntryPoint) -> str:
    """The package that offers an entry point, with its version."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"


def load_explainer(spec: str) -> Explainer:
    """An explainer by its built-in name, by that of an entry point, or by ``pkg.module:Object``.

    A class is called without arguments, and whatever `as_explainer` takes is taken.

    Raises:
        ValueError: no such name (with the nearest one), no such object, an object that is no explainer, or one with
            the name of a built-in.
        ImportError: the module does not import; the traceback is its own.
    """
    builtin, offered = builtin_explainers(), installed(GROUP)
    if spec in builtin:
        return builtin[spec]
    named = f"{offered[spec].module}:{offered[spec].attr}" if spec in offered else spec
    module_name, _, path = named.partition(":")
    if spec in offered and not offered[spec].attr:
        raise ValueError(f"the entry point {spec} of {provider(offered[spec])} names no object: {offered[spec].value}")
    if not module_name or not path:
        raise ValueError(
            unknown_name("explainer", spec, {*builtin, *offered}) + "; your own is given as pkg.module:Object"
        )
    found: object = importlib.import_module(module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            raise ValueError(
                unknown_name(f"object in {module_name}", part, vars(found) if hasattr(found, "__dict__") else ())
            )
        found = getattr(found, part)
    try:
        explainer = as_explainer(found, spec if spec in offered else None)
    except NotAnExplainer as error:
        raise ValueError(f"{spec} is no explainer: {error}") from error
    if explainer.name in builtin:
        raise ValueError(f"{spec} is named {explainer.name!r}, which is a built-in explainer's name: choose another")
    return explainer


def origin(spec: str, explainer: Explainer) -> str:
    """Where an explainer that was loaded by this name comes from, for the report."""
    own = getattr(explainer, "origin", "")
    if spec in builtin_explainers():
        return f"built in, faithcheck {version('faithcheck')}"
    offered = installed(GROUP)
    loaded = f"entry point {spec} of {provider(offered[spec])}" if spec in offered else spec
    return f"{own}, by {loaded}" if own else loaded


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """The message for an unknown name: the nearest known ones, or all of them."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
    return f"unknown {kind} {name!r}: {hint}"
