"""What theory expects of block-wise LRP on the suite's subjects, beyond its claims.

Keys are (axiom, subject): a pair, one of its models (``name.f``), or a pattern of these. The closed forms stand beside
their models in `faithcheck.models.networks`. Block-wise LRP has no rule for two operations together that are neither a
product nor a function of one value, so exp(x₁ + x₂) and exp(x₁)·exp(x₂) get different maps.
"""

from faithcheck.models.expectation import PRECISION, Expectations, expect
from faithcheck.models.networks.counterexamples import distributed_gap, exp_of_sum_blockwise_gap, share_of_bias
from faithcheck.models.networks.hidden_layer import lrp_under_shift
from faithcheck.models.networks.linear_attention import BLOCKWISE, path_completeness_error
from faithcheck.models.networks.probes import loss_at_softmax, loss_to_constants, missed_change
from faithcheck.models.networks.scalar_product import shift_of_shares

SHIFTED = "(x + c) ⊙ gradient − x ⊙ gradient = c ⊙ gradient"
ON_PAIRS: Expectations = {
    **expect(
        "invariance",
        "generated.exp_of_sum",
        "a sum in one exponential, a product of two",
        predict=exp_of_sum_blockwise_gap,
    ),
    **expect("invariance", "generated.times_one_more", "a sum with a constant is of degree 1", predict=distributed_gap),
    **expect(
        "generated",
        "generated.search",
        "the smallest pair on which its maps differ is exp(x₁ + x₂) and exp(x₁)·exp(x₂); at x₁ = x₂ = x the gap is "
        "1/(1 + eˣ), elsewhere larger (on a grid): at least 1/9, as y = e²ˣ is at most 64 where pairs are compared; "
        "and at most 1, as the two maps have one sign",
        floor=0.1,
        ceiling=1,
    ),
    **expect("symbolic", "*", "Integrated Gradients from 0, once in SymPy and once in torch"),
    **expect("completeness", "product.*", "IG from 0 are complete: n·(y/n)"),
    **expect(
        "completeness",
        "linear_attention.*",
        "the position embeddings keep their share",
        predict=path_completeness_error(BLOCKWISE),
    ),
    **expect("completeness", "relu.*", "the bias −1 keeps its share where y > 0", predict=share_of_bias),
}
ON_CONTROLS: Expectations = {
    **expect("completeness", "control.mlp.f", "no biases, tanh 0 = 0, and f(0) = 0"),
    **expect("conservation", "control.mlp.f", "no biases, and tanh 0 = 0"),
    **expect("conservation", "control.product.f", "shares by degree sum to 1 at each product"),
    **expect("sensitivity", "control.*", "an analytic gradient is 0 on a set of measure 0 only"),
    **expect("symmetry", "control.product.f", "every factor gets y/3"),
    **expect("shift", "control.bert.f", "LayerNorm subtracts a token's mean, so its gradient sums to 0"),
    **expect("shift", "control.mlp.f", SHIFTED, predict=lrp_under_shift),
    **expect("shift", "control.product.f", SHIFTED, predict=shift_of_shares([1 / 3, 1 / 3, 1 / 3])),
    **expect("randomisation", "control.*", "random mixtures of the maps of many units: ρ² is 1 over their number"),
    **expect(PRECISION, "control.*", "no difference of numbers much larger than itself"),
}
ON_PROBES: Expectations = {
    **expect("conservation", "probe.softmax.f", "Eq. 5 passes ½Var_A x on, not ½Σ Ax", predict=loss_at_softmax),
    **expect(
        "conservation", "probe.constants.f", "the bias keeps b, the added embedding w·p", predict=loss_to_constants
    ),
    **expect(
        "sensitivity",
        "probe.saturated.f",
        "ReLU has its own gradient, which is 0 above 1",
        predict=missed_change(1),
    ),
    **expect("dummy", "probe.perceptron.f", "a weight of 0 passes nothing on"),
    **expect("dummy", "probe.sigmoids.f", "σ(u) − ½ and σ(−u) − ½ cancel: ½ is a bias"),
    **expect("dummy", "probe.products.f", "both products give y/3 to each factor, and cancel"),
    **expect("dummy", "probe.attention.f", "the function is linear and has no term in the feature of value 0"),
    **expect("symmetry", "probe.*", "equal weights and values are treated alike, tokens too"),
}
EXPECTED: Expectations = {**ON_PAIRS, **ON_CONTROLS, **ON_PROBES}
