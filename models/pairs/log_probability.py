"""Log-probabilities: what all logits have in common changes nothing, and the logarithm of a softmax is the same again.

Let z be the logits of a perceptron, p = softmax(z), t the target, and m_k the map of z_k: for LRP x ⊙ the modified
gradient, in which the identity rule of tanh replaces its slope by tanh u/u.

1. log p_t = z_t − log Σ exp z. AttnLRP passes the normaliser on by its plain gradient, p. Together that is
   Σ_k (δ_tk − p_k) m_k. These factors add up to 0, so a function c(x) that is added to every logit gets nothing.
2. CP-LRP holds the normaliser constant: m_t. With c(x) = w·x added, z_t has the map m_t + w ⊙ x.
3. softmax, then log. The identity rule of log gives y/p_t at p_t, y = log p_t, and Eq. 5 gives p_t (δ_tk − p_k) at z_k:
   together y Σ_k (δ_tk − p_k) m_k. CP-LRP's softmax passes nothing on.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case
from faithcheck.models.cases import points
from faithcheck.models.expectation import Expectation, expect_lrp
from faithcheck.models.networks.derived import Derived
from faithcheck.models.networks.hidden_layer import bias_free_perceptron
from faithcheck.models.pair import invariance_pair, model_and_copy, seeded
from faithcheck.models.targets import LogProbabilities


class CommonTerm(Derived):
    """The model's outputs with w·x added to each of them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.common = nn.Linear(8, 1, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs) + self.common(inputs)


class LogOfSoftmax(Derived):
    """log softmax of the model's outputs, as a logarithm of a softmax."""

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs).softmax(1).log()


def logits_and_maps(model: nn.Module, case: Case) -> tuple[Tensor, Tensor]:
    """The perceptron's logits ``(batch, 3)``, and LRP's maps of them, ``(batch, 3, 8)``."""
    first, last = (model.get_parameter(name).detach() for name in ("0.weight", "2.weight"))
    u = case.inputs @ first.T
    slopes = last * (torch.tanh(u) / u).unsqueeze(1)
    return torch.tanh(u) @ last.T, case.inputs.unsqueeze(1) * (slopes @ first)


def of_target(values: Tensor, case: Case) -> Tensor:
    return values[torch.arange(len(values), device=values.device), case.target]


def less_the_common_term(f: nn.Module, g: Derived, case: Case) -> Tensor:
    """CP-LRP's a_f − a_g: −w ⊙ x."""
    common = g.model.common
    assert isinstance(common, nn.Linear)
    return -case.inputs * common.weight.detach()


def without_log(f: Derived, g: nn.Module, case: Case) -> Tensor:
    """AttnLRP's a_f − a_g: (1 − y) Σ_k (δ_tk − p_k) m_k."""
    logits, maps = logits_and_maps(f.model, case)
    y = of_target(logits.log_softmax(1), case).unsqueeze(1)
    weighted: Tensor = torch.einsum("bk,bki->bi", logits.softmax(1), maps)
    return (1 - y) * (of_target(maps, case) - weighted)


def of_perceptron(
    other: Callable[[nn.Module], nn.Module], how: tuple[int, torch.dtype, torch.device]
) -> tuple[nn.Module, nn.Module]:
    """The log-probabilities of a perceptron, and another form of them."""
    model, copy = model_and_copy(bias_free_perceptron, *how)
    with seeded(how[0] + 1):
        return LogProbabilities(model).eval(), other(copy).to(how[2], how[1]).eval()


def common_term(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    return of_perceptron(lambda model: LogProbabilities(CommonTerm(model)), (seed, dtype, device))


invariance_pair(
    "log_probability.common_term",
    common_term,
    points,
    expect_lrp("the factors δ − p of the logits add up to 0: the common term gets nothing", of="attnlrp blockwise_lrp"),
    expect_lrp("the normaliser is a constant, and the common term stays", of="cplrp", predict=less_the_common_term),
    why="log softmax(z + c) = log softmax(z) for every c, so for c = w·x",
)


def log_of_softmax(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    return of_perceptron(LogOfSoftmax, (seed, dtype, device))


invariance_pair(
    "log_probability.log_of_softmax",
    log_of_softmax,
    points,
    expect_lrp("log's identity rule multiplies by log p", of="attnlrp blockwise_lrp", predict=without_log),
    {("invariance", "cplrp"): Expectation("ERROR", "a constant softmax passes nothing on", error="output is constant")},
    why="log softmax(z)_t = z_t − log Σ exp(z)",
)
