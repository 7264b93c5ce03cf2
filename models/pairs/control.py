"""Controls: a model and its deep copy. Nothing differs, so whatever an explainer does, it does it twice.

They also carry the single models that the other axioms are measured on: a perceptron and a small BERT.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

from faithcheck.models.case import Case
from faithcheck.models.pair import Expectation, Pair, equivalent_pair, register
from faithcheck.models.pairs import linear_attention, product

WHY = "a deep copy is the same model"
TOKENS, WIDTH = 7, 32

itself = Expectation("HOLDS", "Leave-One-Out correlates with itself")


class TokenClassifier(nn.Module):
    """A `transformers` classifier read at its token embeddings: ``(batch, tokens, width)`` to ``(batch, classes)``."""

    def __init__(self, classifier: BertForSequenceClassification) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, embeddings: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.classifier(inputs_embeds=embeddings).logits
        return logits


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


@equivalent_pair(
    "control.mlp",
    case=points,
    why=WHY,
    control=True,
    expected={
        ("loo", "loo"): itself,
        ("completeness", "integrated_gradients"): Expectation("HOLDS", "tanh is analytic: quadrature converges"),
        ("completeness", "epsilon_lrp"): Expectation(
            "HOLDS", "without biases every linear map and every activation conserves, and f(0) = 0"
        ),
        ("completeness", "attnlrp"): Expectation("HOLDS", "the same rules as ε-LRP where there is no product of data"),
        ("completeness", "cplrp"): Expectation("HOLDS", "the same rules as ε-LRP where there is no product of data"),
    },
)
def perceptron(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """A bias-free perceptron with tanh, random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(8, 16, bias=False), nn.Tanh(), nn.Linear(16, 3, bias=False)]
    model = nn.Sequential(*layers).to(device, dtype).eval()
    return model, deepcopy(model)


@equivalent_pair(
    "control.bert",
    case=sentences,
    why=WHY,
    control=True,
    expected={
        ("loo", "loo"): itself,
        ("completeness", "integrated_gradients"): Expectation(
            "UNCLAIMED", "32 nodes of quadrature through LayerNorm and softmax leave an error above round-off"
        ),
    },
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
    model = TokenClassifier(classifier).to(device, dtype).eval()
    return model, deepcopy(model)


def product_copies(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """x₁x₂x₃ twice."""
    model = product.ScalarProduct(product.left_comb(3)).eval()
    return model, deepcopy(model)


def attention_copies(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """The trained left-associated linear attention twice."""
    left, _ = linear_attention.build(seed, dtype, device)
    return left, deepcopy(left)


# The models of these two are measured alone where they are at home.
register(
    Pair("control.product", product_copies, product.points(3), WHY, axioms=frozenset({"invariance"}), control=True)
)
register(
    Pair(
        "control.linear_attention",
        attention_copies,
        linear_attention.digits_case,
        WHY,
        axioms=frozenset({"invariance"}),
        control=True,
    )
)
