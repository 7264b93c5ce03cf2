"""zennit's composites (Anders et al. 2021, arXiv 2106.13200), each rule a hook on a module.

zennit's hooks do not see operations that are not modules: "the gradient will be unchanged for layers without applicable
rules". Its documentation says so; a run does not warn. The documentation also says that "Layer-wise relevance
propagation (LRP) is not implementation invariant" (so it has canonizers), and it does not promise conservation. So the
adapters claim nothing; ``pytest -m peers`` measures both.

The package imports torchvision, which only its canonizers use. Without torchvision, the adapter imports the modules
that it needs without the package's ``__init__``.
"""

import importlib.util
import sys
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from faithcheck.explainers.peers.peer import Peer, import_peer
from faithcheck.models.case import Case


@cache
def zennit_modules() -> SimpleNamespace:
    """zennit's ``attribution``, ``composites``, ``rules`` and ``types``; an ImportError names the extra."""
    names = ("attribution", "composites", "rules", "types")
    spec = importlib.util.find_spec("zennit")
    if spec is None or "zennit" in sys.modules or importlib.util.find_spec("torchvision") is not None:
        return SimpleNamespace(**{name: import_peer(f"zennit.{name}") for name in names})
    sys.modules["zennit"] = importlib.util.module_from_spec(spec)  # the package without its __init__
    try:
        return SimpleNamespace(**{name: import_peer(f"zennit.{name}") for name in names})
    finally:  # a later `import zennit` elsewhere imports the whole package, or fails as without this adapter
        for name in [name for name in sys.modules if name.partition(".")[0] == "zennit"]:
            del sys.modules[name]


class Zennit(Peer):
    """The base class of the adapters to zennit: relevance starts as the target output."""

    distribution = "zennit"
    relevance = True

    def composite(self, zennit: SimpleNamespace) -> Any:
        """The rules, by type of module: the composite that has the name of the class."""
        return getattr(zennit.composites, type(self).__name__)()

    def explain(self, model: nn.Module, case: Case) -> Tensor:
        zennit = zennit_modules()
        with torch.enable_grad(), zennit.attribution.Gradient(model, self.composite(zennit)) as attributor:
            _, gradient = attributor(case.inputs.detach().clone(), lambda output: at_target(output, case) * output)
        return gradient.detach()  # under the composite's hooks the gradient is the relevance


def at_target(output: Tensor, case: Case) -> Tensor:
    """1 at each example's target output, 0 elsewhere: ``(batch, outputs)``."""
    return torch.zeros_like(output).scatter_(1, case.target.unsqueeze(1), 1.0)


class Epsilon(Zennit):
    """The ε-rule (ε = 1e-6) on every linear and convolutional module, and zennit's base for the rest."""

    name = "zennit_epsilon"
    label = "LRP-ε (zennit)"
    summary = "zennit's ε-rule on linear and convolutional modules"

    def composite(self, zennit: SimpleNamespace) -> Any:
        linear = [(zennit.types.Linear, zennit.rules.Epsilon())]
        return zennit.composites.LayerMapComposite(zennit.composites.layer_map_base() + linear)


class EpsilonPlus(Zennit):
    """``zennit.composites.EpsilonPlus``: the z⁺-rule on convolutions, the ε-rule on linear modules."""

    name = "zennit_epsilon_plus"
    label = "EpsilonPlus (zennit)"
    summary = "zennit's composite EpsilonPlus: z⁺-rule on convolutions, ε-rule on linear modules"


class EpsilonAlpha2Beta1(Zennit):
    """``zennit.composites.EpsilonAlpha2Beta1``: the αβ-rule on convolutions, the ε-rule on linear modules."""

    name = "zennit_epsilon_alpha2_beta1"
    label = "EpsilonAlpha2Beta1 (zennit)"
    summary = "zennit's composite: αβ-rule on convolutions, ε-rule on linear modules"


class GradientTimesInput(Zennit):
    """zennit's ``attribution.Gradient`` without a composite, times the input; claims nothing."""

    name = "zennit_gradient_x_input"
    label = "gradient × input (zennit)"
    summary = "zennit's gradient × input, without a composite"
    relevance = False

    def explain(self, model: nn.Module, case: Case) -> Tensor:
        with torch.enable_grad():
            attributor = zennit_modules().attribution.Gradient(model)
            _, gradient = attributor(case.inputs.detach().clone(), lambda output: at_target(output, case))
        return case.inputs * gradient.detach()
