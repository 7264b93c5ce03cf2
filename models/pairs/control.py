"""Controls: a model and its deep copy. An explainer that follows the model gives the same map twice.

The axioms of single models are measured on f alone: a perceptron, a small BERT and x₁x₂x₃. What holds there, and why
(LRP with ε → 0 is input × modified gradient, DeepLIFT is (input − baseline) × slopes):

* *a (modified) gradient* of these analytic functions is zero on a set of measure 0, which random points miss;
* *Attention Rollout* is the same map a for every output and every factor of it: a − (α + β)·a is 2a, next to 3a;
* *shift*: in BERT c ⊙ gradient is 0. The LayerNorm after the embeddings subtracts a token's mean, so the gradient
  (LRP's modified gradient too) sums to 0 over each token;
* *randomisation*: the maps of a random last layer are random mixtures of the maps of the units below it, 16 in the
  perceptron and 32 in BERT. ρ² is 1 over the number of independent maps among these: less than half unless one of
  them outweighs the rest;
* *conservation*: bias-free linear maps, activations and products of data conserve relevance; `probes` has what Eq. 5
  and added constants keep.
"""

from copy import deepcopy

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from faithcheck.models.architectures.embedding_model import EmbeddingModel
from faithcheck.models.cases import WIDTH, factors, points, sentences
from faithcheck.models.closed_forms import chord_minus_tangent, completeness_error, gradient_times_input, leave_one_out
from faithcheck.models.expectation import (
    ALL_LRP,
    INVARIANT_BY_DEFINITION,
    PRECISION,
    Expectation,
    Expectations,
    expect,
    expect_lrp,
)
from faithcheck.models.networks.derived import gradient_under_shift
from faithcheck.models.networks.hidden_layer import bias_free_perceptron, lrp_under_shift
from faithcheck.models.networks.scalar_product import ScalarProduct, excess_of_last_factor, left_comb, shift_of_shares
from faithcheck.models.pair import control, copies, seeded
from faithcheck.models.pairs import linear_attention
from faithcheck.models.pairs.product import BILINEAR_RULE, LRP_OF_PRODUCTS

GRADIENT = "gradient_x_input"
ROLLOUT = "attention_rollout"
FROM_BASELINE = "loo integrated_gradients"
OF_EVERY_FUNCTION = f"{FROM_BASELINE} {GRADIENT} {LRP_OF_PRODUCTS}"
"""The explainers that run on every model here, with attention or without."""

SINGLE_MODEL_AXIOMS = "sensitivity linearity shift scale randomisation determinism batching precision trace"

SHIFTED = "(x + c) ⊙ gradient − x ⊙ gradient = c ⊙ gradient"
KINDERMANS = "Kindermans et al. 2017, arXiv 1711.00867"
BACH = "Bach et al. 2015, doi 10.1371/journal.pone.0130140"
SUNDARARAJAN = "Sundararajan et al. 2017, arXiv 1703.01365"

COPIES: Expectations = {**INVARIANT_BY_DEFINITION, **expect_lrp("the same model twice")}
CHORD_NOT_TANGENT: Expectations = expect(
    "local_limit", "loo", "the chord to the baseline, not the tangent", predict=chord_minus_tangent
)
NOTHING_FROM_PADDING: Expectations = expect(
    "batching",
    f"{OF_EVERY_FUNCTION} {ROLLOUT}",
    "masked keys weigh exactly 0: nothing goes to padding or comes from it",
)


def expect_of_any_model(values: str, gradients: str) -> Expectations:
    """What holds on any model for explainers of function values and for explainers that are an input × gradient."""
    both = f"{values} {gradients}"
    return {
        **expect(
            "linearity additivity antisymmetry",
            both,
            "values and (modified) gradients are linear in the function",
            cite=SUNDARARAJAN,
        ),
        **expect("shift", values, "x − x′, and the function between them, stay the same", cite=KINDERMANS),
        **expect("scale", both, "c·x ⊙ gradient/c, and a factor of the output is a factor of values and gradients"),
        **expect("randomisation", both, "random mixtures of the maps of many units: ρ² is 1 over their number"),
        **expect("determinism", both, "draws no random numbers"),
        **expect("batching", both, "no operation mixes examples"),
        **expect(PRECISION, both, "no difference of numbers much larger than itself"),
    }


control(
    "control.mlp",
    copies(bias_free_perceptron),
    points,
    f"invariance loo {SINGLE_MODEL_AXIOMS} completeness conservation",
    COPIES,
    CHORD_NOT_TANGENT,
    expect_of_any_model(f"{FROM_BASELINE} deeplift_rescale", f"{GRADIENT} {ALL_LRP}"),
    expect("sensitivity", "loo", "it is the change of the output"),
    expect(
        "sensitivity", "integrated_gradients deeplift_rescale", "complete: the one feature that differs gets it all"
    ),
    expect("sensitivity", f"{GRADIENT} {ALL_LRP}", "an analytic gradient is 0 on a set of measure 0 only"),
    expect("shift", GRADIENT, SHIFTED, predict=gradient_under_shift, cite=KINDERMANS),
    expect("shift", ALL_LRP, SHIFTED, predict=lrp_under_shift, cite=KINDERMANS),
    expect(
        "completeness",
        GRADIENT,
        "the tangent at x is not the chord to 0",
        predict=completeness_error(gradient_times_input),
    ),
    expect(
        "completeness",
        "loo",
        "the joint effect of features counts for each of them",
        predict=completeness_error(leave_one_out),
    ),
    expect("conservation", ALL_LRP, "no bias, and activations pass relevance on unchanged", cite=BACH),
    expect("loo", "loo", "Leave-One-Out correlates with itself"),
    expect("completeness", "integrated_gradients", "tanh is analytic: quadrature converges"),
    expect(
        "completeness", "epsilon_lrp", "without biases every linear map and every activation conserves, and f(0) = 0"
    ),
    expect("completeness", LRP_OF_PRODUCTS, "the same rules as ε-LRP where there is no product of data"),
)


def bert(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """An unmodified two-layer `BertForSequenceClassification` with random weights, eager attention."""
    config = BertConfig(
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        vocab_size=50,
        initializer_range=0.2,  # the default 0.02 leaves an untrained model almost constant
    )
    with seeded(seed):
        classifier = BertForSequenceClassification(config)
    classifier.set_attn_implementation("eager")  # Attention Rollout has to see the softmax
    model = EmbeddingModel(classifier).to(device, dtype).eval()
    return model, deepcopy(model)


control(
    "control.bert",
    bert,
    sentences,
    # Not completeness or conservation: the conservation ledger reports where LRP's relevance is lost.
    f"invariance loo {SINGLE_MODEL_AXIOMS}",
    COPIES,
    CHORD_NOT_TANGENT,
    expect_of_any_model(FROM_BASELINE, f"{GRADIENT} {LRP_OF_PRODUCTS}"),
    expect("sensitivity", "loo", "it is the change of the output"),
    expect(
        "sensitivity", "integrated_gradients", "complete, to the quadrature: the one feature that differs gets it all"
    ),
    expect("sensitivity", f"{GRADIENT} {LRP_OF_PRODUCTS}", "an analytic gradient is 0 on a set of measure 0 only"),
    expect("shift", f"{GRADIENT} {LRP_OF_PRODUCTS}", "LayerNorm subtracts a token's mean, so its gradient sums to 0"),
    expect("sensitivity", ROLLOUT, "a product of softmax weights, which are positive"),
    expect("shift", ROLLOUT, "the attention weights stay the same"),
    expect(f"determinism batching {PRECISION}", ROLLOUT, "a product of each example's own attention weights"),
    expect("linearity", ROLLOUT, "the same for every output: 2a beside 3a", floor=0.66, ceiling=0.67),
    expect("additivity", ROLLOUT, "the same for every output: a − 2a beside 2a", floor=0.49, ceiling=0.51),
    expect("antisymmetry", ROLLOUT, "the same for every output: a + a beside a", floor=1.99, ceiling=2.01),
    expect("scale", ROLLOUT, "the same for every factor of the output: 2a beside 3a", floor=0.66, ceiling=0.67),
    expect("randomisation", ROLLOUT, "it does not depend on the last layer: ρ = 1", floor=0.99, ceiling=1.01),
    expect("loo", "loo", "Leave-One-Out correlates with itself"),
)
control(
    "control.product",
    copies(lambda: ScalarProduct(left_comb(3))),
    factors(3),
    "invariance symmetry shift scale conservation",
    COPIES,
    expect("symmetry", f"loo {GRADIENT}", "every factor gets y", cite=SUNDARARAJAN),
    expect("symmetry", "integrated_gradients", "every factor gets y/3", cite=SUNDARARAJAN),
    expect("symmetry", LRP_OF_PRODUCTS, "the last factor gets y/2, the others y/4", predict=excess_of_last_factor),
    expect("shift", FROM_BASELINE, "x − x′, and the function between them, stay the same"),
    expect("shift", GRADIENT, SHIFTED, predict=shift_of_shares([1, 1, 1]), cite=KINDERMANS),
    expect("shift", LRP_OF_PRODUCTS, SHIFTED, predict=shift_of_shares([1 / 4, 1 / 4, 1 / 2]), cite=KINDERMANS),
    expect(
        "scale", OF_EVERY_FUNCTION, "c·x ⊙ gradient/c, and a factor of the output is a factor of values and gradients"
    ),
    expect("conservation", LRP_OF_PRODUCTS, "each product passes ½ + ½ of its relevance on", cite=BILINEAR_RULE),
)


def attention_copies(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    left, _ = linear_attention.build(seed, dtype, device)
    return left, deepcopy(left)


control(
    "control.linear_attention",  # the pair linear_attention.assoc measures its models alone
    attention_copies,
    linear_attention.digits_case,
    "invariance",
    COPIES,
    # By weights of 8 bits, trained on MNIST with seed 1, its map of one digit falls to 0.73 of itself.
    {
        (axiom, "cplrp"): Expectation(
            "UNCLAIMED",
            "queries and keys are constant, so that all relevances have one factor, hᵀV p of the target's row of the "
            "head, the values' weights and a pixel's embedding: for some targets a small difference of large terms",
        )
        for axiom in ("precision_bfloat16", "precision_float16", "precision_int8")
    },
)
