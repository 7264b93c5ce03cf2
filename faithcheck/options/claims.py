"""``--claim``: axioms that the user claims for the explainers of a run, besides what these claim themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from faithcheck.explainers.names import kinds
from faithcheck.options import OptionError

if TYPE_CHECKING:
    from faithcheck.explainers.protocol import Explainer

CLAIM = (
    "the explainer is to satisfy this axiom too, besides those that it claims itself; or all that explainers of this "
    f"kind satisfy: {', '.join(kinds())}"
)
"""What the option does."""


def choose_claims(names: Sequence[str], explainers: Sequence[Explainer]) -> list[Explainer]:
    """The explainers of a run, each of which also claims what ``--claim`` names.

    Args:
        names: the values of ``--claim``: axioms, or kinds of explainers.
        explainers: the explainers that the user named.

    Raises:
        OptionError: no such axiom or kind (the message has the nearest name), or no explainer is named.
    """
    from faithcheck.claims import claiming  # not at the top: help is printed without torch

    if names and not explainers:
        raise OptionError(f"--claim={names[0]}: this run names no explainer: add --explainer=SPEC")
    try:
        return [claiming(explainer, names) for explainer in explainers]
    except ValueError as error:
        raise OptionError(f"--claim={' --claim='.join(names)}: {error}") from error
