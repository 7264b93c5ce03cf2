"""A check: one axiom, one explainer and one subject; how it runs in isolation, and the record that results."""

import math
import re
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from msgspec import structs
from torch import Tensor, nn

from faithcheck.axioms.fast.measured_once import reusing, with_known_maps
from faithcheck.axioms.measure.axiom import Axiom, UnmeasurableInType
from faithcheck.axioms.measure.error_text import difference_text, error_text, message_text, safe_text, traceback_text
from faithcheck.axioms.measure.evidence import evidence_of
from faithcheck.axioms.measure.expectations import SuppliedExpectation, expectation_of, explicit_expectation
from faithcheck.axioms.measure.measurement import Compared, Measurement, relative_gap
from faithcheck.axioms.measure.record import Evidence, Record, to_json
from faithcheck.axioms.measure.registry import AXIOMS
from faithcheck.axioms.measure.roundoff import TOLERANCES
from faithcheck.axioms.measure.settling import degenerate_kind, settle
from faithcheck.axioms.measure.statuses import Group, Status
from faithcheck.axioms.traces.model_snapshot import ModelSnapshot, restored
from faithcheck.built_pairs import built, discard
from faithcheck.explainers.lrp.rules_met import recording_rules
from faithcheck.explainers.protocol import Explainer, MadeElsewhere, MethodWarning, Unsupported
from faithcheck.models.case import Case, InvalidOutput, describe_tensor, refuse_outputs_not_finite
from faithcheck.models.expectation import Expectation
from faithcheck.models.pair import MissingLibrary, NotAPair, Pair, is_builtin, seed_torch
from faithcheck.request import Settings as Settings
from faithcheck.sandbox import Raised, Traces, attempt, sandbox

NEEDS_CUDA = "not compiled with CUDA|Found no NVIDIA driver|No CUDA GPUs|no CUDA-capable device"
"""Torch's error messages where a GPU is asked for and the machine has none."""


@dataclass(frozen=True)
class Check:
    """One cell of the suite: an axiom, an explainer, and a pair or one of its models.

    ``explainer`` is None where the axiom is about the pair itself; ``side`` is ``""`` for both models, ``"f"`` or
    ``"g"`` for one. The user's expectations, ``supplied``, take precedence over those of the pair, the explainer and
    the axiom.
    """

    axiom: str
    explainer: Explainer | None
    pair: Pair
    side: str = ""
    supplied: Sequence[SuppliedExpectation] = ()

    @property
    def subject(self) -> str:
        """The pair's name, or that of one of its models."""
        return f"{self.pair.name}.{self.side}" if self.side else self.pair.name

    @property
    def id(self) -> str:
        """``explainer-subject``, or the subject alone without an explainer: the end of the ids of tests and records."""
        return f"{self.explainer.name}-{self.subject}" if self.explainer else self.subject

    @property
    def record_id(self) -> str:
        """The id of its record."""
        return f"{self.axiom}/{self.id}"

    @property
    def explicit_expectation(self) -> Expectation | None:
        """The user's expectation, else that of the pair, the explainer or the axiom; None if none of them has one."""
        return explicit_expectation(self._axiom, self.explainer, self.pair, self.subject, self.supplied)

    @property
    def expectation(self) -> Expectation:
        """What theory expects: the explicit expectation, else the explainer's claim."""
        return expectation_of(self._axiom, self.explainer, self.pair, self.subject, self.supplied)

    @property
    def _axiom(self) -> Axiom:
        return AXIOMS[self.axiom]

    @property
    def _compares_models(self) -> bool:
        return self.explainer is not None and self._axiom.measured_on == "pairs"

    def run(self, settings: Settings) -> Record:
        """Build the models, measure the axiom and settle the measurement, in this process.

        A refusal, or a missing library that the pair needs, is ``unsupported``, or ``error`` if an expectation other
        than ``UNCLAIMED`` is stated. Other errors are ``expected error`` or ``error``. Only Ctrl-C is raised.
        """
        started = time.perf_counter()
        left_behind: list[str] = []
        found: Record | Raised = attempt(lambda: self._run(settings, left_behind))
        if isinstance(found, Raised):
            if not isinstance(found.error, Unsupported):
                discard()
            found = self._settled_error(settings, found.error)
        if left_behind or "left behind" in found.detail:
            discard()
        found = self._with_traces(found, left_behind)
        if self.axiom == "equivalence":
            _differences[_key(self.pair, settings)] = self.pair, "" if found.passed else difference_text(found.detail)
        return structs.replace(found, seconds=time.perf_counter() - started)

    def failed(self, settings: Settings, message: str, traceback: str | None = None) -> Record:
        """The record of this check where it could not be measured."""
        return self._record(settings, Status.ERROR, detail={"error": message}, traceback=traceback)

    def not_run(self, settings: Settings, reason: str) -> Record:
        """The record of this check where it was planned and did not run."""
        return self._record(settings, Status.NOT_RUN, detail={"reason": reason})

    def type_of_models(self, settings: Settings) -> torch.dtype:
        """The type in which the models are built: float64 where that of the run is simulated, or has no tolerance."""
        simulated = self._derives_tolerance(settings) or settings.dtype not in TOLERANCES
        return torch.float64 if simulated else settings.dtype

    # --- how it is measured -------------------------------------------------------------------------------------------

    def _run(self, settings: Settings, left_behind: list[str]) -> Record:
        if self._compares_models and (found := refutation(self.pair, settings)):
            reason = f"{self.pair.name} is not a pair: {found}"
            return self._record(settings, Status.NOT_A_PAIR, detail={"reason": reason})
        # Every check has its own random numbers, and models that no check changed, so that none influences another.
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            seed_torch(settings.seed)
            with reusing(settings.reuse) as reused:
                measured = self._measured_in_type if self._derives_tolerance(settings) else self._measured
                record = measured(settings, left_behind)
        return structs.replace(record, reused=bool(reused))

    def _measured(self, settings: Settings, left_behind: list[str]) -> Record:
        models, case = self._models(settings)
        with recording_rules() as rules:
            measurement = self._measure(models, case, settings, left_behind)
        _refuse_not_finite(measurement)
        expectation, predicted = self.expectation, self._predicted(models, case)
        status, error = settle(measurement, expectation, predicted)
        detail = dict(measurement.detail)
        if expectation.verdict == "VIOLATES" and self._axiom.measured_on == "pairs":
            # Every violation has a control: on a model and its deep copy the same explainer must hold.
            copied = models[0], ModelSnapshot(deepcopy(models[0].model))
            control = self._measure(copied, case, settings, left_behind, "ff")
            detail["control gap"] = control.gap
            if control.gap is None or control.gap > control.tol:
                status = Status.INCONCLUSIVE
        return self._settled(
            settings,
            replace(measurement, detail=detail),
            status,
            predicted,
            prediction_error=error,
            rules=tuple(sorted(rules)),
            degenerate=degenerate_kind(measurement, models[0].model, case),
            evidence=_evidence(measurement, predicted, status, models, case),
        )

    def _measured_in_type(self, settings: Settings, left_behind: list[str]) -> Record:
        """The same in a coarser type, with the tolerance that the model's own round-off there gives."""
        from faithcheck.axioms.measure import coarse_types  # not at the top: few runs measure in a coarse type

        if isinstance(self.explainer, MadeElsewhere):
            raise UnmeasurableInType(
                f"{self.explainer.name} holds maps that were made elsewhere: their round-off in another type cannot be "
                "measured; check them without --dtype"
            )
        models, case = self._models(settings)
        predicted = self._predicted(models, case)

        def measure(copies: Sequence[nn.Module], of: Case) -> Measurement:
            return self._measure([ModelSnapshot(model) for model in copies], of, settings, left_behind)

        with recording_rules() as rules:
            measured = coarse_types.measured_in(settings.dtype, measure, [one.model for one in models], case)
        _refuse_not_finite(measured.exact)
        measurement, status, error = coarse_types.settle_in(measured, self.expectation, predicted)
        _refuse_not_finite(measurement)
        degenerate, rules_met = degenerate_kind(measurement, models[0].model, case), tuple(sorted(rules))
        return self._settled(
            settings, measurement, status, predicted, prediction_error=error, rules=rules_met, degenerate=degenerate
        )

    def _derives_tolerance(self, settings: Settings) -> bool:
        """Whether a coarse type needs a derived tolerance: not if the axiom has its own, or is about the pair."""
        return settings.dtype != torch.float64 and self.explainer is not None and self._axiom.tolerance is None

    def _models(self, settings: Settings) -> tuple[tuple[ModelSnapshot, ...], Case]:
        f, g, case = built(self.pair, settings.seed, self.type_of_models(settings), settings.device)
        return {"": (f, g), "f": (f,), "g": (g,)}[self.side], case

    def _predicted(self, models: Sequence[ModelSnapshot], case: Case) -> Tensor | None:
        predict = self.expectation.predict
        if predict is None:
            return None
        with restored(*models):
            return predict(*(snapshot.model for snapshot in models), case)

    def _measure(
        self,
        models: Sequence[ModelSnapshot],
        case: Case,
        settings: Settings,
        left_behind: list[str],
        sides: str = "",
    ) -> Measurement:
        """Measure the axiom in the sandbox. What the explainer leaves behind is added to ``left_behind``."""
        explainers: tuple[Explainer, ...] = ()
        if self.explainer is not None:
            explainers = (self._explainer_of(models, sides or self.side or "fg"),)
        timeout, traces = settings.timeout if explainers else None, Traces()
        try:
            with sandbox(*models, seed=settings.seed, timeout=timeout, always=MethodWarning) as traces:
                measured = [snapshot.model for snapshot in models]
                if self._axiom.of_given_maps:
                    explainers = tuple(with_known_maps(explainer, measured, case) for explainer in explainers)
                measurement = self._axiom.measure(*explainers, *measured, case)
        finally:
            left_behind += [line for line in traces.left_behind if line not in left_behind]
        # A coarse quadrature or an attention sink is the same on both models: the record mentions it, it is no error.
        messages = []
        for warning in traces.warnings:
            if issubclass(warning.category, MethodWarning):
                messages.append(str(warning.message))
            else:
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        note = {"warning": "; ".join(messages)} if messages else {}
        return replace(measurement, detail={**note, **measurement.detail})

    def _explainer_of(self, models: Sequence[ModelSnapshot], sides: str) -> Explainer:
        """The explainer; stored maps are told the names of the models, by which they are looked up."""
        assert self.explainer is not None
        if not isinstance(self.explainer, MadeElsewhere):
            return self.explainer
        names = (f"{self.pair.name}.{side}" for side in sides)
        return self.explainer.of_models((one.model, name) for one, name in zip(models, names, strict=True))

    # --- how it settles -----------------------------------------------------------------------------------------------

    def _with_traces(self, record: Record, left_behind: Sequence[str]) -> Record:
        """The record, red if the explainer left something behind and no violation of trace is expected of it."""
        if not left_behind:
            return record
        detail = {"left behind": safe_text("; ".join(left_behind)), **record.detail}
        status = record.status if record.group is Group.RED or self._may_leave_traces else Status.LEFT_BEHIND.label
        return structs.replace(record, status=status, detail=detail)

    @property
    def _may_leave_traces(self) -> bool:
        subject = f"{self.pair.name}.{self.side or 'f'}"
        expected = explicit_expectation(AXIOMS["trace"], self.explainer, self.pair, subject, self.supplied)
        return expected is not None and (self.explainer is None or expected.verdict != "HOLDS")

    def _settled_error(self, settings: Settings, error: BaseException) -> Record:
        """The record where the explainer or the pair refused or raised an error."""
        if isinstance(error, NotAPair | InvalidOutput):  # its message is complete: a traceback would add nothing
            return self.failed(settings, message_text(error))
        message, explicit = error_text(error), self.explicit_expectation
        if self.expectation.verdict == "ERROR" and self.expectation.error in message:
            return self._record(settings, Status.EXPECTED_ERROR, detail={"error": message})
        if isinstance(error, MissingLibrary):
            return self._record(settings, Status.UNSUPPORTED, detail={"reason": message_text(error)})
        if isinstance(error, Unsupported):
            if explicit is None or explicit.verdict == "UNCLAIMED" or isinstance(error, UnmeasurableInType):
                return self._record(settings, Status.UNSUPPORTED, detail={"reason": message_text(error)})
            # An explicit expectation must be measured: a rule that went missing is no skip.
            message = f"the explainer refused, although {explicit.verdict} is expected: {message_text(error)}"
        elif fault := self._fault_of_models(settings):
            return self.failed(settings, fault)
        if not torch.cuda.is_available() and re.search(NEEDS_CUDA, message):
            message = (
                f"it needs a GPU and there is none here ({message}): let it work on the device of its inputs, "
                "or run on a machine that has one, with --device=cuda"
            )
        return self.failed(settings, message, traceback_text(error))

    def _fault_of_models(self, settings: Settings) -> str:
        """What a model of the check does wrong without an explainer, too; empty if nothing."""
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())), suppress(Exception):
            # What building the pair raises is what the check raised.
            models, case = self._models(settings)
            for one in models:
                found = attempt(partial(refuse_outputs_not_finite, one.model, case))
                if isinstance(found, Raised) and isinstance(found.error, InvalidOutput):
                    return message_text(found.error)
                if isinstance(found, Raised):
                    where = f"the model fails on {describe_tensor(case.inputs)} without an explainer, too"
                    return f"{where}: {error_text(found.error)}"
        return ""

    def _settled(
        self, settings: Settings, measurement: Measurement, status: Status, predicted: Tensor | None, **others: Any
    ) -> Record:
        scale = measurement.scale
        return self._record(
            settings,
            status,
            gap=measurement.gap,
            tol=measurement.tol,
            predicted=None if predicted is None or scale is None else relative_gap(predicted, scale),
            detail=dict(measurement.detail),
            **others,
        )

    def _record(self, settings: Settings, status: Status, **measured: Any) -> Record:
        expectation = self.expectation
        blank: dict[str, Any] = dict.fromkeys(("gap", "tol", "predicted", "prediction_error", "traceback"))
        detail = measured.pop("detail", {})
        safe = {key: to_json(safe_text(value) if isinstance(value, str) else value) for key, value in detail.items()}
        return Record(
            id=self.record_id,
            axiom=self.axiom,
            explainer=self.explainer.name if self.explainer else None,
            subject=self.subject,
            floor=expectation.floor,
            ceiling=expectation.ceiling,
            expected=expectation.verdict,
            status=status.label,
            why=expectation.why,
            cite=expectation.cite,
            seed=settings.seed,
            detail=safe,
            **blank | measured,
        )


def _refuse_not_finite(measurement: Measurement) -> None:
    if measurement.gap is not None and not math.isfinite(measurement.gap):
        where = f" at {measurement.detail['told apart by']}" if "told apart by" in measurement.detail else ""
        raise ValueError(f"the gap is {measurement.gap}: an output or a gradient is NaN or infinite{where}")


def _evidence(
    measurement: Measurement, predicted: Tensor | None, status: Status, models: Sequence[ModelSnapshot], case: Case
) -> Evidence | None:
    """The evidence of a red check; None of a check that is not red, or where the axiom compared nothing."""
    compared, violation = measurement.compared, None
    of_each_example = compared is None or len(measurement.values) == len(compared.first)
    if status is Status.INCONCLUSIVE and predicted is not None and of_each_example:
        violation = Compared(measurement.values, predicted, ("the violation", "the predicted violation"))
    compared = compared or violation
    if status.group is not Group.RED or compared is None:
        return None
    return evidence_of(compared, [snapshot.model for snapshot in models], case, violation)


_differences: dict[tuple[int, int, torch.dtype, torch.device], tuple[Pair, str]] = {}
"""How the models of each pair whose equivalence was measured differ. The pair is held, so that no other gets its id."""


def refutation(pair: Pair, settings: Settings) -> str:
    """How the two models of a pair differ, measured once a process; "" if they are one function.

    faithcheck's own pairs are proved by its tests, and not measured again here.
    """
    if is_builtin(pair):
        return ""
    if (key := _key(pair, settings)) not in _differences:
        Check("equivalence", None, pair).run(settings)
    return _differences[key][1]


def _key(pair: Pair, settings: Settings) -> tuple[int, int, torch.dtype, torch.device]:
    return id(pair), settings.seed, settings.dtype, settings.device
