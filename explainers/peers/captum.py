"""Captum's explainers (Kokhlikyan et al. 2020, arXiv 2009.07896), each with captum's own defaults."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from faithcheck.explainers.adapters import feature_mask, first_coordinate
from faithcheck.explainers.peers import Peer, imported
from faithcheck.models.case import Case


class Captum(Peer):
    """What captum's explainers have in common."""

    distribution = "captum"

    def point(self, case: Case) -> Tensor:
        """The inputs as a leaf that requires grad: captum warns of inputs that it has to change."""
        return case.inputs.detach().clone().requires_grad_()


def attr() -> Any:
    """``captum.attr``."""
    return imported("captum.attr")


@dataclass(frozen=True)
class IntegratedGradients(Captum):
    """``captum.attr.IntegratedGradients``.

    Its claims: "Integrated Gradients is an axiomatic model interpretability algorithm" (docstring), after Sundararajan
    et al. 2017, whose two axioms are sensitivity and implementation invariance; and "the sum of the attribution must be
    equal to the differences of NN Models's function at its end and start points" (``compute_convergence_delta``).

    Attributes:
        steps: the nodes of its Gauss–Legendre quadrature; captum's default.
    """

    name = "captum_integrated_gradients"
    claims = frozenset({"invariance", "completeness", "sensitivity"})
    steps: int = 50

    def explain(self, model: nn.Module, case: Case) -> Tensor:
        """From ``case.baseline``; shaped like the inputs."""
        explainer = attr().IntegratedGradients(model)
        found: Tensor = explainer.attribute(self.point(case), case.baseline, target=case.target, n_steps=self.steps)
        return found


class InputXGradient(Captum):
    """``captum.attr.InputXGradient``; claims no axiom: "A baseline approach for computing the attribution"."""

    name = "captum_input_x_gradient"

    def explain(self, model: nn.Module, case: Case) -> Tensor:
        """x ⊙ ∂f(x), shaped like the inputs."""
        found: Tensor = attr().InputXGradient(model).attribute(self.point(case), target=case.target)
        return found


class FeatureAblation(Captum):
    """``captum.attr.FeatureAblation``, a whole feature at a time.

    It claims no completeness: "A perturbation based approach", "replacing each input feature with a given baseline /
    reference, and computing the difference in output" (docstring). As a function of outputs alone it must be
    implementation invariant, which is checked as if it were claimed.
    """

    name = "captum_feature_ablation"
    claims = frozenset({"invariance"})

    def explain(self, model: nn.Module, case: Case) -> Tensor:
        """f(x) − f(x, the feature at its baseline): ``(batch, features)``."""
        explainer = attr().FeatureAblation(model)
        options = {"baselines": case.baseline, "target": case.target, "feature_mask": feature_mask(case)}
        return first_coordinate(explainer.attribute(case.inputs, **options))


class DeepLift(Captum):
    """``captum.attr.DeepLift``, the rescale rule by hooks on activation modules.

    Its claim: "the total sum of model(inputs) - model(baselines) must equal the total sum of the attributions computed
    based on DeepLift's rescale rule" (docstring, of the delta). "Currently we only support a limited number of
    non-linear activations": of others, and of what is no module, it says nothing while it runs.
    """

    name = "captum_deeplift"
    claims = frozenset({"completeness"})
    refuses = ((RuntimeError, "required for DeepLift computations"), (AssertionError, "DeepLift"))
    way_out = "give every activation a module of its own"
    leaves = "input_ref and other attributes of modules, where it is interrupted"

    def explain(self, model: nn.Module, case: Case) -> Tensor:
        """From ``case.baseline``; shaped like the inputs."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Setting forward, backward hooks", UserWarning)  # at every call
            found: Tensor = attr().DeepLift(model).attribute(self.point(case), case.baseline, target=case.target)
        return found


class AtInputs(nn.Module):
    """A model with a layer at its entry, for explainers of a layer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.entry, self.model = nn.Identity(), model
        self.training = model.training

    def forward(self, inputs: Tensor) -> Tensor:
        """The model's own output, ``(batch, outputs)``."""
        output: Tensor = self.model(self.entry(inputs))
        return output


@dataclass(frozen=True)
class LayerIntegratedGradients(Captum):
    """``captum.attr.LayerIntegratedGradients`` of a layer at the model's entry, where it is Integrated Gradients.

    A case's inputs are embeddings already: there is no embedding layer whose output it could explain instead. Its
    claims are those of Integrated Gradients.

    Attributes:
        steps: the nodes of its quadrature; captum's default.
    """

    name = "captum_layer_integrated_gradients"
    claims = IntegratedGradients.claims
    steps: int = 50

    def explain(self, model: nn.Module, case: Case) -> Tensor:
        """From ``case.baseline``; shaped like the inputs."""
        entered = AtInputs(model)
        explainer = attr().LayerIntegratedGradients(entered, entered.entry)
        found: Tensor = explainer.attribute(self.point(case), case.baseline, target=case.target, n_steps=self.steps)
        return found.detach()


class LRP(Captum):
    """``captum.attr.LRP``, the ε-rule (ε = 1e-9) by hooks on modules.

    Its claim: "we use the completeness property of LRP: The relevance is conserved during the propagation"
    (``compute_convergence_delta``): conservation, and Σ = f(x), not f(x) − f(x′). It refuses leaf modules that it has
    no rule for; of operations that are no module it sees nothing.
    """

    name = "captum_lrp"
    claims = frozenset({"conservation"})
    refuses = ((TypeError, "has no rule defined"),)
    way_out = "captum takes a rule of yours as the module's attribute `rule`"
    leaves = "attributes `activations` and, where it refuses, `rule` on every leaf module"
    relevance = True

    def explain(self, model: nn.Module, case: Case) -> Tensor:
        """Relevance, shaped like the inputs."""
        found: Tensor = attr().LRP(model).attribute(self.point(case), target=case.target)
        return found.detach()
