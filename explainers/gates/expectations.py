"""What theory expects of the mask gates on the suite's subjects, beyond their claims.

Keys are (axiom, subject): a pair, one of its models (``name.f``), or a pattern of these. The closed forms stand beside
their models in `faithcheck.models.networks`, those of every model in `faithcheck.models.closed_forms`.

1. Most of the suite's cases remove a feature by its baseline. There the gates are gradients of the function at
   x: the tangent (x − x′) ⊙ ∇f(x). The grouped gate takes gradients at points where one of four groups of features is
   half way to the baseline.
2. They depend on the function alone, so its dummies get 0 and its symmetries are kept. The grouped gate keeps
   symmetries where no two features share a group.
3. With removal by the attention mask neither holds. A token without value to the function still takes weight from the
   other tokens, and tokens that the function lets swap may have different weights. The same is true of Leave-One-Out by
   the attention mask (tests/unit/test_gates_invariance.py has both in closed form).
   The pairs ``masked.*`` have what every gate must give there, each by a computation of its own. The derivative at 1 is
   the local limit; the finite changes are larger by 1/(1 − A) in each row.
4. A gradient is not a difference: a product counts once for each of its factors, and a gradient does not see beyond a
   kink.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case, input_gradient
from faithcheck.models.closed_forms import (
    ClosedForm,
    completeness_error,
    explained_output,
    gradient_times_input,
    leave_one_out_of,
    loo_disagreement,
)
from faithcheck.models.expectation import PRECISION, Expectations, expect
from faithcheck.models.networks import counterexamples, scalar_product
from faithcheck.models.networks import masked_attention as exact
from faithcheck.models.networks.probes import missed_change

GROUPS = 4


def grouped_gate(model: nn.Module, case: Case) -> Tensor:
    """The grouped gate by its definition, feature by feature, ``(batch, features)``.

    1. Features that are not special are dealt to four groups in turn. At point g the features of group g are half way
       to the baseline; the slope of feature i there is (x_i − x′_i) · ∂f/∂x_i.
    2. A feature gets ⅗ of its slope at its own group's point and ⅖ of its mean slope at the three other points.
    3. A special feature gets the mean output at the four points plus the features' slopes back to x, minus the output
       without the special feature.
    """
    special = [] if case.special_tokens_mask is None else case.special_tokens_mask.any(0).nonzero().flatten().tolist()
    dealt = [i for i in range(case.shape[1]) if i not in special]
    half = (case.inputs - case.baseline) / 2
    points = []
    for group in range(GROUPS):
        inputs = case.inputs.clone()
        inputs[:, dealt[group::GROUPS]] -= half[:, dealt[group::GROUPS]]
        points.append(replace(case, inputs=inputs))
    slopes = [(2 * half * input_gradient(model, point)).reshape(*case.shape, -1).sum(2) for point in points]
    result = torch.zeros(case.shape).to(half)
    estimate = torch.stack([explained_output(model, point) for point in points]).mean(0)
    for turn, i in enumerate(dealt):
        own, *others = (slopes[(turn + k) % GROUPS][:, i] for k in range(GROUPS))
        elsewhere = torch.stack(others).mean(0)
        result[:, i] = 3 / 5 * own + 2 / 5 * elsewhere
        estimate += (own + elsewhere) / 4 / GROUPS
    for i in special:
        without = explained_output(model, case) - leave_one_out_of(model, case, i)
        result[:, i] = estimate - without
    return result


def expect_curved(gate: ClosedForm, why: str) -> Expectations:
    """The violations on models that are not a straight line to the baseline."""
    return {
        **expect("completeness", "control.mlp.f linear_attention.*", why, predict=completeness_error(gate)),
        **expect("loo", "control.mlp.f control.bert.f linear_attention.*", why, predict=loo_disagreement(gate)),
    }


EVERY_GATE: Expectations = {
    **expect("linearity", "*", "removed by the baseline: derivatives are linear in the function"),
    **expect("symbolic", "*", "the same derivatives, once in SymPy and once in torch"),
    **expect("sensitivity", "control.*", "analytic gradients are 0 on a set of measure 0 only"),
    **expect("dummy", "probe.*", "removed by the baseline: the function's own derivatives in a dummy are 0"),
    **expect("randomisation", "control.*", "random mixtures of the maps of many units: ρ² is 1 over their number"),
    **expect(PRECISION, "control.*", "no difference of numbers much larger than itself"),
}
SWAPPED = "derivatives of the function at a point where it lets the features swap"
TANGENT: Expectations = {
    **EVERY_GATE,
    **expect_curved(gradient_times_input, "the tangent at x is not the chord to the point with features removed"),
    **expect("symmetry", "control.product.f probe.*", SWAPPED),
    **expect(
        "completeness",
        "product.*",
        "every factor gets all of y: the sum is n·y",
        predict=scalar_product.excess_of_full_products,
    ),
    **expect(
        "completeness",
        "relu.*",
        "the bias −1 has no share where y > 0: the sum is y + 1",
        predict=counterexamples.share_of_bias,
    ),
    **expect("sensitivity", "probe.saturated.f", "the gradient is 0 above 1", predict=missed_change(1)),
}
"""`MaskGate`, `FiniteMaskGate` and `ReadoutGate`, which are equal where features are removed by the baseline."""

GROUPED: Expectations = {
    **EVERY_GATE,
    **expect_curved(grouped_gate, "slopes half way are not the chord to the point with features removed"),
    **expect(
        "symmetry",
        "control.product.f probe.*",
        f"{SWAPPED}: no more features than groups, so each feature has its own group",
    ),
    **expect(
        "completeness",
        "product.*",
        "where one of four groups is halved, of c factors: ⅗ of y·2^(1 − c) in it, ⅖ of the mean of y·2^−c elsewhere",
        predict=scalar_product.grouped_gate_excess(GROUPS),
    ),
    **expect(
        "completeness",
        "relu.*",
        "the ReLU is on or off at four points",
        predict=counterexamples.grouped_gate_excess,
    ),
    **expect(
        "sensitivity",
        "probe.saturated.f",
        "the gradient is 0 at 2, and half way at the kink",
        predict=missed_change(2),
    ),
}
"""`GroupedMaskGate` with four groups."""


def expect_masked(oracle: exact.OracleMap, of_inputs: ClosedForm, **least_r: float) -> Expectations:
    """What is expected of a gate where the case determines the removal: local limit, and least agreement with LOO.

    A gate that is not the derivative at 1 misses the local limit by ``oracle``, the map on the masked models; where the
    baseline removes features, the map is ``of_inputs``. ``least_r``, the least correlations with Leave-One-Out on the
    pairs ``masked.*``, are claims, and measured: over the seeds 0 to 19, 1 − r was at most two thirds of 1 − the least
    r. The rest is a margin, since other seeds draw other weights.
    """

    def missed(model: nn.Module, case: Case) -> Tensor:
        return of_inputs(model, case) - gradient_times_input(model, case)

    tangent, derivative = of_inputs is gradient_times_input, oracle is exact.derivative
    result = dict(
        expect(
            "local_limit",
            "masked.*",
            "it is the derivative at 1" if derivative else "finite changes of attention rows, not the derivative at 1",
            predict=None if derivative else exact.difference(oracle, exact.derivative),
        )
    )
    result |= expect(
        "local_limit",
        "control.mlp.f control.bert.f probe.tokens.f",
        "removed by the baseline: the tangent" if tangent else "slopes half way to the baseline",
        predict=None if tangent else missed,
    )
    for member, r in least_r.items():
        why = f"claimed: r is at least {r}, measured over 20 seeds"
        result |= expect("loo", f"masked.{member}.f", why, ceiling=1 - r)
    return result


FIRST_ORDER = expect_masked(exact.derivative, gradient_times_input, two_layers=0.8, two_causal_layers=0.7)
"""`MaskGate` where the case determines the removal."""

FINITE = expect_masked(exact.finite_changes, gradient_times_input, two_layers=0.87, two_causal_layers=0.65)
"""`FiniteMaskGate` where the case determines the removal."""

DIRECT_AND_INDIRECT = expect_masked(
    exact.direct_and_indirect, gradient_times_input, two_layers=0.91, two_causal_layers=0.93
)
"""`ReadoutGate` where the case determines the removal."""

GROUPED_ON_MASKED_MODELS = expect_masked(
    exact.one_group_at_a_time,
    grouped_gate,
    two_layers=0.88,
    two_causal_layers=0.63,
    large_special=0.9,
    large_special_causal=0.85,
)
"""`GroupedMaskGate` with four groups, where the case determines the removal."""
