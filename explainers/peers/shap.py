"""shap's explainers, with the case's baseline as the only background (Lundberg & Lee 2017, arXiv 1705.07874).

The model-agnostic ones see the game v(z) = f(x′ + z ⊙ (x − x′)) for z in {0, 1}^features, so that a token with all its
coordinates is one player.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from faithcheck.explainers.peers import Peer, imported, numpy_random_state
from faithcheck.models.case import Case, select_target


class Shap(Peer):
    """What shap's explainers have in common."""

    distribution = "shap"

    def explain(self, model: nn.Module, case: Case) -> Tensor:
        """Example by example: shaped like the inputs, or ``(batch, features)``."""
        shap = imported("shap")
        rows = torch.arange(len(case.inputs), device=case.inputs.device).unsqueeze(1)
        with numpy_random_state(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # what NumPy tells shap
            parts = [self.of_one(shap, model, case.select(row)) for row in rows]
        return torch.stack([torch.as_tensor(part) for part in parts]).to(case.inputs)

    def of_one(self, shap: Any, model: nn.Module, case: Case) -> Any:
        """The values of the one example of this case."""
        raise NotImplementedError


def game(model: nn.Module, case: Case) -> Callable[[Any], Any]:
    """v(z) = f(x′ + z ⊙ (x − x′)) of one example: ``(coalitions, features)`` to ``(coalitions,)``, numpy's arrays."""

    @torch.no_grad()
    def value(coalitions: Any) -> Any:
        there = torch.as_tensor(np.asarray(coalitions) != 0, device=case.inputs.device)
        there = there.reshape(*there.shape, *[1] * (case.inputs.dim() - 2))
        rows = case.repeat(len(there))
        output = replace(rows, inputs=torch.where(there, rows.inputs, rows.baseline)).run(model)
        return select_target(output, rows.target).cpu().numpy()

    return value


class Exact(Shap):
    """``shap.ExactExplainer``: Shapley values by enumeration, up to 16 features (100 000 coalitions).

    Its claims: local accuracy and missingness (Lundberg & Lee 2017, Theorem 1), which are completeness and dummy here;
    Shapley's own axioms add symmetry and linearity; and as a function of the game alone it is implementation invariant.
    """

    name = "shap_exact"
    claims = frozenset({"invariance", "completeness", "dummy", "symmetry", "linearity"})
    refuses = ((ValueError, "masked evaluations to run the Exact explainer"),)
    way_out = "use shap_permutation"

    def of_one(self, shap: Any, model: nn.Module, case: Case) -> Any:
        """``(features,)``."""
        features = case.shape[1]
        background = shap.maskers.Independent(np.zeros((1, features)))
        return shap.ExactExplainer(game(model, case), background)(np.ones((1, features)), silent=True).values[0]


@dataclass(frozen=True)
class Permutation(Shap):
    """``shap.PermutationExplainer``: Shapley values over drawn permutations, forwards and backwards.

    Its claim: "a model agnostic explainer that guarantees local accuracy (additivity)" (docstring); for models with
    interactions of more than two features its values are estimates, so it claims neither symmetry nor dummy.

    Attributes:
        seed: of the permutations; two models of one function get the same ones.
    """

    name = "shap_permutation"
    claims = frozenset({"invariance", "completeness"})
    seed: int = 0

    def of_one(self, shap: Any, model: nn.Module, case: Case) -> Any:
        """``(features,)``."""
        features = case.shape[1]
        background = shap.maskers.Independent(np.zeros((1, features)))
        explainer = shap.PermutationExplainer(game(model, case), background, seed=self.seed)
        rounds = max(500, 2 * features + 1)  # shap's default; it refuses less than one round
        return explainer(np.ones((1, features)), max_evals=rounds, silent=True).values[0]


class Targeted(nn.Module):
    """A model's one explained output as the only one, ``(rows, features, …)`` to ``(rows, 1)``."""

    def __init__(self, model: nn.Module, target: int) -> None:
        super().__init__()
        self.model, self.target = model, target
        self.training = model.training

    def forward(self, inputs: Tensor) -> Tensor:
        """The explained output of each row."""
        output: Tensor = self.model(inputs)[:, self.target : self.target + 1]
        return output


class Deep(Shap):
    """``shap.DeepExplainer`` on torch: DeepLIFT's rescale rule by hooks on modules, multiplied by x − x′.

    Its claim: SHAP values "such that they sum up to the difference between the expected model output on the passed
    background samples and the current model output" (docstring), which it checks to 0.01, and refuses where it fails.
    """

    name = "shap_deep"
    claims = frozenset({"completeness"})
    refuses = (
        (AssertionError, "The SHAP explanations do not sum up to the model's output"),
        (UserWarning, "unrecognized nn.Module"),
    )
    way_out = "use shap_exact or shap_permutation"
    leaves = "parameters' .grad is gone; where it is interrupted, hooks, and parameters x and y of modules"

    def of_one(self, shap: Any, model: nn.Module, case: Case) -> Any:
        """Shaped like one example's inputs."""
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.filterwarnings("error", "unrecognized nn.Module", UserWarning)
            explainer = shap.DeepExplainer(Targeted(model, int(case.target[0])), case.baseline)
            return explainer.shap_values(case.inputs.detach().clone())[0, ..., 0]


@dataclass(frozen=True)
class Gradient(Shap):
    """``shap.GradientExplainer``: expected gradients, Integrated Gradients at drawn points of the path.

    It claims completeness in the limit only: "converges to attributions that sum to the difference" (docstring).

    Attributes:
        seed: of the points.
        samples: how many; shap's default.
    """

    name = "shap_gradient"
    refuses = ((RuntimeError, "the same dtype"), (RuntimeError, "should be the same"))
    way_out = "it draws its points in float32: give it a model in float32"
    leaves = "parameters' .grad is gone"
    seed: int = 0
    samples: int = 200

    def of_one(self, shap: Any, model: nn.Module, case: Case) -> Any:
        """Shaped like one example's inputs."""
        with torch.enable_grad():
            explainer = shap.GradientExplainer(Targeted(model, int(case.target[0])), case.baseline)
            inputs = case.inputs.detach().clone()
            return explainer.shap_values(inputs, nsamples=self.samples, rseed=self.seed)[0, ..., 0]
