"""The ε audit: what a stabiliser ε > 0 costs in implementation invariance, with and without the sign of z.

Where z divides, ε-LRP and AttnLRP have z + ε·sign z (arXiv 2510.18810, Eqs. 1, 3 and 4), some libraries z + ε. As
modified gradients the one scales by |z|/(|z| + ε), the other by z/(z + ε). Either depends on the size of z, so that a
change of a model which leaves its function and its relevance at ε → 0 alone, but moves the size or the number of the
z on the way, moves relevance by the first order of ε:

* Queries times c, keys by 1/c: logits stay, and with them all that comes behind; q's factor becomes 1/(1 + ε/(c|q|))
  and k's 1/(1 + cε/|k|). With T_q and T_k the relevance through each weighted by 1/|q| and 1/|k|,

      (a_f − a_g)/ε → (1 − 1/c)(c·T_k − T_q)   as ε → 0:

  linear in c but for the factor. What counts is cε: once it reaches |k|, a key's relevance is gone.
* Two linear maps against their product: f has the hidden h on the way, g has not. With s the factor of the output y,
  common to both, exactly and at every ε,

      a_f − a_g = −ε x ⊙ Σ_j W₂_j W₁_j s(y) / (|h_j| + ε),

  and without the sign ε/(h_j + ε): a pole at ε = −h_j.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from faithcheck.axioms.engine.verdicts import relative_gap
from faithcheck.explainers.lrp.engine import AttnLRP
from faithcheck.explainers.lrp.rules import OperationCall, Rule
from faithcheck.explainers.protocol import attribution_of
from faithcheck.models.architectures.base_models import layers
from faithcheck.models.case import Case
from faithcheck.models.pairs.rescaling_of_neurons_and_logits import multiply

EPSILONS = tuple(10.0 ** (power / 2) for power in range(-24, -1))
"""1e-12 … 1e-1, two a decade."""


def attributions(model: nn.Module, case: Case, epsilons: Sequence[float] = EPSILONS, *, signed: bool = True) -> Tensor:
    """AttnLRP's maps with each stabiliser: ``(epsilons, batch, features)``.

    Raises:
        ZeroDivisionError: without the sign, a denominator is 0.
        Unsupported, InvalidAttribution: from the explainer.
    """
    methods = (replace(AttnLRP(epsilon), signed=signed) for epsilon in epsilons)
    return torch.stack([attribution_of(method, model, case) for method in methods])


def gaps(left: Tensor, right: Tensor) -> list[float]:
    """The invariance gap of two models' `attributions` at each ε: as `invariance` has it, in [0, 2]."""
    return [relative_gap(f - g, f, g) for f, g in zip(left, right, strict=True)]


@torch.no_grad()
def queries_rescaled(model: nn.Module, c: float) -> nn.Module:
    """A copy with every query times c and every key divided by it, biases too: the logits are the same.

    Args:
        model: a model whose parts `faithcheck.models.architectures.base_models.layers` knows.
        c: any number but 0.
    """
    changed = deepcopy(model)
    for layer in layers(changed):
        multiply(layer.query, c)
        multiply(layer.key, 1 / c)
    return changed


def smallest_value(model: nn.Module, case: Case) -> float:
    """The smallest |z| > 0 among the results of all operations that carry relevance.

    A factor |z|/(|z| + ε) is 1 − ε/|z| up to (ε/z)², so that a hundredth of this is an ε of the first order. Where a
    result is 0 its factor is 0 at any ε, and it does not count; infinity if no result counts.

    Raises:
        Unsupported: see `LRP.attribute`.
    """
    smallest = math.inf

    def watching(rule: Rule) -> Rule:
        def watched(call: OperationCall) -> Any:
            nonlocal smallest
            result = rule(call)
            if isinstance(result, Tensor):
                size = result.detach().abs()
                if len(counted := size[size > 0]):
                    smallest = min(smallest, float(counted.min()))
            return result

        return watched

    method = AttnLRP()
    replace(method, rules={name: watching(rule) for name, rule in method.rules.items()}).attribute(model, case)
    return smallest


def two_maps_move(first: Tensor, second: Tensor, case: Case, epsilon: float, signed: bool = True) -> Tensor:
    """The closed form of a_f − a_g for two bias-free linear maps f against their product g: ``(batch, features)``.

    Args:
        first: the first map's weight ``(hidden, features)``.
        second: the second's, ``(outputs, hidden)``.
        case: its target chooses the row of ``second``.
        epsilon: ε > 0.
        signed: whether ε has the sign of what it is added to.
    """
    hidden, weights = case.inputs @ first.T, second[case.target]
    output = (hidden * weights).sum(1, keepdim=True)

    def lost(z: Tensor) -> Tensor:
        return epsilon / ((z.abs() if signed else z) + epsilon)

    return -case.inputs * ((lost(hidden) * weights) @ first) * (1 - lost(output))
