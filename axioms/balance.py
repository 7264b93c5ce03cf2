"""The balance of the ledger: no operation loses relevance without a named cause.

Received = passed on + Σ of named losses, operation by operation, and so f(x) = Σ R_i + Σ of named losses. Each named
loss (a bias, ε, Eq. 5 of arXiv 2510.18810, …) has a formula of its own, see `faithcheck.explainers.lrp.ledger`. Derived
here.
"""

import torch
from torch import nn

from faithcheck.axioms.conservation import no_ledger, unaccounted
from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Measurement
from faithcheck.axioms.measure.roundoff import tolerance
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.ledger import ledger_of_batch
from faithcheck.explainers.protocol import Explainer, Unsupported
from faithcheck.models.case import Case

SAME_OPERATIONS = (
    *("attention.fused_*", "attention.separate_*", "basis.*", "batching.*", "folding.*", "permutation.*"),
    *("rescaling.*", "sharing.activations_*"),
)
"""Transforms of base models that other pairs have too, such as ``attention.sdpa_*``: they change weights or inputs more
than operations, and a ledger takes several times as long as an attribution."""


@axiom(
    "balance",
    "no operation loses relevance without a named cause",
    usual_cause="an LRP rule multiplies, cuts off or drops relevance and gives no reason for it",
    measured_on="pairs",
    mandatory=True,
    not_applicable=no_ledger,
    subjects=("*",),
    excluded=SAME_OPERATIONS,
)
def balance(explainer: Explainer, f: nn.Module, g: nn.Module, case: Case) -> Measurement:
    """Measure what the ledgers of both models leave unaccounted for, in sums over the batch.

    ``values`` is the start − the relevance at the inputs − the named losses of f and of g, ``(1, 2)``; ``gap`` is the
    largest part that the whole or an operation leaves unaccounted for, relative to the largest relevance that an
    operation received or passed on.

    Raises:
        Unsupported: from the explainer; or the explainer is not LRP.
    """
    if not isinstance(explainer, LRP):
        raise Unsupported(f"{explainer.name}: {no_ledger(explainer)}")
    ledgers, tol = [ledger_of_batch(explainer, model, case) for model in (f, g)], tolerance(case.inputs)
    places = [place for ledger in ledgers for place in unaccounted(ledger, tol)]
    detail: dict[str, object] = {"unaccounted for": ", ".join(dict.fromkeys(places))} if places else {}
    values = torch.stack([ledger.balance for ledger in ledgers], 1)
    return Measurement(max(ledger.gap for ledger in ledgers), tol, values, detail=detail)
