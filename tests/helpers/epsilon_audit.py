"""The ε audit: the invariance gap that a stabiliser ε > 0 causes, with and without the sign of z.

1. ε-LRP and AttnLRP divide by z + ε·sign z (arXiv 2510.18810, Eqs. 1, 3 and 4), some libraries by z + ε. As modified
   gradients the first scales by |z|/(|z| + ε), the second by z/(z + ε). Both factors depend on the size of z.
2. So a change of a model that preserves its function, and its relevance at ε → 0, but changes the size or the number
   of the intermediate z, changes relevance in first order of ε.

*Queries times c, keys times 1/c.* The logits are the same, and so is everything after them.

1. The factor at q becomes 1/(1 + ε/(c|q|)), the factor at k becomes 1/(1 + cε/|k|).
2. Let T_q and T_k be the relevance through queries and keys, weighted by 1/|q| and 1/|k|. Then, as ε → 0,

       (a_f − a_g)/ε → (1 − 1/c)(c·T_k − T_q),

   which is linear in c except for the factor 1 − 1/c.
3. The product cε matters: once it reaches |k|, a key has lost its relevance.

*Two linear maps against their product.* f computes the intermediate h, g does not. Let s be the factor at the output y,
the same in both. Then, exactly and at every ε,

    a_f − a_g = −ε x ⊙ Σ_j W₂_j W₁_j s(y) / (|h_j| + ε),

and without the sign ε/(h_j + ε), which has a pole at ε = −h_j.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from faithcheck.axioms.measure.measurement import relative_gap
from faithcheck.explainers.lrp.attnlrp import AttnLRP
from faithcheck.explainers.lrp.operation_call import OperationCall, Rule
from faithcheck.explainers.protocol import attribution_of
from faithcheck.models.architectures.base_models import layers
from faithcheck.models.case import Case
from faithcheck.models.pairs.rescaling_of_neurons_and_logits import multiply

EPSILONS = tuple(10.0 ** (power / 2) for power in range(-24, -1))
"""1e-12 … 1e-1, two in each decade."""


def attributions(model: nn.Module, case: Case, epsilons: Sequence[float] = EPSILONS, *, signed: bool = True) -> Tensor:
    """AttnLRP's maps with each stabiliser: ``(epsilons, batch, features)``."""
    methods = (replace(AttnLRP(epsilon), signed=signed) for epsilon in epsilons)
    return torch.stack([attribution_of(method, model, case) for method in methods])


def gaps(left: Tensor, right: Tensor) -> list[float]:
    """The invariance gap of two models' `attributions` at each ε, in [0, 2]."""
    return [relative_gap(f - g, f, g) for f, g in zip(left, right, strict=True)]


@torch.no_grad()
def queries_rescaled(model: nn.Module, c: float) -> nn.Module:
    """A copy with every query times c and every key divided by c, biases too: the logits are the same."""
    changed = deepcopy(model)
    for layer in layers(changed):
        multiply(layer.query, c)
        multiply(layer.key, 1 / c)
    return changed


def smallest_value(model: nn.Module, case: Case) -> float:
    """The smallest |z| > 0 among the results of all operations that carry relevance.

    A factor |z|/(|z| + ε) is 1 − ε/|z| up to (ε/z)²: for ε up to a hundredth of the smallest |z| the first order
    suffices. A result of 0 has the factor 0 at every ε, and is left out; infinity if all results are 0.
    """
    smallest = math.inf

    def measuring(rule: Rule) -> Rule:
        def measuring_rule(call: OperationCall) -> Any:
            nonlocal smallest
            result = rule(call)
            if isinstance(result, Tensor):
                size = result.detach().abs()
                if len(counted := size[size > 0]):
                    smallest = min(smallest, float(counted.min()))
            return result

        return measuring_rule

    method = AttnLRP()
    replace(method, rules={name: measuring(rule) for name, rule in method.rules.items()}).attribute(model, case)
    return smallest


def two_maps_difference(first: Tensor, second: Tensor, case: Case, epsilon: float, signed: bool = True) -> Tensor:
    """The closed form of a_f − a_g for two bias-free linear maps f against their product g: ``(batch, features)``."""
    hidden, weights = case.inputs @ first.T, second[case.target]
    output = (hidden * weights).sum(1, keepdim=True)

    def lost(z: Tensor) -> Tensor:
        return epsilon / ((z.abs() if signed else z) + epsilon)

    return -case.inputs * ((lost(hidden) * weights) @ first) * (1 - lost(output))
