"""Gated units: the product of a gate g, of σ(g) and of an input u, in either order.

AttnLRP gives each operand of a product half. CP-LRP's own rule is for attention only, so an element-wise product gets
the same halves. The sigmoid passes relevance on unchanged (modified gradient σ(g)/g). So of y = g·σ(g)·u

1. (g·σ(g))·u gives ½ to u and ¼ + ¼ to g;
2. silu(g)·u gives ½ to u and ½ to g: the identity rule of silu equals the ½ + ½ of g·σ(g);
3. g·(σ(g)·u) gives ½ to g and ¼ to σ(g), together ¾ to g, and ¼ to u.

ε-LRP refuses all of these, as they are products of data.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from faithcheck.models.case import Case
from faithcheck.models.cases import points
from faithcheck.models.expectation import expect_lrp
from faithcheck.models.networks.hidden_layer import two_hidden_layers
from faithcheck.models.pair import copies, invariance_pair

CITE = "bilinear and identity rules: arXiv 2510.18810, Eqs. 3–4; Achtibat et al. 2024, arXiv 2402.05602"


Unit: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def gate_with_sigmoid_first(g: Tensor, u: Tensor) -> Tensor:
    return (g * torch.sigmoid(g)) * u


def sigmoid_with_input_first(g: Tensor, u: Tensor) -> Tensor:
    return g * (torch.sigmoid(g) * u)


class GatedUnit(nn.Module):
    """Four gates and four inputs, ``(batch, 8)``, to a linear map of their units, ``(batch, 3)``."""

    def __init__(self, unit: Unit) -> None:
        super().__init__()
        self.unit, self.head = unit, nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.unit(*inputs.chunk(2, 1)))


def gap_at_gates_and_inputs(f: GatedUnit, g: GatedUnit, case: Case) -> Tensor:
    """The gap a_f − a_g, ``(batch, 8)``: y_j/4 at gate j and −y_j/4 at input j, y_j unit j's part of the output."""
    gates, inputs = case.inputs.chunk(2, 1)
    quarter = functional.silu(gates) * inputs * f.head.weight[case.target] / 4
    return torch.cat([quarter, -quarter], 1).detach()


invariance_pair(
    "gated.unit",
    copies(lambda: GatedUnit(sigmoid_with_input_first), unit=gate_with_sigmoid_first),
    points,
    expect_lrp("g gets ¾ in f and ½ in g, u ¼ and ½", predict=gap_at_gates_and_inputs, cite=CITE),
    why="multiplication is associative",
)
invariance_pair(
    "gated.silu",
    partial(two_hidden_layers, f=functional.silu, g=lambda z: z * torch.sigmoid(z)),
    points,
    expect_lrp("½σ + ½z·σ/z = σ: z·σ(z) propagates as by the identity rule of SiLU", cite=CITE),
    why="SiLU(z) = z·σ(z)",
)


class SwiGLU(nn.Module):
    """A Llama's gated feed-forward layer with the unit written out: ``(batch, 8)`` to ``(batch, 8)``."""

    def __init__(self, layer: Any, unit: Unit) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = layer.gate_proj, layer.up_proj, layer.down_proj
        self.unit = unit

    def forward(self, inputs: Tensor) -> Tensor:
        return self.down_proj(self.unit(self.gate_proj(inputs), self.up_proj(inputs)))


def llama_layer() -> nn.Module:
    """An unmodified `LlamaMLP`, W_d(SiLU(W_g x) ⊙ W_u x)."""
    return LlamaMLP(LlamaConfig(hidden_size=8, intermediate_size=12, num_attention_heads=2))  # type: ignore[no-untyped-call]


invariance_pair(
    "gated.swiglu",
    copies(llama_layer, lambda layer: SwiGLU(layer, gate_with_sigmoid_first)),
    points,
    expect_lrp("g gets ¼ + ¼ from g·σ(g), as much as SiLU's ½; u gets ½ in both", cite=CITE),
    why="SiLU(g) = g·σ(g)",
)


def gap_between_paths(f: Any, g: nn.Module, case: Case) -> Tensor:
    """The gap a_f − a_g = ¼ x ⊙ (g_u − g_g), ``(batch, 8)``.

    1. With w the output's row of W_d, g_u = W_uᵀ(SiLU(g) ⊙ w) is the gradient through the up path, and
       g_g = W_gᵀ(σ(g) ⊙ u ⊙ w) the gradient through the gate path, σ(g) held constant.
    2. The map on f is x ⊙ (½g_g + ½g_u), that on g x ⊙ (¾g_g + ¼g_u).
    """
    gate, up = f.gate_proj(case.inputs), f.up_proj(case.inputs)
    row = f.down_proj.weight[case.target]
    through_up: Tensor = (functional.silu(gate) * row) @ f.up_proj.weight
    through_gate: Tensor = (torch.sigmoid(gate) * up * row) @ f.gate_proj.weight
    return case.inputs * (through_up - through_gate).detach() / 4


invariance_pair(
    "gated.swiglu_reassociated",
    copies(llama_layer, lambda layer: SwiGLU(layer, sigmoid_with_input_first)),
    points,
    expect_lrp("the gate path gets ½ and ¾, the up path ½ and ¼", predict=gap_between_paths, cite=CITE),
    why="SiLU(g)·u = g·(σ(g)·u)",
)
