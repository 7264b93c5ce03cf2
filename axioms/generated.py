"""Generated pairs: drawn expressions, rewritten by identities, until two of them separate an explainer from invariance.

A chain is a term and what a few rewrites make of it, one after the other. If the attributions at its two ends differ,
then so do those before and after one of its rewrites: a smallest counterexample is always a single rewrite. So every
rewrite of a drawn chain is measured as a pair. Hypothesis draws chains that begin with a rewrite by each identity in
turn, and shrinks those on which it separates. The smallest pair is the one with the fewest operations.

Found ones are kept in `FOLDER` and replayed, before any search, on the next run.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from faithcheck.axioms.engine.verdicts import Measurement, relative_gap, tolerance
from faithcheck.axioms.equivalence import forward_and_gradient
from faithcheck.explainers.gradients import CompletenessWarning
from faithcheck.explainers.protocol import Explainer, Unsupported, attribution_of
from faithcheck.explainers.registry import builtin_explainers
from faithcheck.models.case import Case
from faithcheck.models.networks.expressions import (
    BINARY,
    IDENTITIES,
    UNARY,
    Apply,
    Constant,
    Expression,
    Identity,
    Input,
    Term,
    apply,
    features,
    from_json,
    intermediates,
    operations,
    rewritten,
    substitute,
    subterms,
    to_json,
)

log = logging.getLogger(__name__)

FOLDER = Path(".faithcheck") / "counterexamples"
"""Where found counterexamples are kept, under the current folder: beside the explainer that they are about, so that its
authors see them, can put them under version control, and meet them again in CI. A cache would mix the explainers of
all projects and could be emptied at any time."""

SCHEMA_VERSION = 1
EXAMPLES = 15  # of each identity
STEPS, WRAPS, LEAVES, LARGEST = 3, 2, 3, 40
# A rule may divide by a value, a kink has no gradient, exp overflows: there round-off, not the explainer, would tell
# two terms apart. So points are left out where a part of a term is nearer to 0 than LEAST or larger than MOST, or the
# operands of a maximum are nearer to each other than LEAST. A part that is 0, such as a ReLU that is off, has no
# round-off, and stays where it is no operand of an activation. LEAST is also the least scale of a gap: where all
# attributions cancel, only their round-off is left.
LEAST, MOST = 1 / 16, 64.0

# Stands for a feature that was not used yet: what Hypothesis shrinks to, so that pairs read x1, x2, …
FRESH = Input(-1)


@dataclass(frozen=True)
class Step:
    """One rewrite: two terms that are equal by the identity of this name."""

    identity: str
    f: Term
    g: Term

    def __str__(self) -> str:
        return f"{self.f} = {self.g}"

    @property
    def size(self) -> tuple[int, int, int]:
        """What the smallest has least of: operations, then operands, then features that occur more than once."""
        parts = [*subterms(self.f), *subterms(self.g)]
        inputs = {part for part in parts if isinstance(part, Input)}
        return operations(self.f) + operations(self.g), len(parts), -len(inputs)

    @property
    def order(self) -> tuple[tuple[int, int, int], int, str]:
        """By size; the same size by text, the shortest first."""
        return self.size, len(str(self)), str(self)


@dataclass(frozen=True)
class Counterexample:
    """A rewrite that changes an explainer's attribution.

    Attributes:
        explainer: its name.
        step: the two terms.
        points: the inputs at which they are compared, from a baseline of 0.
        gap: how far, as `invariance` has it.
    """

    explainer: str
    step: Step
    points: tuple[tuple[float, ...], ...]
    gap: float

    def case(self, like: Tensor) -> Case:
        """The points as a case of this dtype and device."""
        return at(torch.tensor(self.points, dtype=like.dtype, device=like.device))

    def to_json(self) -> dict[str, Any]:
        """The counterexample as JSON's types."""
        return {
            "faithcheck_counterexample": SCHEMA_VERSION,
            "explainer": self.explainer,
            "identity": self.step.identity,
            "pair": str(self.step),
            "f": to_json(self.step.f),
            "g": to_json(self.step.g),
            "points": [list(point) for point in self.points],
            "gap": self.gap,
        }

    @classmethod
    def from_json(cls, document: Any) -> Counterexample:
        """The inverse of `to_json`.

        Raises:
            ValueError: not a counterexample that this version can read; says what is wrong.
        """
        if not isinstance(document, dict) or document.get("faithcheck_counterexample") != SCHEMA_VERSION:
            raise ValueError(f"no counterexample of version {SCHEMA_VERSION}")
        try:
            step = Step(str(document["identity"]), from_json(document["f"]), from_json(document["g"]))
            points = tuple(tuple(float(x) for x in point) for point in document["points"])
            found = cls(str(document["explainer"]), step, points, float(document["gap"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"a damaged counterexample: {error!r}") from error
        if not points or any(len(point) < max(features(step.f), features(step.g)) for point in points):
            raise ValueError("a damaged counterexample: too few numbers in a point")
        return found


def at(inputs: Tensor) -> Case:
    """A case at these inputs ``(batch, features)``, from a baseline of 0."""
    return Case(inputs, torch.zeros(len(inputs), dtype=torch.int64, device=inputs.device), torch.zeros_like(inputs))


# --- what is drawn ---------------------------------------------------------------------------------------------------


def larger(parts: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
    """Operations on these parts."""
    binary = st.builds(apply, st.sampled_from(BINARY), parts, parts)
    return binary | st.builds(apply, st.sampled_from(UNARY), parts)


# Made once: Hypothesis takes longer to make a strategy than to draw from it.
OPERANDS: list[Term] = [FRESH, *map(Constant, (1.0, 2.0, -1.0)), Input(0), Input(1), *[FRESH] * 4]
TERM: st.SearchStrategy[Term] = st.recursive(st.sampled_from(OPERANDS), larger, max_leaves=LEAVES)
SWAPPED, PLACE = st.booleans(), st.integers(0, 2**16)
WRAP = st.lists(st.sampled_from([*BINARY, *UNARY]), max_size=WRAPS)
NEXT = st.lists(st.sampled_from(IDENTITIES), max_size=STEPS - 1)


@st.composite
def chains(draw: st.DrawFn, width: int, identity: Identity | None) -> list[Step]:
    """A side of an identity, of drawn terms and within a drawn context, and what a few rewrites make of it.

    Args:
        draw: from Hypothesis.
        width: how many features there are.
        identity: the first rewrite; without one, a drawn term is paired with itself.
    """
    fresh = itertools.cycle(range(width))
    if identity is None:
        term = numbered(draw(TERM), fresh)
        return [Step("itself", term, term)]
    f, g = (identity.right, identity.left) if draw(SWAPPED) else (identity.left, identity.right)
    meaning = {Input(i): numbered(draw(TERM), fresh) for i in range(features(f))}
    f, g = substitute(f, meaning), substitute(g, meaning)
    for operation in draw(WRAP):
        others = [numbered(draw(TERM), fresh)] if operation in BINARY else []
        f, g = apply(operation, f, *others), apply(operation, g, *others)
    chain = [Step(identity.name, f, g)]
    for other in draw(NEXT):
        options = [new for new in rewritten(g, other) if operations(new) <= LARGEST]
        if options:
            f, g = g, options[draw(PLACE) % len(options)]
            chain.append(Step(other.name, f, g))
    return chain


def numbered(term: Term, fresh: Iterator[int]) -> Term:
    """The term with the next feature for each `FRESH`."""
    if isinstance(term, Apply):
        return Apply(term.operation, tuple(numbered(operand, fresh) for operand in term.operands))
    return Input(next(fresh)) if term == FRESH else term


# --- what is measured ------------------------------------------------------------------------------------------------


def regular(term: Term, inputs: Tensor) -> Tensor:
    """At which rows no part of the term is large or nearly 0, and no operand at 0 or at a kink: ``(batch,)`` bool."""
    fine = torch.ones(len(inputs), dtype=torch.bool, device=inputs.device)
    known = intermediates(term, inputs)
    for part, value in known.items():
        if not isinstance(part, Constant):
            fine &= ((value.abs() >= LEAST) | (value == 0)) & (value.abs() <= MOST)
        if isinstance(part, Apply) and (part.operation == "max" or part.operation in UNARY):
            first, *others = (known[operand] for operand in part.operands)
            distance = first - others[0] if others else first
            fine &= distance.abs() >= LEAST
    return fine


def differ(left: Tensor, right: Tensor) -> float:
    """The largest difference relative to the example's largest entry, but at least to `LEAST`."""
    return relative_gap(left - right, left, right, torch.full_like(left[:, :1], LEAST))


def refuse_unequal(step: Step, case: Case) -> None:
    """Refuse two terms that differ in value or gradient.

    Raises:
        ValueError: names the identity and the terms.
    """
    sides = (forward_and_gradient(which, Expression(term), case) for which, term in (("f", step.f), ("g", step.g)))
    for what, left, right in zip(("values", "gradients"), *sides, strict=True):
        gap = differ(left, right)
        if not gap <= tolerance(case.inputs):
            raise ValueError(f"{step.identity}: the {what} of {step} differ by {gap:.3g}: no identity")


def attributions(explainer: Explainer, step: Step, case: Case) -> tuple[Tensor, Tensor]:
    """The explainer's two maps, each ``(batch, features)``.

    Raises:
        Unsupported, InvalidAttribution: from the explainer; as any other error of its own, with a note that names the
            pair.
    """
    with warnings.catch_warnings():
        # A quadrature that is too coarse at a kink is so for both terms: they are evaluated at the same points.
        warnings.simplefilter("ignore", CompletenessWarning)
        try:
            f, g = (attribution_of(explainer, Expression(term).eval(), case) for term in (step.f, step.g))
        except Unsupported:
            raise
        except Exception as error:
            error.add_note(f"on {step}; to refuse a model, raise faithcheck.explainers.Unsupported")
            raise
    return f, g


@dataclass
class Search:
    """One explainer's search for counterexamples at the points of a case.

    Attributes:
        explainer: who.
        case: ``(batch, features)`` inputs; each pair is compared where it is regular.
        examples: how many chains are drawn for each identity.
        gaps: of every pair that was drawn; None where the explainer refused it or no point is regular.
        refused: how many pairs the explainer refused.
        refusal: the last reason.
        errors: what was raised, by the explainer or because an identity does not hold.
    """

    explainer: Explainer
    case: Case
    examples: int = EXAMPLES
    gaps: dict[Step, float | None] = field(default_factory=dict)
    refused: int = 0
    refusal: str = ""
    errors: dict[Step, Exception] = field(default_factory=dict)

    def run(self, seed: int, identities: Sequence[Identity | None] = IDENTITIES) -> list[Counterexample]:
        """The smallest counterexample of each identity that separates, in order of size.

        Deterministic for a deterministic explainer.

        Raises:
            ValueError: an identity does not hold.
            Exception: from the explainer, on the smallest pair found on which it raises; a note names the pair.
        """
        for identity in identities:
            self._shrink(seed, identity)
            if self.errors:
                raise self.errors[min(self.errors, key=lambda step: step.order)]
        separated = [step for step, gap in self.gaps.items() if self.separates(gap)]
        smallest: dict[str, Step] = {}
        for step in sorted(separated, key=lambda step: step.order):
            smallest.setdefault(step.identity, step)
        return [self._counterexample(step) for step in smallest.values()]

    @property
    def measured(self) -> list[float]:
        """The gaps of the pairs that could be measured."""
        return [gap for gap in self.gaps.values() if gap is not None]

    def separates(self, gap: float | None) -> bool:
        """Whether a gap is above round-off; NaN is."""
        return gap is not None and not gap <= tolerance(self.case.inputs)

    def gap(self, step: Step) -> float | None:
        """How far the two attributions of a pair differ; None where it is not measured."""
        if step not in self.gaps:
            self.gaps[step] = self._measure(step)
        return self.gaps[step]

    def points(self, step: Step) -> Case:
        """The case at the rows where both terms are regular."""
        rows = regular(step.f, self.case.inputs) & regular(step.g, self.case.inputs)
        return self.case.select(rows.nonzero().squeeze(1))

    def _measure(self, step: Step) -> float | None:
        there = self.points(step)
        if len(there.inputs) == 0 or features(step.f) == 0:
            return None
        refuse_unequal(step, there)
        try:
            return differ(*attributions(self.explainer, step, there))
        except Unsupported as refusal:
            self.refused, self.refusal = self.refused + 1, str(refusal)
            return None

    def _shrink(self, seed: int, identity: Identity | None) -> None:
        """Measure drawn chains, and smaller and smaller ones once this identity separates or something is raised."""

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=self.examples,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(chains(self.case.shape[1], identity))
        def nothing_separates(chain: list[Step]) -> None:
            if self._tells(chain):
                raise Separated

        with contextlib.suppress(Separated):
            nothing_separates()

    def _tells(self, chain: list[Step]) -> bool:
        """Measure a chain: whether its first rewrite separates, or anything was raised, which `run` raises again.

        Not raised here, so that Hypothesis shrinks it like a separation and adds no words of its own to it.
        """
        for step in chain:
            if step not in self.errors:
                try:
                    self.gap(step)
                except Exception as error:
                    self.errors[step] = error
        return any(step in self.errors for step in chain) or self.separates(self.gap(chain[0]))

    def _counterexample(self, step: Step) -> Counterexample:
        points, gap = self.points(step).inputs.tolist(), self.gap(step)
        assert gap is not None
        return Counterexample(self.explainer.name, step, tuple(map(tuple, points)), gap)


class Separated(Exception):
    """Two equal terms got two attributions."""


def separate(explainer: Explainer, case: Case, seed: int = 0, examples: int = EXAMPLES) -> Counterexample | None:
    """The smallest pair of equal expressions with two attributions, or None if none was found.

    Args:
        explainer: who is to be separated from a claim of invariance.
        case: where the pairs are compared, ``(batch, features)`` inputs.
        seed: of what is drawn.
        examples: how many chains are drawn for each identity.

    Raises:
        ValueError: an identity does not hold.
        Exception: from the explainer, with a note that names the pair.
    """
    return next(iter(Search(explainer, case, examples).run(seed)), None)


# --- the axiom -------------------------------------------------------------------------------------------------------


def generated(explainer: Explainer, f: nn.Module, g: nn.Module, case: Case) -> Measurement:
    """Replay the saved counterexamples; if none separates, search; measure the smallest pair that does.

    ``values`` and ``gap`` are those of `invariance` on the smallest pair; ``gap`` is the largest of all pairs where
    nothing separates. The seed comes from torch's random state, which a check sets.

    Args:
        explainer: who is measured.
        f: see g.
        g: where f and g are one expression, nothing is rewritten: every drawn term is compared with itself.
        case: the points, ``(batch, features)``.

    Raises:
        ValueError: an identity does not hold.
        Unsupported: the explainer refused every drawn pair.
        Exception: from the explainer, with a note that names the pair.
    """
    search, seed = Search(explainer, case, EXAMPLES), int(torch.randint(2**31, ()))
    detail: dict[str, object] = {}
    if isinstance(f, Expression) and isinstance(g, Expression) and f.term == g.term:
        found = search.run(seed, identities=[None])
    else:
        detail, found = replay(explainer, case)
        if not found:
            found = search.run(seed)
            if found and contradicts(explainer):
                detail["saved"] = save(found[0])
    detail |= {"pairs": len(search.measured), "refused pairs": search.refused or None}
    if found:
        return smallest_of(found, explainer, case, detail)
    if not search.measured:
        raise Unsupported(f"every drawn pair was refused: {search.refusal}")
    return Measurement(max(search.measured), tolerance(case.inputs), case.inputs.new_zeros(1, 1), detail=detail)


def contradicts(explainer: Explainer) -> bool:
    """Whether a counterexample is news of this explainer: it claims invariance, and states no violation of its own.

    What separates the built-in ones is registered.
    """
    claims = {"invariance", "generated"} & set(getattr(explainer, "claims", ()))
    stated = any(axiom == "generated" for axiom, _ in getattr(explainer, "expected", {}))
    return bool(claims) and not stated and explainer.name not in builtin_explainers()


def smallest_of(
    found: Sequence[Counterexample], explainer: Explainer, case: Case, detail: dict[str, object]
) -> Measurement:
    """What `invariance` measures on the first counterexample, with the pair and its attributions in words."""
    smallest, there = found[0], found[0].case(case.inputs)
    left, right = attributions(explainer, smallest.step, there)
    apart = (i for i in range(len(left)) if not differ(left[i : i + 1], right[i : i + 1]) <= tolerance(case.inputs))
    i = next(apart, 0)
    detail |= {
        "smallest pair": f"{smallest.step} ({smallest.step.identity})",
        "attributions": f"{row(left[i])} and {row(right[i])} at {row(there.inputs[i])}",
        "separated by": "; ".join(one.step.identity for one in found),
    }
    return Measurement(smallest.gap, tolerance(case.inputs), left - right, torch.cat([left, right], 1), detail=detail)


def row(values: Tensor) -> str:
    """A row in few characters: ``(6, 6, 12)``."""
    return f"({', '.join(f'{value:.4g}' for value in values.tolist())})"


# --- counterexamples on disk -----------------------------------------------------------------------------------------


def replay(explainer: Explainer, case: Case) -> tuple[dict[str, object], list[Counterexample]]:
    """The saved counterexamples of this explainer that still separate, and what to report of all of them."""
    still: list[Counterexample] = []
    gone, unreadable = [], []
    for file in sorted(FOLDER.glob("*.json")):
        try:
            saved = Counterexample.from_json(json.loads(file.read_text(encoding="utf-8")))
            if saved.explainer != explainer.name:
                continue
            there = saved.case(case.inputs)
            refuse_unequal(saved.step, there)
        except (OSError, ValueError) as error:
            unreadable.append(f"{file.name}: {error}")
            log.warning("%s cannot be replayed: %s", file, error)
            continue
        try:
            gap = differ(*attributions(explainer, saved.step, there))
        except Unsupported as refusal:
            gone.append(f"{file.name} (refused: {refusal})")
            continue
        if gap <= tolerance(case.inputs):
            gone.append(f"{file.name} ({saved.step})")
        else:
            still.append(Counterexample(explainer.name, saved.step, saved.points, gap))
    still.sort(key=lambda found: found.step.size)
    detail: dict[str, object] = {}
    if still:
        detail["replayed"] = f"{len(still)} saved in {FOLDER}; no search while they separate"
    if gone:
        detail["no longer separates"] = "; ".join(gone)
    if unreadable:
        detail["cannot be replayed"] = "; ".join(unreadable)
    return detail, still


def save(found: Counterexample) -> str:
    """Write a counterexample into `FOLDER`, and say where; or why it could not be written."""
    lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in found.to_json().items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    key = hashlib.sha256(str(found.step).encode()).hexdigest()[:12]
    file = FOLDER / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', found.explainer)}-{key}.json"
    part = file.with_suffix(f".{os.getpid()}.part")  # renamed when whole: others may read meanwhile
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        log.info("the counterexample %s is not saved: %s", found.step, error)
        return f"no: {FOLDER.absolute()} cannot be written ({type(error).__name__}: {error.strerror or error})"
    return str(file)
