"""shap's explainers, with the case's baseline as the only background (Lundberg & Lee 2017, arXiv 1705.07874).

The model-agnostic explainers get the game v(z) = f(x′ + z ⊙ (x − x′)), z in {0, 1}^features, so that a token with all
its coordinates is one player.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from faithcheck.explainers.peers.peer import Peer, import_peer
from faithcheck.models.case import Case, select_target
from faithcheck.models.networks.derived import Derived


class Shap(Peer):
    """The base class of the adapters to shap."""

    distribution = "shap"

    def explain(self, model: nn.Module, case: Case) -> Tensor:
        shap, state = import_peer("shap"), np.random.get_state()  # some explainers seed NumPy
        rows = torch.arange(len(case.inputs), device=case.inputs.device).unsqueeze(1)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # NumPy's, about shap's own calls
                values = [self.explain_example(shap, model, case.select(row)) for row in rows]
        finally:
            np.random.set_state(state)
        return torch.stack([torch.as_tensor(value) for value in values]).to(case.inputs)

    def explain_example(self, shap: Any, model: nn.Module, case: Case) -> Any:
        """The values of a case of one example, a numpy array: ``(features, …)``."""
        raise NotImplementedError


def game(model: nn.Module, case: Case) -> Callable[[Any], Any]:
    """v(z) = f(x′ + z ⊙ (x − x′)) of one example: numpy arrays ``(coalitions, features)`` to ``(coalitions,)``."""

    @torch.no_grad()
    def value(coalitions: Any) -> Any:
        present = torch.as_tensor(np.asarray(coalitions) != 0, device=case.inputs.device)
        present = present.reshape(*present.shape, *[1] * (case.inputs.dim() - 2))
        rows = case.select(case.target.new_zeros(len(present)))
        output = replace(rows, inputs=torch.where(present, rows.inputs, rows.baseline)).run(model)
        return select_target(output, rows.target).cpu().numpy()

    return value


class Exact(Shap):
    """``shap.ExactExplainer``: Shapley values by enumeration, up to 16 features (100 000 coalitions).

    Its claims: local accuracy and missingness (Lundberg & Lee 2017, Theorem 1), called completeness and dummy here, and
    Shapley's symmetry and linearity. It depends on the game alone, so it is implementation invariant.
    """

    name = "shap_exact"
    label = "Shapley values, exact (shap)"
    summary = "shap's Shapley values by enumeration; Lundberg & Lee 2017"
    claims = frozenset({"invariance", "completeness", "dummy", "symmetry", "linearity"})
    refuses = ((ValueError, "masked evaluations to run the Exact explainer"),)
    way_out = "use shap_permutation"

    def explain_example(self, shap: Any, model: nn.Module, case: Case) -> Any:
        features = case.shape[1]
        background = shap.maskers.Independent(np.zeros((1, features)))
        return shap.ExactExplainer(game(model, case), background)(np.ones((1, features)), silent=True).values[0]


@dataclass(frozen=True)
class Permutation(Shap):
    """``shap.PermutationExplainer``: Shapley values over random permutations, forwards and backwards.

    Its claim: "a model agnostic explainer that guarantees local accuracy (additivity)" (docstring). If a model has
    interactions of more than two features, the values are estimates, so neither symmetry nor dummy is claimed.

    Attributes:
        seed: of the permutations, so that both models of a pair get the same permutations.
    """

    name = "shap_permutation"
    label = "Shapley values, sampled (shap)"
    summary = "shap's Shapley values over random permutations; Lundberg & Lee 2017"
    claims = frozenset({"invariance", "completeness"})
    seed: int = 0

    def explain_example(self, shap: Any, model: nn.Module, case: Case) -> Any:
        features = case.shape[1]
        background = shap.maskers.Independent(np.zeros((1, features)))
        explainer = shap.PermutationExplainer(game(model, case), background, seed=self.seed)
        rounds = max(500, 2 * features + 1)  # shap's default; shap refuses fewer than one round
        return explainer(np.ones((1, features)), max_evals=rounds, silent=True).values[0]


class TargetOnly(Derived):
    """A model with the target as its only output, ``(rows, features, …)`` to ``(rows, 1)``."""

    def __init__(self, model: nn.Module, target: int) -> None:
        super().__init__(model)
        self.target, self.training = target, model.training

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs)[:, self.target : self.target + 1]


class Deep(Shap):
    """``shap.DeepExplainer`` on torch: DeepLIFT's rescale rule by hooks on modules, multiplied by x − x′.

    Its claim: SHAP values "such that they sum up to the difference between the expected model output on the passed
    background samples and the current model output" (docstring). shap checks this to 0.01, and refuses if it fails.
    """

    name = "shap_deep"
    label = "DeepExplainer (shap)"
    summary = "shap's DeepLIFT with the rescale rule on modules; Lundberg & Lee 2017"
    claims = frozenset({"completeness"})
    refuses = (
        (AssertionError, "The SHAP explanations do not sum up to the model's output"),
        (UserWarning, "unrecognized nn.Module"),
    )
    way_out = "use shap_exact or shap_permutation"
    leaves = "parameters without .grad; if it is interrupted, hooks, and attributes x and y of modules"

    def explain_example(self, shap: Any, model: nn.Module, case: Case) -> Any:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.filterwarnings("error", "unrecognized nn.Module", UserWarning)
            explainer = shap.DeepExplainer(TargetOnly(model, int(case.target[0])), case.baseline)
            return explainer.shap_values(case.inputs.detach().clone())[0, ..., 0]


@dataclass(frozen=True)
class Gradient(Shap):
    """``shap.GradientExplainer``: expected gradients, i.e. Integrated Gradients at random points of the path.

    It claims completeness in the limit only: "converges to attributions that sum to the difference" (docstring).

    Attributes:
        seed: of the points.
        samples: the number of points; shap's default.
    """

    name = "shap_gradient"
    label = "GradientExplainer (shap)"
    summary = "shap's expected gradients, at random points of the path from the baseline"
    refuses = ((RuntimeError, "the same dtype"), (RuntimeError, "should be the same"))
    way_out = "shap draws its points in float32: give it a model in float32"
    leaves = "parameters without .grad"
    seed: int = 0
    samples: int = 200

    def explain_example(self, shap: Any, model: nn.Module, case: Case) -> Any:
        with torch.enable_grad():
            explainer = shap.GradientExplainer(TargetOnly(model, int(case.target[0])), case.baseline)
            inputs = case.inputs.detach().clone()
            return explainer.shap_values(inputs, nsamples=self.samples, rseed=self.seed)[0, ..., 0]
