"""What an axiom is, and the decorator by which each axiom registers itself beside its measuring function."""

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, wraps
from typing import Any, Literal, TypeAlias, TypeVar

from faithcheck.axioms.measure.measurement import Measurement
from faithcheck.explainers.protocol import Explainer, MadeElsewhere, Unsupported
from faithcheck.models.pair import Pair

Measure = TypeVar("Measure", bound=Callable[..., Measurement])
NotApplicable: TypeAlias = Callable[[Explainer], str | None]


class UnmeasurableInType(Unsupported):
    """The type is too coarse for the check, or torch has no kernel of it; the explainer did not refuse the model."""


def applicable_to_all(explainer: Explainer) -> str | None:
    """The default of `Axiom.not_applicable`: there is no explainer to which the axiom does not apply."""
    return None


@dataclass(frozen=True)
class Axiom:
    """One axiom: what it says, how it is measured and on what."""

    name: str  # in options, markers and record ids
    summary: str  # what it says, in one line
    measure: Callable[..., Measurement]  # of ([explainer,] *models, case); raises the explainer's errors too
    measured_on: Literal["pairs", "models"] = "models"  # the two models of a pair together, or each of them alone
    needs_explainer: bool = True  # if False, every pair itself is measured
    part_of: str = ""  # who claims that axiom claims this one too, and -m of its name selects both
    mandatory: bool = False  # every explainer is expected to satisfy it, whatever it claims
    not_applicable: NotApplicable = applicable_to_all  # why it is never measured for an explainer; None if it can be
    subjects: Sequence[str] = ()  # names or globs of pairs, besides those that name it in Pair.axioms
    excluded: Sequence[str] = ()  # names or globs of pairs that are no subjects after all
    tolerance: float | str | None = None  # a number, or how it is computed, in words; None: that of the dtype
    of_given_maps: bool = False  # it asks only for the subject's maps on the case, which may have been made before
    usual_cause: str = ""  # the end of a sentence on what makes it red, where records name no cause

    def is_measured_on(self, pair: Pair) -> bool:
        """Whether the axiom is measured on this pair or on its models."""
        if not self.needs_explainer or self.name in pair.axioms:
            return True
        return _matches(pair.name, tuple(self.subjects)) and not _matches(pair.name, tuple(self.excluded))

    def sides(self, pair: Pair) -> tuple[str, ...]:
        """``""`` for both models of the pair together, else ``"f"`` and ``"g"``; of a control, whose g copies f, f."""
        if self.measured_on == "pairs":
            return ("",)
        return ("f",) if pair.control else ("f", "g")

    def subjects_among(self, pairs: Sequence[Pair]) -> list[str]:
        """The names of the subjects among these pairs: of pairs, or of their models (``name.f``, ``name.g``)."""
        measured = [pair for pair in pairs if self.is_measured_on(pair)]
        return [f"{pair.name}.{side}".rstrip(".") for pair in measured for side in self.sides(pair)]


@cache  # asked hundreds of thousands of times in a run
def _matches(name: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)


_registry: dict[str, Axiom] = {}


def axiom(name: str, summary: str, **traits: Any) -> Callable[[Measure], Measure]:
    """Register the decorated function as the measuring function of an axiom; ``traits`` are attributes of `Axiom`.

    Raises:
        ValueError: the name is taken, or is not lower case letters, digits and underscores.
    """
    if not name.isidentifier() or name != name.lower():
        raise ValueError(f"the name of an axiom is a pytest marker: lower case letters, digits and _, got {name!r}")

    def decorate(measure: Measure) -> Measure:
        if name in _registry:
            raise ValueError(f"an axiom named {name!r} is already registered, in {_registry[name].measure.__module__}")
        registered = Axiom(name, summary, measure, **traits)
        if not registered.of_given_maps:
            registered = replace(registered, not_applicable=_of_explainers_that_run(registered.not_applicable))
        _registry[name] = registered
        return measure

    return decorate


def _of_explainers_that_run(not_applicable: NotApplicable) -> NotApplicable:
    """The function, which also rules out maps that were made elsewhere: they are not of the models that are run."""

    @wraps(not_applicable)  # the catalogue names the function
    def reason(explainer: Explainer) -> str | None:
        if isinstance(explainer, MadeElsewhere):
            return "it runs the explainer anew, and these maps were made elsewhere"
        return not_applicable(explainer)

    return reason


def registered() -> dict[str, Axiom]:
    """The axioms registered so far, in alphabetical order; `faithcheck.axioms.measure.registry` has them all."""
    return dict(sorted(_registry.items()))
