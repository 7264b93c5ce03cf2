"""Networks with one hidden layer, and closed forms of LRP on them."""

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case
from faithcheck.models.networks.derived import SHIFT
from faithcheck.models.pair import seeded


class HiddenLayer(nn.Module):
    """Linear map, middle, linear map, both with bias: ``(batch, 8)`` to ``(batch, 3)``."""

    def __init__(self, middle: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.hidden, self.middle, self.head = nn.Linear(8, 6), middle, nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.middle(self.hidden(inputs)))

    def map_of_slope(self, slope: Tensor, case: Case) -> Tensor:
        """x ⊙ Wᵀ(slope ⊙ V_t) from the middle's modified gradient ``(batch, 6)``: ``(batch, 8)``, no autograd."""
        return case.inputs * ((slope * self.head.weight[case.target]) @ self.hidden.weight)


def two_hidden_layers(
    seed: int, dtype: torch.dtype, device: torch.device, f: Callable[[Tensor], Tensor], g: Callable[[Tensor], Tensor]
) -> tuple[HiddenLayer, HiddenLayer]:
    """Two networks with the same random weights, with f and with g in the middle, in eval mode."""
    with seeded(seed):
        first, second = HiddenLayer(f), HiddenLayer(deepcopy(g))
    second.hidden, second.head = deepcopy(first.hidden), deepcopy(first.head)
    return first.to(device, dtype).eval(), second.to(device, dtype).eval()


def missing_slope(slope: Callable[[Tensor], Tensor]) -> Callable[[HiddenLayer, HiddenLayer, Case], Tensor]:
    """The closed form of a_f − a_g where g's modified gradient at z is smaller than f's by ``slope(z)``."""

    def predict(f: HiddenLayer, g: HiddenLayer, case: Case) -> Tensor:
        return f.map_of_slope(slope(f.hidden(case.inputs)), case).detach()

    return predict


def bias_free_perceptron() -> nn.Sequential:
    """W₂ tanh(W₁x) with random weights: ``(batch, 8)`` to ``(batch, 3)``."""
    return nn.Sequential(nn.Linear(8, 16, bias=False), nn.Tanh(), nn.Linear(16, 3, bias=False))


def lrp_under_shift(model: nn.Module, case: Case) -> Tensor:
    """What LRP gains when inputs are shifted by c = `SHIFT`: c ⊙ the modified gradient, ``(batch, 8)``.

    The identity rule of tanh replaces its slope by tanh z/z, so the modified gradient is W₁ᵀ(tanh z/z ⊙ W₂ₜ) with
    z = W₁x and W₂ₜ the row of the explained output.
    """
    first, last = (model.get_parameter(name).detach() for name in ("0.weight", "2.weight"))
    z = case.inputs @ first.T
    return SHIFT * (last[case.target] * torch.tanh(z) / z) @ first
