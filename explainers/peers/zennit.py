"""zennit's composites (Anders et al. 2021, arXiv 2106.13200), each rule a hook on a module.

What is no module zennit does not see: "the gradient will be unchanged for layers without applicable rules", which its
documentation says and a run does not. The documentation also says that "Layer-wise relevance propagation (LRP) is not
implementation invariant" (hence its canonizers) and promises no conservation, so nothing is claimed here; ``pytest -m
peers`` measures both.

Importing the package needs torchvision, whose canonizers are the only place that uses it; where torchvision is absent
the modules that are needed are imported without the package's ``__init__``.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from faithcheck.explainers.peers import Peer, imported
from faithcheck.models.case import Case


@cache
def parts() -> SimpleNamespace:
    """zennit's ``attribution``, ``composites``, ``rules`` and ``types``.

    Raises:
        ImportError: zennit is not installed; names the extra.
    """
    names = ("attribution", "composites", "rules", "types")
    spec = importlib.util.find_spec("zennit")
    if spec is None or "zennit" in sys.modules or importlib.util.find_spec("torchvision") is not None:
        return SimpleNamespace(**{name: imported(f"zennit.{name}") for name in names})
    sys.modules["zennit"] = importlib.util.module_from_spec(spec)  # a package that has not run
    try:
        return SimpleNamespace(**{name: imported(f"zennit.{name}") for name in names})
    finally:  # whoever imports zennit later gets their own, or their own error
        for name in [name for name in sys.modules if name.partition(".")[0] == "zennit"]:
            del sys.modules[name]


class Zennit(Peer):
    """What zennit's explainers have in common: relevance starts as the explained output."""

    distribution = "zennit"
    relevance = True

    def composite(self, zennit: SimpleNamespace) -> Any:
        """The rules, by kind of module."""
        raise NotImplementedError

    def explain(self, model: nn.Module, case: Case) -> Tensor:
        """Relevance, shaped like the inputs."""
        zennit = parts()
        with torch.enable_grad(), zennit.attribution.Gradient(model, self.composite(zennit)) as attributor:
            _, found = attributor(case.inputs.detach().clone(), lambda output: at_target(output, case) * output)
        relevance: Tensor = found.detach()
        return relevance


def at_target(output: Tensor, case: Case) -> Tensor:
    """1 at each example's explained output, 0 elsewhere: ``(batch, outputs)``."""
    return torch.zeros_like(output).scatter_(1, case.target.unsqueeze(1), 1.0)


class Epsilon(Zennit):
    """The ε-rule (ε = 1e-6) on every linear and convolutional module, and zennit's base for the rest."""

    name = "zennit_epsilon"

    def composite(self, zennit: SimpleNamespace) -> Any:
        """``layer_map_base`` and ``rules.Epsilon``."""
        linear = [(zennit.types.Linear, zennit.rules.Epsilon())]
        return zennit.composites.LayerMapComposite(zennit.composites.layer_map_base() + linear)


class EpsilonPlus(Zennit):
    """``zennit.composites.EpsilonPlus``: the z⁺-rule on convolutions, the ε-rule on linear modules."""

    name = "zennit_epsilon_plus"

    def composite(self, zennit: SimpleNamespace) -> Any:
        """``composites.EpsilonPlus``."""
        return zennit.composites.EpsilonPlus()


class EpsilonAlpha2Beta1(Zennit):
    """``zennit.composites.EpsilonAlpha2Beta1``: the αβ-rule on convolutions, the ε-rule on linear modules."""

    name = "zennit_epsilon_alpha2_beta1"

    def composite(self, zennit: SimpleNamespace) -> Any:
        """``composites.EpsilonAlpha2Beta1``."""
        return zennit.composites.EpsilonAlpha2Beta1()


class GradientTimesInput(Zennit):
    """zennit's ``attribution.Gradient`` without a composite, times the input; claims nothing."""

    name = "zennit_gradient_x_input"
    relevance = False

    def explain(self, model: nn.Module, case: Case) -> Tensor:
        """x ⊙ ∂f(x), shaped like the inputs."""
        with torch.enable_grad():
            attributor = parts().attribution.Gradient(model)
            _, gradient = attributor(case.inputs.detach().clone(), lambda output: at_target(output, case))
        found: Tensor = case.inputs * gradient.detach()
        return found
