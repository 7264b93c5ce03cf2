"""Controls: a model and its deep copy. Nothing differs, so whatever an explainer does, it does it twice.

They also carry the single models that the other axioms are measured on: a perceptron, a small BERT and x₁x₂x₃. What
holds there, and why (LRP with ε → 0 is input × modified gradient, DeepLIFT (input − baseline) × slopes):

* sensitivity (a): LOO is the change itself, and so are the complete IG and DeepLIFT where one feature differs. A
  (modified) gradient of these analytic functions is zero on a set of measure 0, which random points miss. Rollout is a
  product of softmax weights, all positive.
* linearity: function values and gradients are linear in the function, and no LRP rule with ε → 0 depends on what
  comes from above. Rollout is the same a for every output: a − (α + β)·a is 2a, next to 3a.
* shift: with the baseline shifted too, x − x′ and the function on it are what they were. Whoever multiplies by x itself
  gains c ⊙ gradient: (x + c) ⊙ gradient − x ⊙ gradient. In BERT this is 0: a constant added to an embedding is what the
  LayerNorm after it takes away, so that the gradient, LRP's too, sums to 0 over each token.
* scale: dividing by a constant divides the gradient, and x is as much larger; a factor of the output is one of the
  gradient and of the values. Rollout does not see the factor: a − 3a, next to 3a.
* randomisation: the maps of a random last layer are random mixtures of those of the 16 units of the perceptron, the 32
  of BERT, below it: ρ² is one over the number of such maps that are independent, which is less than half unless one of
  them outweighs the rest. Rollout does not see the last layer: ρ = 1.
* conservation, op by op: LRP alone passes relevance from operation to operation. Bias-free linear maps, activations and
  products of data conserve; what Eq. 5 and added constants keep is in `probes`.
* determinism, batching, precision: none draws random numbers, looks at another example, or subtracts much larger
  numbers than its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

from faithcheck.models.architectures.embedding_model import EmbeddingModel
from faithcheck.models.case import Case, input_gradient, output_difference
from faithcheck.models.networks.derived import SHIFT
from faithcheck.models.pair import (
    ALL_LRP,
    INVARIANT_BY_DEFINITION,
    Expectation,
    Expectations,
    Pair,
    Predict,
    equivalent_pair,
    expect,
    expect_lrp,
    register,
)
from faithcheck.models.pairs import linear_attention, product

WHY = "a deep copy is the same model"
TOKENS, WIDTH = 7, 32

GRADIENT = "gradient_x_input"
LRP = "attnlrp cplrp"
FROM_BASELINE = "loo integrated_gradients"
ALL = f"{FROM_BASELINE} {GRADIENT} {LRP}"
ROLLOUT = "attention_rollout"
AXIOMS = ("invariance", "loo")
OTHERS = tuple("sensitivity linearity shift scale randomisation determinism batching precision trace".split())

itself = Expectation("HOLDS", "Leave-One-Out correlates with itself")

SHIFTED = "(x + c) ⊙ gradient − x ⊙ gradient = c ⊙ gradient"
KINDERMANS = "Kindermans et al. 2017, arXiv 1711.00867"
BACH = "Bach et al. 2015, doi 10.1371/journal.pone.0130140"
SUNDARARAJAN = "Sundararajan et al. 2017, arXiv 1703.01365"

COPIES: Expectations = {**INVARIANT_BY_DEFINITION, **expect_lrp("the same model twice")}


def generic(values: str, gradients: str) -> Expectations:
    """What holds on any model for explainers of function values and for those that are an input × gradient."""
    both = f"{values} {gradients}"
    return {
        **expect("linearity", both, "values and (modified) gradients are linear in the function", cite=SUNDARARAJAN),
        **expect("shift", values, "x − x′, and the function between them, are what they were", cite=KINDERMANS),
        **expect("scale", both, "c·x ⊙ gradient/c, and a factor of the output is one of values and gradients"),
        **expect("randomisation", both, "random mixtures of the maps of many units: ρ² is one over their number"),
        **expect("determinism", both, "draws no random numbers"),
        **expect("batching", both, "no operation mixes examples"),
        **expect("precision", both, "no difference of numbers much larger than itself"),
    }


def of_the_shift(model: nn.Module, case: Case) -> Tensor:
    """Gradient × input under a shift: c ⊙ gradient, ``(batch, features)``."""
    return SHIFT * input_gradient(model, case)


def slope_surplus(model: nn.Module, case: Case) -> Tensor:
    """x·gradient − (f(x) − f(0)), ``(batch,)``: how far the tangent at x is from the chord, for gradient × input."""
    return (case.inputs * input_gradient(model, case)).flatten(1).sum(1) - output_difference(model, case)


def interactions(model: nn.Module, case: Case) -> Tensor:
    """Σᵢ (f(x) − f(x without i)) − (f(x) − f(0)), ``(batch,)``: a term counts once for each feature in it."""
    alone = torch.zeros(len(case.inputs)).to(case.inputs)
    for i in range(case.shape[1]):
        without = case.inputs.clone()
        without[:, i] = case.baseline[:, i]
        alone += output_difference(model, replace(case, baseline=without))
    return alone - output_difference(model, case)


def generator(seed: int) -> torch.Generator:
    """Random numbers of one's own, the same for the same seed."""
    return torch.Generator().manual_seed(seed)


def points(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
    """Six random points of eight features, baseline 0."""
    inputs = torch.randn(6, 8, dtype=torch.float64, generator=generator(seed)).to(device, dtype)
    target = torch.randint(3, (6,), generator=generator(seed)).to(device)
    return Case(inputs, target, torch.zeros_like(inputs))


def sentences(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
    """Four random sentences of seven token embeddings, the first and the last special, baseline 0."""
    inputs = torch.randn(4, TOKENS, WIDTH, dtype=torch.float64, generator=generator(seed)).to(device, dtype)
    special = torch.zeros(4, TOKENS, dtype=torch.bool, device=device)
    special[:, [0, -1]] = True
    target = torch.randint(2, (4,), generator=generator(seed)).to(device)
    return Case(inputs, target, torch.zeros_like(inputs), special)


def of_the_shift_in_relevance(model: nn.Module, case: Case) -> Tensor:
    """LRP on the perceptron under a shift: c ⊙ the gradient with tanh z/z for the slope of tanh, ``(batch, 8)``."""
    first, last = (model.get_parameter(name).detach() for name in ("0.weight", "2.weight"))
    z = case.inputs @ first.T
    return SHIFT * (last[case.target] * torch.tanh(z) / z) @ first


ON_THE_PERCEPTRON: Expectations = {
    **COPIES,
    **generic(f"{FROM_BASELINE} deeplift_rescale", f"{GRADIENT} {ALL_LRP}"),
    **expect("sensitivity", "loo", "it is the change of the output"),
    **expect("sensitivity", "integrated_gradients deeplift_rescale", "complete: the one that differs gets it all"),
    **expect("sensitivity", f"{GRADIENT} {ALL_LRP}", "an analytic gradient is 0 on a set of measure 0 only"),
    **expect("shift", GRADIENT, SHIFTED, predict=of_the_shift, cite=KINDERMANS),
    **expect("shift", ALL_LRP, SHIFTED, predict=of_the_shift_in_relevance, cite=KINDERMANS),
    **expect("completeness", GRADIENT, "the tangent at x is not the chord to 0", predict=slope_surplus),
    **expect("completeness", "loo", "what features do together counts for each of them", predict=interactions),
    **expect("conservation", ALL_LRP, "no bias, and activations pass relevance on unchanged", cite=BACH),
    ("loo", "loo"): itself,
    ("completeness", "integrated_gradients"): Expectation("HOLDS", "tanh is analytic: quadrature converges"),
    ("completeness", "epsilon_lrp"): Expectation(
        "HOLDS", "without biases every linear map and every activation conserves, and f(0) = 0"
    ),
    **expect("completeness", LRP, "the same rules as ε-LRP where there is no product of data"),
}


@equivalent_pair(
    "control.mlp",
    case=points,
    why=WHY,
    control=True,
    axioms=(*AXIOMS, *OTHERS, "completeness", "conservation"),
    expected=ON_THE_PERCEPTRON,
)
def perceptron(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """A bias-free perceptron with tanh, random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(8, 16, bias=False), nn.Tanh(), nn.Linear(16, 3, bias=False)]
    model = nn.Sequential(*layers).to(device, dtype).eval()
    return model, deepcopy(model)


ON_BERT: Expectations = {
    **COPIES,
    **generic(FROM_BASELINE, f"{GRADIENT} {LRP}"),
    **expect("sensitivity", "loo", "it is the change of the output"),
    **expect("sensitivity", "integrated_gradients", "complete, to the quadrature: the one that differs gets it all"),
    **expect("sensitivity", f"{GRADIENT} {LRP}", "an analytic gradient is 0 on a set of measure 0 only"),
    **expect("shift", f"{GRADIENT} {LRP}", "LayerNorm takes a token's mean away: its gradient sums to 0"),
    **expect("sensitivity", ROLLOUT, "a product of softmax weights, which are positive"),
    **expect("shift", ROLLOUT, "the attention weights are what they were"),
    **expect("determinism batching precision", ROLLOUT, "a product of each example's own attention weights"),
    **expect("linearity", ROLLOUT, "the same for every output: 2a beside 3a", floor=0.66),
    **expect("scale", ROLLOUT, "the same for every factor of the output: 2a beside 3a", floor=0.66),
    **expect("randomisation", ROLLOUT, "does not see the last layer: ρ = 1", floor=0.99),
    ("loo", "loo"): itself,
}


@equivalent_pair(
    "control.bert",
    case=sentences,
    why=WHY,
    control=True,
    axioms=(*AXIOMS, *OTHERS),  # not completeness or conservation: the ledger says where LRP's relevance goes there
    expected=ON_BERT,
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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier = BertForSequenceClassification(config)
    classifier.set_attn_implementation("eager")  # Attention Rollout has to see the softmax
    model = EmbeddingModel(classifier).to(device, dtype).eval()
    return model, deepcopy(model)


def product_copies(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """x₁x₂x₃ twice."""
    model = product.ScalarProduct(product.left_comb(3)).eval()
    return model, deepcopy(model)


def attention_copies(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """The trained left-associated linear attention twice."""
    left, _ = linear_attention.build(seed, dtype, device)
    return left, deepcopy(left)


def product_of_the_shift(share: Sequence[float]) -> Predict:
    """(Modified) gradient × input of x₁x₂x₃ under a shift, ``(batch, 3)``: c times a share of y/xᵢ."""
    return lambda model, case: SHIFT * case.inputs.new_tensor(share) * case.inputs.prod(1, keepdim=True) / case.inputs


def last_takes_half(model: nn.Module, case: Case) -> Tensor:
    """AttnLRP's (¼, ¼, ½)y less its first entry, ``(batch, 3)``, where all factors have the first one's value."""
    return case.inputs[:, :1] ** 3 * case.inputs.new_tensor([0, 0, 1 / 4])


register(
    Pair(
        "control.product",
        product_copies,
        product.points(3),
        WHY,
        expected={
            **COPIES,
            **expect("symmetry", f"loo {GRADIENT}", "every factor gets y", cite=SUNDARARAJAN),
            **expect("symmetry", "integrated_gradients", "every factor gets y/3", cite=SUNDARARAJAN),
            **expect("symmetry", LRP, "the last factor gets y/2, the others y/4", predict=last_takes_half),
            **expect("shift", FROM_BASELINE, "x − x′, and the function between them, are what they were"),
            **expect("shift", GRADIENT, SHIFTED, predict=product_of_the_shift([1, 1, 1]), cite=KINDERMANS),
            **expect("shift", LRP, SHIFTED, predict=product_of_the_shift([1 / 4, 1 / 4, 1 / 2]), cite=KINDERMANS),
            **expect("scale", ALL, "c·x ⊙ gradient/c, and a factor of the output is one of values and gradients"),
            **expect("conservation", LRP, "each product passes ½ + ½ of its relevance on", cite=product.PAPER),
        },
        axioms=frozenset({"invariance", "symmetry", "shift", "scale", "conservation"}),
        control=True,
    )
)
register(
    Pair(
        "control.linear_attention",  # its models are measured alone where they are at home
        attention_copies,
        linear_attention.digits_case,
        WHY,
        expected=COPIES,
        axioms=frozenset({"invariance"}),
        control=True,
    )
)
