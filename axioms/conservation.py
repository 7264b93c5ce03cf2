"""Two axioms of the ledger of LRP: its balance, and conservation, operation by operation.

Balance: received = passed on + Σ of named losses, and so f(x) = Σ R_i + Σ of named losses. Each named loss (a bias, ε,
Eq. 5 of arXiv 2510.18810, …) has a formula of its own, see `faithcheck.explainers.lrp.ledger`. Derived here.

Conservation: Σ_i R_i of the operands = Σ_j R_j of the results, so that nothing is lost; Bach et al. 2015,
doi 10.1371/journal.pone.0130140, Eqs. 2 and 12; for AttnLRP's rules the text after Eq. 5 of arXiv 2510.18810.
"""

import torch
from torch import Tensor, nn

from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Measurement, relative_gap
from faithcheck.axioms.measure.roundoff import tolerance
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.ledger import ConservationLedger, OperationBalance, conservation_ledger, ledger_of_batch
from faithcheck.explainers.protocol import Explainer, Unsupported
from faithcheck.models.case import Case


def no_ledger(explainer: Explainer) -> str | None:
    """Why an explainer has no conservation ledger; None for LRP, which has one."""
    if isinstance(explainer, LRP):
        return None
    return "it passes no relevance from operation to operation: only LRP keeps a ledger"


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


@axiom(
    "conservation",
    "every operation passes on the relevance that it received",
    usual_cause="an LRP rule loses relevance: at a bias, through ε, or at an operation with a wrong rule",
    not_applicable=no_ledger,
)
def conservation(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how much relevance operations do not pass on.

    ``values`` is received − passed on, ``(batch, operations)`` in the order of the forward pass; ``gap`` its largest
    entry relative to the largest relevance that an operation of the example received or passed on, in [0, 2]. The
    ledger itself must balance to the same tolerance: in float32 that is 1e-4, since round-off is no named cause there.

    Raises:
        Unsupported: from the explainer; or the explainer is not LRP.
        ValueError: the ledger does not balance: relevance was lost without a named cause.
    """
    if not isinstance(explainer, LRP):
        raise Unsupported(f"{explainer.name}: {no_ledger(explainer)}")
    ledger, tol = conservation_ledger(explainer, model, case), tolerance(case.inputs)
    if not ledger.gap <= tol:
        raise ValueError(
            f"the ledger does not balance: {ledger.gap:.1e} of the relevance is lost without a named cause, at "
            f"{', '.join(unaccounted(ledger, tol)) or 'no single operation'}"
        )
    values = torch.stack([entry.lost for entry in ledger.operations], 1)
    scale = torch.cat([torch.stack([e.received, e.passed_on], 1) for e in ledger.operations], 1)
    size = scale.abs().amax(1)
    detail: dict[str, object] = {"operations": len(ledger.operations)}
    losing = [entry for entry in ledger.operations if bool((entry.lost.abs() > tol * size).any())]
    if losing:
        worst = max(losing, key=lambda entry: float((entry.lost.abs() / size).max()))
        detail["operations that lose"] = len(losing)
        detail["first, from the output"] = named(losing[-1])
        detail["worst"] = named(worst)
        causes = {cause: lost for cause, lost in ledger.by_cause().items() if bool((lost.abs() > tol * size).any())}
        detail["causes, share of the output"] = ", ".join(
            f"{cause} {share(lost, ledger.start)}" for cause, lost in causes.items()
        )
    return Measurement(relative_gap(values, scale), tol, values, scale, detail)


def unaccounted(ledger: ConservationLedger, tol: float) -> list[str]:
    """The operations that lose more than ``tol`` without a named cause, with their rules: two, and a count."""
    size = torch.stack([r for e in ledger.operations for r in (e.received, e.passed_on)]).abs().amax(0)
    losing = [entry for entry in ledger.operations if bool((entry.unaccounted.abs() > tol * size).any())]
    more = [f"{len(losing) - 2} more"] if len(losing) > 2 else []
    return [f"{e.operation} in {e.module or 'the model'} (by {e.rule})" for e in losing[:2]] + more


def named(entry: OperationBalance) -> str:
    """An operation, the module that ran it, and why it loses."""
    return f"{entry.operation} in {entry.module or 'the model'} ({', '.join(entry.losses)})"


def share(lost: Tensor, start: Tensor) -> str:
    """The relevance lost in the whole batch, relative to Σ |target output|."""
    return f"{float(lost.abs().sum() / start.abs().sum()):.3f}"
