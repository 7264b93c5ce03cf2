"""Correct explainers in other words: each computes what a built-in explainer computes, by another way.

No check may be red for a re-writing: its code differs, so its round-off does, and its attribution does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from faithcheck.explainers.builtin import builtin_explainers
from faithcheck.explainers.protocol import Explainer, per_feature
from faithcheck.models.case import Case, select_target

Attribute = Callable[[nn.Module, Case], Tensor]


@dataclass(frozen=True)
class Rewriting:
    """A re-writing that is held to all that the built-in explainer is held to."""

    like: str
    by: str
    attribute: Attribute

    @property
    def name(self) -> str:
        """The name in records."""
        return f"{self.like}_by_{self.by}".replace(" ", "_").replace(",", "")


def outputs(model: nn.Module, case: Case, inputs: Tensor) -> Tensor:
    """The explained outputs at other inputs: ``(batch,)``."""
    return select_target(replace(case, inputs=inputs).run(model), case.target)


def examples(case: Case) -> list[Case]:
    """The case's examples, each a case of its own."""
    return [case.select(torch.tensor([row], device=case.inputs.device)) for row in range(len(case.inputs))]


# --- gradients -------------------------------------------------------------------------------------------------------


def by_vector_jacobian_product(model: nn.Module, case: Case) -> Tensor:
    point = case.inputs.detach().clone().requires_grad_()
    values = replace(case, inputs=point).run(model)
    weighting = torch.nn.functional.one_hot(case.target, values.shape[1]).to(values.dtype)
    return per_feature(torch.autograd.grad(values, point, weighting)[0] * case.inputs)


def by_backward(model: nn.Module, case: Case) -> Tensor:
    point = case.inputs.detach().clone().requires_grad_()
    outputs(model, case, point).sum().backward(inputs=[point])
    assert point.grad is not None
    return per_feature(point.grad * point.detach())


def by_difference_of_outputs(model: nn.Module, case: Case) -> Tensor:
    """The gradient of 3f less that of 2f."""
    point = case.inputs.detach().clone().requires_grad_()
    value = outputs(model, case, point).sum()
    (three,) = torch.autograd.grad(3 * value, point, retain_graph=True)
    (two,) = torch.autograd.grad(2 * value, point)
    return per_feature(case.inputs * (three - two))


def by_one_node_after_another(model: nn.Module, case: Case) -> Tensor:
    """Integrated Gradients, a pass for each node, from the last."""
    nodes, weights = np.polynomial.legendre.leggauss(32)
    total = torch.zeros_like(case.inputs)
    for node, weight in reversed(list(zip(nodes, weights, strict=True))):
        alpha = float(node + 1) / 2
        point = (case.baseline + alpha * (case.inputs - case.baseline)).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(outputs(model, case, point).sum(), point)
        total += gradient * (float(weight) / 2)
    return per_feature((case.inputs - case.baseline) * total)


# --- Leave-One-Out ---------------------------------------------------------------------------------------------------


def without(case: Case, feature: int) -> Case:
    """The case without a feature: by the attention mask where it has one, else by the baseline."""
    if "attention_mask" in case.forward_arguments:
        mask = case.forward_arguments["attention_mask"].clone()
        mask[:, feature] = 0
        return replace(case, forward_arguments={**case.forward_arguments, "attention_mask": mask})
    inputs = case.inputs.clone()
    inputs[:, feature] = case.baseline[:, feature]
    return replace(case, inputs=inputs)


@torch.no_grad()
def by_one_feature_after_another(model: nn.Module, case: Case) -> Tensor:
    unchanged = outputs(model, case, case.inputs)
    attribution = torch.zeros(case.shape, dtype=case.inputs.dtype, device=case.inputs.device)
    for feature in range(case.shape[1]):
        removed = without(case, feature)
        attribution[:, feature] = unchanged - outputs(model, removed, removed.inputs)
    return attribution.where(case.unpadded, 0)


@torch.no_grad()
def from_the_last(model: nn.Module, case: Case) -> Tensor:
    """Each difference of two outputs of its own, from the last feature to the first."""
    columns = []
    for feature in reversed(range(case.shape[1])):
        removed = without(case, feature)
        columns.insert(0, outputs(model, case, case.inputs) - outputs(model, removed, removed.inputs))
    return torch.stack(columns, 1).where(case.unpadded, 0)


# --- any explainer, called in another way ----------------------------------------------------------------------------


def one_example_at_a_time(explainer: Explainer) -> Attribute:
    return lambda model, case: torch.cat([explainer.attribute(model, example) for example in examples(case)])


def examples_reversed(explainer: Explainer) -> Attribute:
    def attribute(model: nn.Module, case: Case) -> Tensor:
        order = torch.arange(len(case.inputs), device=case.inputs.device).flip(0)
        return explainer.attribute(model, case.select(order)).flip(0)

    return attribute


def examples_twice(explainer: Explainer) -> Attribute:
    def attribute(model: nn.Module, case: Case) -> Tensor:
        rows = torch.arange(len(case.inputs), device=case.inputs.device)
        first, second = explainer.attribute(model, case.select(torch.cat([rows, rows]))).chunk(2)
        return (first + second) / 2

    return attribute


def inputs_stored_otherwise(explainer: Explainer) -> Attribute:
    """The same inputs with their last axis first in memory."""

    def attribute(model: nn.Module, case: Case) -> Tensor:
        moved = case.inputs.movedim(-1, 0).contiguous().movedim(0, -1)
        return explainer.attribute(model, replace(case, inputs=moved))

    return attribute


def rewritings() -> list[Rewriting]:
    """All re-writings, each with the claims and expectations of the explainer that it re-writes."""
    explainers = builtin_explainers()
    written: list[tuple[str, str, Attribute]] = [
        ("gradient_x_input", "vector-Jacobian product", by_vector_jacobian_product),
        ("gradient_x_input", "backward to the inputs", by_backward),
        ("gradient_x_input", "the gradient of 3f less that of 2f", by_difference_of_outputs),
        ("integrated_gradients", "one node after another, from the last", by_one_node_after_another),
        ("loo", "one feature after another", by_one_feature_after_another),
        ("loo", "one feature after another, from the last", from_the_last),
    ]
    written += [
        (name, way.__name__.replace("_", " "), way(explainers[name]))
        for name, way in (
            ("attnlrp", one_example_at_a_time),
            ("attnlrp", examples_reversed),
            ("cplrp", one_example_at_a_time),
            ("cplrp", inputs_stored_otherwise),
            ("epsilon_lrp", examples_reversed),
            ("epsilon_lrp", inputs_stored_otherwise),
            ("blockwise_lrp", one_example_at_a_time),
            ("finite_mask_gate", one_example_at_a_time),
            ("integrated_gradients", examples_reversed),
            ("attention_rollout", examples_twice),
            ("mask_gate", one_example_at_a_time),
            ("mask_gate", examples_reversed),
            ("finite_mask_gate", examples_twice),
            ("grouped_mask_gate", examples_reversed),
            ("readout_gate", one_example_at_a_time),
            ("readout_gate", examples_twice),
        )
    ]
    return [Rewriting(name, by, attribute) for name, by, attribute in written]
