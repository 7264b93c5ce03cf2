"""LOO agreement: how well an attribution correlates with Leave-One-Out.

You et al., arXiv 2510.18810, §4. They normalise maps to sum to one. This flips the sign of Pearson's r if
exactly one of the two maps sums to a negative number, so the raw correlation is reported beside it.

An explainer claims a least correlation r on a subject by an expectation of its own:
``expected = {("loo", subject): Expectation("HOLDS", why, ceiling=1 - r)}``. Then the check is red where the measured r
is below the claim. LOO removes features by the attention mask where the case has one, else by the baseline.
"""

import numpy as np
import scipy  # its submodules are imported when they are used
from torch import Tensor, nn

from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Compared, Measurement
from faithcheck.axioms.measure.roundoff import tolerance
from faithcheck.axioms.measure.statistics import CONSTANT_ATTRIBUTION, undefined
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case

STATISTICS = ("pearson", "pearson_sum_to_one", "spearman", "kendall")


def correlations(a: np.ndarray, b: np.ndarray, noise: float = 0.0) -> dict[str, float | None] | None:
    """Correlate an attribution with LOO, ``(features,)`` each; None if LOO is constant or has fewer than two features.

    A constant attribution does not tell features apart where LOO does. All its statistics are 0: left out of a mean,
    it would improve the mean.

    ``pearson_sum_to_one`` correlates a/Σa with b/Σb: Pearson's r times the sign of Σa·Σb, None where a sum is 0.
    ``noise`` is the round-off of LOO's outputs, see `undefined`.
    """
    reason = undefined(a, b, noise)
    if reason == CONSTANT_ATTRIBUTION:
        return dict.fromkeys(STATISTICS, 0.0)
    if reason is not None:
        return None
    pearson = float(scipy.stats.pearsonr(a, b).statistic)
    sign = float(np.sign(a.sum()) * np.sign(b.sum()))
    return {
        "pearson": pearson,
        "pearson_sum_to_one": pearson * sign if sign else None,
        "spearman": float(scipy.stats.spearmanr(a, b).statistic),
        "kendall": float(scipy.stats.kendalltau(a, b).statistic),
    }


def agreement(attribution: Tensor, loo: Tensor, keep: Tensor | None = None) -> tuple[list[float], dict[str, object]]:
    """Pearson's r of each example for which it is defined, and the mean of every statistic with counts.

    All tensors are ``(batch, features)``; ``keep``, bool, has the positions that count, by default all.
    """
    rows = []
    for i in range(len(loo)):
        chosen = slice(None) if keep is None else keep[i]
        rows.append(correlations(attribution[i, chosen].double().cpu().numpy(), loo[i, chosen].double().cpu().numpy()))
    defined = [row for row in rows if row is not None]
    columns = {name: [value for row in defined if (value := row[name]) is not None] for name in STATISTICS}
    means: dict[str, object] = {name: float(np.mean(values)) if values else None for name, values in columns.items()}
    counts = {"examples": len(rows), "undefined": len(rows) - len(defined)}
    return columns["pearson"], means | counts


@axiom(
    "loo",
    "attributions correlate with Leave-One-Out",
    usual_cause=(
        "the map ranks features otherwise than their removal does: look at the sign, at the order of the "
        "features, and at saturated activations"
    ),
    of_given_maps=True,
)
def loo_agreement(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure 1 − r; r is the mean over examples of Pearson's correlation with Leave-One-Out (raw, every position).

    Examples whose LOO map is constant are left out; on the other examples a constant attribution counts as r = 0.

    ``detail`` has Pearson's r raw and after sum-to-one, Spearman's ρ and Kendall's τ, each a mean over the examples
    for which it is defined, the counts, and the same without special positions if the case has any.
    """
    attribution = attribution_of(explainer, model, case)
    loo = attribution_of(LeaveOneOut(), model, case)
    pearson, detail = agreement(attribution, loo)
    if case.special_tokens_mask is not None:
        _, rest = agreement(attribution, loo, ~case.special_tokens_mask)
        detail |= {f"{name}_no_special": value for name, value in rest.items()}
    gap = 1 - float(np.mean(pearson)) if pearson else None
    if gap is None:
        detail["reason"] = "the correlation is undefined on every example: the LOO map is constant"
    values = attribution.new_tensor([1 - r for r in pearson])
    compared = Compared(attribution, loo, ("the map", "Leave-One-Out"), reference=True)
    return Measurement(gap, tolerance(case.inputs), values, detail=detail, unit=1.0, compared=compared)
