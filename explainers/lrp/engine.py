"""Layer-wise Relevance Propagation over operations, for any unmodified torch model.

1. A method is a table {operation: rule} and a stabiliser ε.
2. In one forward pass, `Propagation` computes every operation that carries relevance by its rule. A rule returns the
   operation's own value with a modified gradient.
3. One backward pass then gives relevance = inputs ⊙ gradient.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from faithcheck.explainers.fast.propagation import FastPropagation
from faithcheck.explainers.fast.switch import is_fast
from faithcheck.explainers.lrp.operation_call import Rule, RuleTrait, tensors_with_relevance, traits_of
from faithcheck.explainers.lrp.position_pairs import AddedPositions
from faithcheck.explainers.lrp.propagation import Propagation
from faithcheck.explainers.lrp.rules_met import record_rules
from faithcheck.explainers.protocol import Unsupported, in_standard_modes, per_feature
from faithcheck.explainers.refused_modules import (
    compiled,
    flex_attention,
    quantised_weights,
    refuse_modules,
    refusing_recomputation,
)
from faithcheck.models.case import Case, select_target
from faithcheck.models.expectation import ON_LINEAR_MODELS, Expectations

CLAIMS = frozenset("invariance continuity linearity additivity antisymmetry scale".split()) | frozenset(
    "determinism batching precision randomisation".split()
)
"""The axioms that every method claims."""


@dataclass(frozen=True)
class LRP:
    """A method of Layer-wise Relevance Propagation: a table of rules and a stabiliser.

    Bach et al. 2015; Eq. 1 of arXiv 2510.18810. Relevance starts as the explained output itself. A bias that an
    operation adds keeps its share of the relevance, and does not pass it on.

    Attributes:
        name: the explainer's name.
        rules: ``{operation name: rule}``.
        epsilon: the stabiliser ε ≥ 0 of z + ε·sign z, sign 0 = 1. The rules never divide by z, so that the default
            is the limit ε → 0, in which violations have closed forms (at z = 0 exactly: docs/explanation/epsilon.md);
            arXiv 2510.18810 uses 1e-6.
        claims: the axioms that the explainer claims to satisfy.
        signed: whether the stabiliser has the sign of z. Without the sign, as in some libraries, the denominator z + ε
            has a zero at z = −ε; see docs/explanation/epsilon.md.
        label: the name to display; empty: `name`.
        summary: the explainer in one line.
    """

    name: str
    rules: Mapping[str, Rule]
    epsilon: float = 0.0
    claims: frozenset[str] = CLAIMS
    signed: bool = True
    label: str = ""
    summary: str = ""

    def __post_init__(self) -> None:
        if self.epsilon < 0:
            raise ValueError(f"epsilon must be at least 0, got {self.epsilon}")

    @property
    def expected(self) -> Expectations:
        """What Eq. 1 gives on a linear model; a stabiliser takes a share."""
        return {} if self.epsilon else ON_LINEAR_MODELS

    @property
    def settings(self) -> str:
        """The settings in words."""
        holds_sigma = RuleTrait.SIGMA_CONSTANT in traits_of(self.rules.get("layer_norm"))
        norm = "; σ of LayerNorm held constant" if holds_sigma else ""
        return (f"ε = {self.epsilon:g}" if self.epsilon else "ε → 0") + norm

    @in_standard_modes
    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """Relevance of each feature: one forward and one backward pass, ``(batch, features)``.

        Raises:
            Unsupported: an operation that carries relevance has no rule, or the model is compiled or run with gradient
                checkpointing; names the operation and the module.
            ZeroDivisionError: the stabiliser has no sign, and a denominator z + ε, or 2z + ε of a product, is 0; names
                the operation and the module.
        """
        propagation, output = self.propagate(model, case, FastPropagation if is_fast() else Propagation)
        (gradient,) = torch.autograd.grad(output.sum(), propagation.point)
        return per_feature(case.inputs * gradient)

    @in_standard_modes
    def position_relevance(self, model: nn.Module, case: Case) -> Tensor:
        """What the position embeddings that a model adds keep of each example's relevance, ``(batch,)``.

        Raises:
            Unsupported: the model adds none; or see `attribute`.
        """
        pairs, output = self.propagate(model, case, AddedPositions)
        assert isinstance(pairs, AddedPositions)
        return pairs.relevance_of_examples(output)

    def propagate(
        self, model: nn.Module, case: Case, mode: type[Propagation] = Propagation
    ) -> tuple[Propagation, Tensor]:
        """Run the forward pass with this method's rules, under a ``mode``; errors as in `attribute`.

        Returns the mode after the forward pass, and the explained output ``(batch,)``. Its gradient at the mode's
        ``point`` times the inputs is relevance.
        """
        refuse_modules(model, compiled, flex_attention, quantised_weights)

        point = case.inputs.detach().clone().requires_grad_()
        propagation = mode(self.rules, self.epsilon, point, self.signed)
        with refusing_recomputation(model), propagation.treating_modules_as_operations(model), propagation:
            # Copied under the mode: a model may write to its input, and autograd forbids writes to a leaf.
            output = replace(case, inputs=point.clone()).run(model)
        record_rules(name for name in propagation.calls if name in self.rules)
        propagation.refuse_hidden(tensors_with_relevance(output), "the output")
        if not tensors_with_relevance(output):
            raise Unsupported(f"no relevance reaches the inputs: under {self.name} the output is constant")
        return propagation, select_target(output, case.target)
