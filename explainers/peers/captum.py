"""Captum's explainers (Kokhlikyan et al. 2020, arXiv 2009.07896), each with captum's own defaults."""

import warnings
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from faithcheck.explainers.adapters import feature_mask, first_coordinate
from faithcheck.explainers.peers.peer import Peer, import_peer
from faithcheck.models.case import Case


class Captum(Peer):
    """The base class of the adapters to captum."""

    distribution = "captum"

    def attr(self) -> Any:
        """The module ``captum.attr``."""
        return import_peer("captum.attr")

    def point(self, case: Case) -> Tensor:
        """The inputs as a leaf that requires grad: captum warns if it has to change the inputs."""
        return case.inputs.detach().clone().requires_grad_()


@dataclass(frozen=True)
class IntegratedGradients(Captum):
    """``captum.attr.IntegratedGradients``.

    captum claims: "Integrated Gradients is an axiomatic model interpretability algorithm" (docstring), after
    Sundararajan et al. 2017, whose two axioms are sensitivity and implementation invariance; and "the sum of the
    attribution must be equal to the differences of NN Models's function at its end and start points"
    (``compute_convergence_delta``).

    Attributes:
        steps: the number of nodes of the Gauss–Legendre quadrature; captum's default.
    """

    name = "captum_integrated_gradients"
    label = "Integrated Gradients (captum)"
    summary = "captum's Integrated Gradients; Sundararajan, Taly & Yan 2017"
    claims = frozenset({"invariance", "completeness", "sensitivity"})
    steps: int = 50

    def explain(self, model: nn.Module, case: Case) -> Tensor:
        explainer = self.attr().IntegratedGradients(model)
        return explainer.attribute(self.point(case), case.baseline, target=case.target, n_steps=self.steps)


class InputXGradient(Captum):
    """``captum.attr.InputXGradient``; claims no axiom: "A baseline approach for computing the attribution"."""

    name = "captum_input_x_gradient"
    label = "input × gradient (captum)"
    summary = "captum's input × gradient"

    def explain(self, model: nn.Module, case: Case) -> Tensor:
        return self.attr().InputXGradient(model).attribute(self.point(case), target=case.target)


class FeatureAblation(Captum):
    """``captum.attr.FeatureAblation``, with the feature mask of the case.

    captum does not claim completeness: "A perturbation based approach", "replacing each input feature with a given
    baseline / reference, and computing the difference in output" (docstring). A function of outputs alone must be
    implementation invariant, so invariance is checked like a claim.
    """

    name = "captum_feature_ablation"
    label = "feature ablation (captum)"
    summary = "captum's ablation of one feature at a time by its baseline"
    claims = frozenset({"invariance"})

    def explain(self, model: nn.Module, case: Case) -> Tensor:
        explainer = self.attr().FeatureAblation(model)
        options = {"baselines": case.baseline, "target": case.target, "feature_mask": feature_mask(case)}
        return first_coordinate(explainer.attribute(case.inputs, **options))


class DeepLift(Captum):
    """``captum.attr.DeepLift``, the rescale rule by hooks on activation modules.

    captum claims: "the total sum of model(inputs) - model(baselines) must equal the total sum of the attributions
    computed based on DeepLift's rescale rule" (docstring, of the delta). "Currently we only support a limited number of
    non-linear activations" (docstring). It does not warn if a model has other activations, or activations that are
    functions and not modules.
    """

    name = "captum_deeplift"
    label = "DeepLIFT (captum)"
    summary = "captum's DeepLIFT, the rescale rule on activation modules; Shrikumar et al. 2017"
    claims = frozenset({"completeness"})
    refuses = ((RuntimeError, "required for DeepLift computations"), (AssertionError, "DeepLift"))
    way_out = "use a separate module for every activation"
    leaves = "input_ref and other attributes of modules, if it is interrupted"

    def explain(self, model: nn.Module, case: Case) -> Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Setting forward, backward hooks", UserWarning)  # at every call
            return self.attr().DeepLift(model).attribute(self.point(case), case.baseline, target=case.target)


class LayerIntegratedGradients(IntegratedGradients):
    """``captum.attr.LayerIntegratedGradients`` of a layer at the model's entry, where it is Integrated Gradients.

    The inputs of a case are embeddings already, so the model has no embedding layer that captum could explain: it gets
    an identity layer. The claims are those of Integrated Gradients.
    """

    name = "captum_layer_integrated_gradients"
    label = "layer Integrated Gradients (captum)"
    summary = "captum's Integrated Gradients of a layer at the model's entry"

    def explain(self, model: nn.Module, case: Case) -> Tensor:
        entry = nn.Identity()
        explainer = self.attr().LayerIntegratedGradients(nn.Sequential(entry, model), entry)
        options = {"target": case.target, "n_steps": self.steps}
        return explainer.attribute(self.point(case), case.baseline, **options).detach()


class LRP(Captum):
    """``captum.attr.LRP``, the ε-rule (ε = 1e-9) by hooks on modules.

    captum claims: "we use the completeness property of LRP: The relevance is conserved during the propagation"
    (``compute_convergence_delta``). This is conservation, Σ = f(x), not Σ = f(x) − f(x′). captum refuses leaf modules
    without a rule; its hooks do not see operations that are not modules.
    """

    name = "captum_lrp"
    label = "LRP (captum)"
    summary = "captum's LRP, the ε-rule on modules; Bach et al. 2015"
    claims = frozenset({"conservation"})
    refuses = ((TypeError, "has no rule defined"),)
    way_out = "set a rule of your own as the module's attribute `rule`"
    leaves = "attributes `activations` and, if it refuses, `rule` on every leaf module"
    relevance = True

    def explain(self, model: nn.Module, case: Case) -> Tensor:
        return self.attr().LRP(model).attribute(self.point(case), target=case.target).detach()
