"""Probes: the smallest models that one axiom needs (`faithcheck.models.networks.probes`), each beside its deep copy.

One more, ``padded``, is the control's BERT on sentences of unequal lengths: a masked key weighs exp(−∞) = 0, so neither
values nor gradients nor attention reach an example's padding or come from it.
"""

from dataclasses import replace
from functools import partial

import torch

from faithcheck.models.case import Case
from faithcheck.models.cases import examples, padded_sentences
from faithcheck.models.expectation import ALL_LRP, Expectations, expect
from faithcheck.models.networks.probes import (
    PositionalAttention,
    Probe,
    TokenAttention,
    WithConstants,
    affine,
    even,
    loss_at_softmax,
    loss_to_constants,
    missed_change,
    products,
    quarter_of_third_factor,
    relevance_of_both_sigmoids,
    rollout_of_valueless_feature,
    saturated,
    self_attention,
    sigmoids,
    tied_perceptron,
)
from faithcheck.models.pair import Build, MakeCase, control, copies, random_points
from faithcheck.models.pairs.control import (
    CHORD_NOT_TANGENT,
    COPIES,
    GRADIENT,
    NOTHING_FROM_PADDING,
    OF_EVERY_FUNCTION,
    ROLLOUT,
    SUNDARARAJAN,
)
from faithcheck.models.pairs.control import bert as bert_copies
from faithcheck.models.pairs.product import LRP_OF_PRODUCTS

COMPLETE_ALONG_A_PATH = "loo integrated_gradients deeplift_rescale"
GATES = "mask_gate finite_mask_gate grouped_mask_gate readout_gate budgeted_loo"
OF_EVERY_NETWORK = f"{OF_EVERY_FUNCTION} deeplift_rescale epsilon_lrp"
points = partial(random_points, 5)  # points(features) is a pair's ``case`` of five rows


def away_from_baseline(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
    """Five points of 12 features, two numbers each, and a random baseline."""
    case = random_points(5, 12, 2)(seed, dtype, device)
    return replace(case, baseline=case.inputs.roll(1, 0) / 2)


def probe(name: str, build: Build, case: MakeCase, axioms: str, *expected: Expectations) -> None:
    """Register a model as a control on which these axioms are measured, and invariance."""
    control(f"probe.{name}", build, case, f"invariance {axioms}", COPIES, *expected)


probe(
    "saturated",
    copies(lambda: Probe(saturated)),
    examples([[2], [0.5], [-1]]),  # the ReLU is off at 2
    "sensitivity",
    expect("sensitivity", COMPLETE_ALONG_A_PATH, "complete: the one feature gets the whole change", cite=SUNDARARAJAN),
    expect(
        "sensitivity",
        f"{GRADIENT} {ALL_LRP}",
        "the gradient is 0 above 1, ReLU's modified gradient too",
        predict=missed_change(1),
        cite=SUNDARARAJAN,
    ),
)
probe(
    "perceptron",
    copies(tied_perceptron),
    points(4),
    "completeness dummy symmetry",
    expect("dummy", OF_EVERY_NETWORK, "a weight of 0 passes nothing on"),
    expect("symmetry", OF_EVERY_NETWORK, "equal weights and values are treated alike"),
)
probe(
    "sigmoids",
    copies(lambda: Probe(sigmoids)),
    points(2),
    "dummy",
    expect("dummy", f"{COMPLETE_ALONG_A_PATH} {GRADIENT}", "values, slopes and gradients of the two sigmoids cancel"),
    expect("dummy", ALL_LRP, "u gets σ(u) + σ(−u) = 1", predict=relevance_of_both_sigmoids),
)
probe(
    "products",
    copies(lambda: Probe(products)),
    points(3),
    "dummy",
    expect("dummy", f"loo integrated_gradients {GRADIENT}", "values and gradients of the two products cancel"),
    expect(
        "dummy",
        LRP_OF_PRODUCTS,
        "x₃ gets y/2 of the first product and y/4 of the second",
        predict=quarter_of_third_factor,
    ),
)
probe(
    "attention",
    copies(PositionalAttention),
    points(4),
    "dummy",
    expect("dummy", OF_EVERY_NETWORK, "the function is linear and has no term in the feature of value 0"),
    expect("dummy", ROLLOUT, "attention of ½A₁₄ goes to a value of 0", predict=rollout_of_valueless_feature),
)
probe(
    "affine",  # with as many features that some fit the budget of `BudgetedLeaveOneOut`
    copies(affine),
    away_from_baseline,
    "completeness",
    expect("completeness", f"{COMPLETE_ALONG_A_PATH} {GATES}", "w(x − x′), each feature by itself"),
)
probe(
    "even",
    copies(lambda: Probe(even)),
    points(2),
    "completeness",
    expect("completeness", COMPLETE_ALONG_A_PATH, "a sum of functions of one feature each"),
)
probe(
    "linear",
    copies(partial(affine, bias=False)),
    points(12, 2),
    "completeness",
    expect("completeness", f"loo {GATES}", "f(x) = w·x: each feature by itself"),
    expect("local_limit", f"loo {GATES}", "f(x) = w·x: a part of a feature is as much of its effect"),
)
probe(
    "tokens",
    copies(TokenAttention),
    points(4, 3),
    "symmetry",
    CHORD_NOT_TANGENT,
    expect("symmetry", OF_EVERY_FUNCTION, "swapping two tokens swaps everything computed from them"),
    expect("symmetry", ROLLOUT, "the mean of the rows, of which swapping two tokens swaps two"),
)
probe(
    "softmax",
    copies(lambda: Probe(self_attention)),
    points(4),
    "conservation",
    expect("conservation", "attnlrp", "Eq. 5 passes ½Var_A x on, not ½Σ Ax", predict=loss_at_softmax),
    expect("conservation", "cplrp", "A is a constant, and x gets all of Σ Ax"),
)
probe(
    "constants",
    copies(WithConstants),
    points(4),
    "conservation",
    expect("conservation", ALL_LRP, "the bias keeps b, the added embedding w·p", predict=loss_to_constants),
)
probe("padded", bert_copies, padded_sentences, "batching", NOTHING_FROM_PADDING)
