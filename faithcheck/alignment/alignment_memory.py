"""The memory that explainers take in an alignment: what is predicted, refused and said of it."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from faithcheck.alignment.settings import AlignmentSettings
from faithcheck.axioms.traces.model_snapshot import ModelSnapshot
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.protocol import Explainer
from faithcheck.memory.predicted_memory import PeakPredictor, with_max_tokens
from faithcheck.models.case import Case
from faithcheck.reports.memory_units import in_words
from faithcheck.sandbox import interruptible, time_limit

WAYS_OUT = "cut the texts with --max-length, take a smaller --dtype, or raise --max-memory if there is more"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prediction:
    """Predicted bytes over what is in use before a batch."""

    attribution: int  # the peak of the attribution
    curves: int  # the peak of the perturbation curves, which run the model as Leave-One-Out does

    @property
    def peak(self) -> int:
        """The larger of both: the one is done before the other begins."""
        return max(self.attribution, self.curves)


class AlignmentMemory:
    """What is known of the memory of explainers on one model; ``index`` and ``longest`` are of the longest example."""

    def __init__(self, snapshot: ModelSnapshot, index: int, longest: int) -> None:
        self._snapshot, self._index, self._longest = snapshot, index, longest
        self._predictor: PeakPredictor | None = None
        self._unpredictable: set[str] = set()
        self._refusals: dict[str, str] = {}
        self._said: set[str] = set()

    def predict(
        self,
        explainer: Explainer,
        settings: AlignmentSettings,
        batch: int,
        features: int,
        make_case: Callable[[], Case],
    ) -> Prediction | None:
        """The prediction for a batch of examples of so many features, padding included; None if the explainer raises.

        ``make_case`` makes a case of the model, of any length, and is called once.
        """
        if explainer.name in self._unpredictable:
            return None
        curves = LeaveOneOut(settings.removal, max_tokens=settings.max_tokens)
        with interruptible():
            try:
                with time_limit(settings.timeout):
                    if self._predictor is None:
                        self._predictor = PeakPredictor(self._snapshot, make_case())
                    peaks = [self._predictor.peak(each, batch, features) for each in (explainer, curves)]
                return Prediction(*peaks)
            except BaseException:  # the attribution itself will raise, too, and is reported then
                self._unpredictable.add(explainer.name)
                return None

    def refusal(
        self, explainer: Explainer, settings: AlignmentSettings, limit: int, make_case: Callable[[], Case]
    ) -> str:
        """Why the longest example does not fit the memory, one row in a forward pass; empty if it does."""
        name, n = explainer.name, self._longest
        if name not in self._refusals:
            self._refusals[name] = ""
            prediction = self.predict(explainer, settings, 1, n, make_case) if n else None
            if prediction is not None and prediction.peak > limit:
                if getattr(explainer, "max_tokens", None):
                    explainer = with_max_tokens(explainer, n)
                least = self.predict(explainer, replace(settings, max_tokens=n), 1, n, make_case) or prediction
                if least.peak > limit:
                    self._refusals[name] = (
                        f"example {self._index} has {n} features, and {name} would take {in_words(least.peak)} of "
                        f"memory for it (predicted), more than the limit of {in_words(limit)}: {WAYS_OUT}"
                    )
        return self._refusals[name]

    def say_once(self, name: str, why: str) -> None:
        """Log, the first time for an explainer, that batches are measured in smaller parts."""
        if name not in self._said:
            self._said.add(name)
            log.warning("%s: batches that do not fit the memory are measured in smaller parts (%s)", name, why)
