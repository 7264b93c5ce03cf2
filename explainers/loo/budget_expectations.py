"""What theory expects of budgeted Leave-One-Out on the suite's models, where features are removed by their baseline."""

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case, input_gradient
from faithcheck.models.closed_forms import gradient_times_input, leave_one_out, loo_disagreement
from faithcheck.models.expectation import Expectations, expect


def within_two_fifths(model: nn.Module, case: Case) -> Tensor:
    """Two fifths of the n + 1 rows of full Leave-One-Out, if that is below 24: ``(batch, features)``.

    The gate takes two rows and gives each feature its tangent. The other rows remove special features, in their order,
    then those whose slopes are the largest in absolute value, Σ over a feature's numbers.
    """
    batch, features = case.shape
    slopes = (case.inputs - case.baseline) * input_gradient(model, case)
    sizes = slopes.abs().reshape(batch, features, -1).sum(2)
    order = sizes.masked_fill(~case.non_special, torch.inf).argsort(dim=1, descending=True, stable=True)
    removed = order[:, : 2 * (features + 1) // 5 - 2]
    return gradient_times_input(model, case).scatter(1, removed, leave_one_out(model, case).gather(1, removed))


def missed_limit(model: nn.Module, case: Case) -> Tensor:
    """What the exact features miss of the tangent, ``(batch, features)``."""
    return within_two_fifths(model, case) - gradient_times_input(model, case)


TWO_FIFTHS: Expectations = {
    **expect(
        "local_limit",
        "control.mlp.f control.bert.f",
        "one feature is removed whole: the chord, not the tangent",
        predict=missed_limit,
    ),
    **expect("local_limit", "probe.tokens.f", "a budget of two rows is the gate's: the tangent"),
    **expect(
        "loo",
        "control.bert.f",
        "one feature is removed, the others have their tangents",
        predict=loo_disagreement(within_two_fifths),
    ),
}
"""Budgeted Leave-One-Out with its default budget."""
