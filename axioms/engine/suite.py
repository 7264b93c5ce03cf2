"""The suite: which checks there are, how one runs, and the record that it leaves.

One generator, `plan`, stands behind both pytest and `check_explainer`.
"""

from __future__ import annotations

import fnmatch
import math
import random
import re
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import nn

from faithcheck.axioms.batching import batching
from faithcheck.axioms.completeness import completeness
from faithcheck.axioms.conservation import conservation
from faithcheck.axioms.determinism import determinism
from faithcheck.axioms.dummy import dummy
from faithcheck.axioms.engine.time_limit import TimedOut, time_limit
from faithcheck.axioms.engine.verdicts import PASSING, Measurement, Status, relative_gap, settle
from faithcheck.axioms.equivalence import NotAPair, equivalence
from faithcheck.axioms.generated import generated
from faithcheck.axioms.invariance import invariance
from faithcheck.axioms.linearity import linearity
from faithcheck.axioms.loo_correlation import loo_agreement
from faithcheck.axioms.precision import precision
from faithcheck.axioms.randomisation import randomisation
from faithcheck.axioms.scale import scale
from faithcheck.axioms.sensitivity import sensitivity
from faithcheck.axioms.shift import shift
from faithcheck.axioms.symbolic import symbolic
from faithcheck.axioms.symmetry import symmetry
from faithcheck.axioms.trace import RANDOM, restored, trace
from faithcheck.explainers.adapters import as_explainer
from faithcheck.explainers.gradients import CompletenessWarning
from faithcheck.explainers.protocol import Explainer, Unsupported
from faithcheck.explainers.registry import builtin_explainers, unknown_name
from faithcheck.models.case import Case
from faithcheck.models.pair import Expectation, Pair, registered_pairs


@dataclass(frozen=True)
class Axiom:
    """One axiom: what it says, and the function that measures it.

    Attributes:
        summary: one line.
        measure: ``measure([explainer,] *models, case) -> Measurement``.
        of_pairs: measured on both models of a pair together, not on each alone.
        of_explainers: measured for an explainer, not for the pair as such.
        part_of: the axiom of which this is a part: who claims that, claims this.
        of_everyone: every explainer is held to it, whatever it claims.
    """

    summary: str
    measure: Callable[..., Measurement]
    of_pairs: bool = True
    of_explainers: bool = True
    part_of: str = ""
    of_everyone: bool = False


AXIOMS = {
    "equivalence": Axiom(
        "the two models of a pair are one function", equivalence, of_explainers=False, part_of="invariance"
    ),
    "invariance": Axiom("two implementations of one function get one attribution", invariance),
    "generated": Axiom("no drawn pair of equal expressions gets two attributions", generated, part_of="invariance"),
    "completeness": Axiom("attributions sum to f(x) − f(baseline)", completeness, of_pairs=False),
    "conservation": Axiom("every operation passes on the relevance that it received", conservation, of_pairs=False),
    "loo": Axiom("attributions correlate with Leave-One-Out", loo_agreement, of_pairs=False),
    "symbolic": Axiom("the running explainer is its symbolic derivation", symbolic),
    "sensitivity": Axiom("a feature that changes the output alone is not given zero", sensitivity, of_pairs=False),
    "dummy": Axiom("a feature on which the function does not depend gets zero", dummy, of_pairs=False),
    "linearity": Axiom("αf₀ + βf₁ gets α times the attribution of f₀ plus β times f₁'s", linearity, of_pairs=False),
    "symmetry": Axiom("symmetric features of equal values get equal attributions", symmetry, of_pairs=False),
    "shift": Axiom("f(x − c) at x + c gets the attribution of f at x", shift, of_pairs=False),
    "scale": Axiom("s·f(x/c) at c·x gets s times the attribution of f at x", scale, of_pairs=False),
    "randomisation": Axiom("a model of random weights gets another attribution", randomisation, of_pairs=False),
    "determinism": Axiom("the same call gives the same bits", determinism, of_pairs=False),
    "batching": Axiom("an example gets the same attribution alone as in a batch", batching, of_pairs=False),
    "precision": Axiom("float32 gives the attribution of float64, to round-off", precision, of_pairs=False),
    "trace": Axiom("an attribution leaves nothing behind", trace, of_pairs=False, of_everyone=True),
}

SUMMARIES = {name: axiom.summary for name, axiom in AXIOMS.items()}
"""What each axiom says, for the results document."""

NEEDS_CUDA = "not compiled with CUDA|Found no NVIDIA driver|No CUDA GPUs|no CUDA-capable device"
"""What torch says to whoever asks for a GPU where there is none."""


@dataclass(frozen=True)
class Settings:
    """What a run is fixed by: the seed of pairs and cases, the floating-point type and the device.

    Attributes:
        timeout: the seconds after which a check of an explainer is stopped; None: never.
    """

    seed: int = 0
    dtype: torch.dtype = torch.float64
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    timeout: float | None = None


@dataclass(frozen=True)
class SuppliedExpectation:
    """An expectation that neither the pair nor the explainer states, but whoever runs the suite.

    Attributes:
        axiom: its name.
        explainer: its name, or a glob.
        subject: a pair or, with ``.f`` or ``.g``, one of its models, or a glob.
        expectation: what is expected there, before what pair and explainer state.
    """

    axiom: str
    explainer: str
    subject: str
    expectation: Expectation

    def of(self, axiom: str, explainer: str, subject: str) -> bool:
        """Whether it says something of this check."""
        names = ((explainer, self.explainer), (subject, self.subject))
        return self.axiom == axiom and all(fnmatch.fnmatchcase(name, pattern) for name, pattern in names)


@dataclass(frozen=True)
class Record:
    """One measurement, settled; plain values only.

    Attributes:
        id: ``axiom/explainer-subject``.
        axiom: its name.
        explainer: its name; None where a pair as such is measured.
        subject: the pair, or with ``.f`` or ``.g`` one of its models.
        gap: relative size of the violation; None where there was nothing to measure.
        tol: the largest gap that round-off explains.
        predicted: the gap that the closed form predicts, on the same scale.
        prediction_error: how far the measured values are from the closed form, relative.
        floor: the least gap of an expected violation without a closed form.
        expected: ``HOLDS``, ``VIOLATES`` or ``UNCLAIMED``.
        status: how it settled; see `verdicts`.
        why: the reason for the expectation.
        cite: its source.
        seed: the seed of pair and case.
        detail: further figures.
        traceback: the explainer's own, where it raised.
    """

    id: str
    axiom: str
    explainer: str | None
    subject: str
    gap: float | None
    tol: float | None
    predicted: float | None
    prediction_error: float | None
    floor: float | None
    expected: str
    status: Status
    why: str
    cite: str
    seed: int
    detail: dict[str, object] = field(default_factory=dict)
    traceback: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the check is green."""
        return self.status in PASSING

    def to_json(self) -> dict[str, Any]:
        """The record as JSON's types."""
        return asdict(self)


@dataclass(frozen=True)
class Check:
    """One cell of the suite: an axiom, an explainer, and a pair or one of its models.

    Attributes:
        axiom: a name in `AXIOMS`.
        explainer: who is checked; None where the axiom is of pairs as such.
        pair: on what.
        side: ``""`` for both models, ``"f"`` or ``"g"`` for one.
        given: what whoever runs the suite expects, before what the pair and the explainer state.
    """

    axiom: str
    explainer: Explainer | None
    pair: Pair
    side: str = ""
    given: Sequence[SuppliedExpectation] = ()

    @property
    def subject(self) -> str:
        """The pair's name, or that of one of its models."""
        return f"{self.pair.name}.{self.side}" if self.side else self.pair.name

    @property
    def id(self) -> str:
        """``explainer-subject``, as test ids read."""
        return f"{self.explainer.name}-{self.subject}" if self.explainer else self.subject

    @property
    def stated(self) -> Expectation | None:
        """The expectation that is given, else the one that the pair states, else the explainer's known violation."""
        if self.explainer is None:
            return Expectation("HOLDS", self.pair.why, cite=self.pair.cite)
        for one in self.given:
            if one.of(self.axiom, self.explainer.name, self.subject):
                return one.expectation
        if by_pair := self.pair.expected.get((self.axiom, self.explainer.name)):
            return by_pair
        known: dict[tuple[str, str], Expectation] = getattr(self.explainer, "expected", {})
        own = ((glob, expectation) for (axiom, glob), expectation in known.items() if axiom == self.axiom)
        return next((expectation for glob, expectation in own if fnmatch.fnmatchcase(self.subject, glob)), None)

    @property
    def expectation(self) -> Expectation:
        """What theory expects: what is stated, else the explainer's claim."""
        if (stated := self.stated) is not None:
            return stated
        assert self.explainer is not None  # of a pair as such, equivalence is stated
        if AXIOMS[self.axiom].of_everyone:
            return Expectation("HOLDS", "every explainer is held to it")
        claims = getattr(self.explainer, "claims", ())
        if claimed := [axiom for axiom in (self.axiom, AXIOMS[self.axiom].part_of) if axiom in claims]:
            return Expectation("HOLDS", f"{self.explainer.name} claims {claimed[0]}")
        return Expectation("UNCLAIMED", f"{self.explainer.name} does not claim {self.axiom}")

    def run(self, settings: Settings) -> Record:
        """Build, measure and settle. An error of the explainer or the pair becomes a record of status ``error``."""
        try:
            # Fresh models for every check, and random numbers of its own: nothing leaks from one to the next.
            with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
                torch.manual_seed(settings.seed)
                return self._measured(settings)
        except NotAPair as refusal:  # says it all
            return self._record(settings, "error", detail={"error": str(refusal)})
        except (Exception, SystemExit, TimedOut) as error:
            return self._failed(settings, error)

    def _failed(self, settings: Settings, error: BaseException) -> Record:
        """The record of what the explainer raised."""
        said, refused = f"{type(error).__name__}: {error}", isinstance(error, Unsupported)
        if self.expectation.verdict == "ERROR" and self.expectation.error in said:
            return self._record(settings, "expected error", detail={"error": said})
        if refused and (self.stated is None or self.stated.verdict == "UNCLAIMED"):
            return self._record(settings, "unsupported", detail={"reason": str(error)})
        if refused:
            # What is stated of an explainer must be measured: a rule that went missing is no skip.
            assert self.stated is not None
            said = f"refused, where {self.stated.verdict} is stated: {error}"
        if not torch.cuda.is_available() and re.search(NEEDS_CUDA, said):
            said = (
                f"it needs a GPU and there is none here ({said}): let it work on the device of its inputs, "
                "or run where there is one, with --device=cuda"
            )
        return self._record(settings, "error", detail={"error": said}, traceback=traceback.format_exc())

    def _measured(self, settings: Settings) -> Record:
        models = self._models(settings)
        case = self.pair.case(settings.seed, settings.dtype, settings.device)
        measurement = self._measure(models, case, settings)
        if measurement.gap is not None and not math.isfinite(measurement.gap):
            where = f" at {measurement.detail['told apart by']}" if "told apart by" in measurement.detail else ""
            raise ValueError(f"the gap is {measurement.gap}: an output or a gradient is NaN or infinite{where}")
        expectation = self.expectation
        predicted = expectation.predict(*models, case) if expectation.predict else None
        scale = measurement.scale
        status, error = settle(measurement, expectation, predicted)
        detail = dict(measurement.detail)
        if expectation.verdict == "VIOLATES" and AXIOMS[self.axiom].of_pairs:
            # Every violation has a control: on a model and its deep copy the same explainer must hold.
            control = self._measure((models[0], deepcopy(models[0])), case, settings)
            detail["control gap"] = control.gap
            if control.gap is None or control.gap > control.tol:
                status = "inconclusive"
        return self._record(
            settings,
            status,
            gap=measurement.gap,
            tol=measurement.tol,
            predicted=None if predicted is None or scale is None else relative_gap(predicted, scale),
            prediction_error=error,
            detail=detail,
        )

    def _models(self, settings: Settings) -> tuple[nn.Module, ...]:
        f, g = self.pair.build(settings.seed, settings.dtype, settings.device)
        return {"": (f, g), "f": (f,), "g": (g,)}[self.side]

    def _measure(self, models: Sequence[nn.Module], case: Case, settings: Settings) -> Measurement:
        who = () if self.explainer is None else (self.explainer,)
        with (
            restored(*models) as left,
            time_limit(settings.timeout if who else None),
            warnings.catch_warnings(record=True) as caught,
        ):
            random.seed(settings.seed)
            np.random.seed(settings.seed % 2**32)
            # Two models of one function miss completeness alike: a coarse quadrature is said, and no error here.
            warnings.simplefilter("always", CompletenessWarning)
            measurement = AXIOMS[self.axiom].measure(*who, *models, case)
        said = []
        for warning in caught:
            if issubclass(warning.category, CompletenessWarning):
                said.append(str(warning.message))
            else:
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        found = [line for line in left if not line.startswith(RANDOM)]  # each check has random numbers of its own
        notes = {"warning": "; ".join(said), "left behind": "; ".join(found)}
        return replace(measurement, detail={**{key: note for key, note in notes.items() if note}, **measurement.detail})

    def _record(self, settings: Settings, status: Status, **measured: Any) -> Record:
        expectation = self.expectation
        blank: dict[str, Any] = dict.fromkeys(("gap", "tol", "predicted", "prediction_error"))
        return Record(
            id=f"{self.axiom}/{self.id}",
            axiom=self.axiom,
            explainer=self.explainer.name if self.explainer else None,
            subject=self.subject,
            floor=expectation.floor,
            expected=expectation.verdict,
            status=status,
            why=expectation.why,
            cite=expectation.cite,
            seed=settings.seed,
            **blank | measured,
        )


def plan(
    axiom: str, explainers: Iterable[Explainer], pairs: Iterable[Pair], given: Sequence[SuppliedExpectation] = ()
) -> list[Check]:
    """Every check of an axiom: explainers × pairs (or × both models of each pair).

    Args:
        axiom: a name in `AXIOMS`.
        explainers: who is checked.
        pairs: on what.
        given: what is expected before what pairs and explainers state.

    Raises:
        ValueError: an unknown axiom, or an expectation that matches no check.
    """
    if axiom not in AXIOMS:
        raise ValueError(unknown_name("axiom", axiom, AXIOMS))
    kind = AXIOMS[axiom]
    explainers, pairs = list(explainers), list(pairs)
    refuse_stale_expectations(explainers, pairs, given)
    measured = [pair for pair in pairs if axiom in pair.axioms or not kind.of_explainers]
    who: list[Explainer | None] = [*explainers] if kind.of_explainers else [None]
    return [
        Check(axiom, explainer, pair, side, given)
        for explainer in who
        for pair in measured
        for side in sides(axiom, pair)
    ]


def sides(axiom: str, pair: Pair) -> tuple[str, ...]:
    """What an axiom is measured on: both models of a pair together, or each; one of them where they are copies."""
    if AXIOMS[axiom].of_pairs:
        return ("",)
    return ("f",) if pair.control else ("f", "g")


def refuse_stale_expectations(
    explainers: Sequence[Explainer], pairs: Sequence[Pair], given: Sequence[SuppliedExpectation] = ()
) -> None:
    """Refuse expectations that could match no check: a typo would silently expect nothing.

    Raises:
        ValueError: names the expectation or the claim, and the nearest name that exists.
    """
    for explainer in explainers:
        refuse_malformed(explainer)
    names = {*builtin_explainers(), *(explainer.name for explainer in explainers)}
    for pair in pairs:
        for axiom, expected_of in pair.expected:
            if expected_of not in names:
                raise ValueError(f"{pair.name} expects something of an {unknown_name('explainer', expected_of, names)}")
            if axiom not in pair.axioms:
                raise ValueError(f"{pair.name} expects something of an {unknown_name('axiom', axiom, pair.axioms)}")
    everything = list({pair.name: pair for pair in (*registered_pairs().values(), *pairs)}.values())
    for who in explainers:
        for axiom, pattern in getattr(who, "expected", {}):
            _refuse_unmatched(who.name, axiom, pattern, everything)
    for one in given:
        if not fnmatch.filter(names, one.explainer):
            raise ValueError(f"something is expected of an {unknown_name('explainer', one.explainer, names)}")
        _refuse_unmatched(one.explainer, one.axiom, one.subject, everything)
    for axiom in {one.axiom for one in given}:
        for name, subject in product(names, _subjects(axiom, everything)):
            if len(both := [one for one in given if one.of(axiom, name, subject)]) > 1:
                patterns = " and ".join(f"{one.explainer} on {one.subject}" for one in both)
                raise ValueError(
                    f"{axiom}: two expectations of {name}-{subject} are given ({patterns}): leave it to one"
                )


def _refuse_unmatched(who: str, axiom: str, pattern: str, pairs: Sequence[Pair]) -> None:
    if axiom not in AXIOMS:
        raise ValueError(f"{who} expects something of an {unknown_name('axiom', axiom, AXIOMS)}")
    subjects = _subjects(axiom, pairs)
    if not any(fnmatch.fnmatchcase(subject, pattern) for subject in subjects):
        raise ValueError(f"{who} expects something of an {unknown_name('subject', pattern, subjects)}")


def _subjects(axiom: str, pairs: Sequence[Pair]) -> list[str]:
    """What an axiom is measured on, by name."""
    measured = [pair for pair in pairs if axiom in pair.axioms]
    return [f"{pair.name}.{side}".rstrip(".") for pair in measured for side in sides(axiom, pair)]


def refuse_malformed(explainer: Explainer) -> None:
    """Refuse an explainer whose name, claims or known violations could not be read.

    Raises:
        ValueError: says what was expected and what was found.
    """
    name, claims, expected = explainer.name, getattr(explainer, "claims", ()), getattr(explainer, "expected", {})
    if not name or not name.isprintable() or " " in name:
        raise ValueError(f"an explainer's name is printable and has no spaces, got {name!r}")
    if not isinstance(claims, Collection) or isinstance(claims, str):
        raise ValueError(f"{name}.claims is a collection of axioms, such as {{'invariance'}}, got {claims!r}")
    for axiom in claims:
        if axiom not in AXIOMS:
            raise ValueError(f"{name} claims an {unknown_name('axiom', str(axiom), AXIOMS)}")
    keyed = isinstance(expected, Mapping) and all(isinstance(key, tuple) and len(key) == 2 for key in expected)
    if not keyed or not all(isinstance(value, Expectation) for value in expected.values()):
        raise ValueError(f"{name}.expected is a mapping {{(axiom, pair or glob): Expectation(…)}}, got {expected!r}")


def check_explainer(
    explainer: Any,
    axioms: Iterable[str] = ("invariance", "generated", "completeness", "loo", "trace"),
    subjects: Iterable[str | Pair] | None = None,
    settings: Settings | None = None,
) -> list[Record]:
    """Check one explainer without pytest.

    Args:
        explainer: an object with ``name`` and ``attribute(model, case)``, or whatever `as_explainer` takes.
        axioms: names in `AXIOMS`.
        subjects: pairs, their names, or globs; the whole registry by default.
        settings: seed 0, float64 on the CPU by default.

    Returns:
        One record per check, red ones included: see ``record.passed``.

    Raises:
        ValueError: no explainer; an unknown axiom or subject; or an expectation that matches no check.
    """
    who, registered = as_explainer(explainer), registered_pairs()
    chosen: dict[str, Pair] = {}
    for subject in registered if subjects is None else subjects:
        found = [subject] if isinstance(subject, Pair) else [registered[n] for n in fnmatch.filter(registered, subject)]
        if not found:
            raise ValueError(unknown_name("subject", str(subject), registered))
        chosen |= {pair.name: pair for pair in found}
    checks = [check for axiom in axioms for check in plan(axiom, [who], chosen.values())]
    return [check.run(settings or Settings()) for check in checks]
