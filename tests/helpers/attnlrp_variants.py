"""AttnLRP with parts replaced, and with the softmax bypassed in some layers.

Which part makes CP-LRP agree with LOO is an open question of arXiv 2510.18810: implementations of CP-LRP and AttnLRP
differ in more than the softmax. A bypassed softmax has constant attention weights, as in CP-LRP: §5, Figure 2, Table
A3.
"""

from collections.abc import Collection, Mapping
from functools import partial
from itertools import combinations
from typing import Any

from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.operation_call import OperationCall, Rule
from faithcheck.explainers.lrp.operation_table import operations_with
from faithcheck.explainers.lrp.operations import Trait
from faithcheck.explainers.lrp.rules.activations import identity_rule
from faithcheck.explainers.lrp.rules.attention import constant_rule, softmax_rule
from faithcheck.explainers.lrp.rules.products import quotient_rule
from faithcheck.explainers.lrp.rules.rearrangements import gradient_rule

PARTS: Mapping[str, Mapping[str, Rule]] = {
    "softmax bypassed": {"softmax": constant_rule},
    "LayerNorm by the identity rule": {"layer_norm": identity_rule},
    "activations by their gradient": dict.fromkeys(
        operations_with(Trait.ONE_VALUE, without=(Trait.REARRANGEMENT,)), gradient_rule
    ),
    "products not halved": {
        **dict.fromkeys((*operations_with(Trait.MATRIX_PRODUCT), "mul"), gradient_rule),
        **dict.fromkeys(("div", "rdiv"), partial(quotient_rule, product=gradient_rule)),
    },
}
"""The rules that replace AttnLRP's rules in each part.

AttnLRP has Eq. 5 for the softmax. It holds σ constant in LayerNorm; the identity rule leaves the relevance there
unchanged, so that bias and mean keep no share. It has f(x)/x for an activation, and half of a product's relevance for
each operand.
"""


def attnlrp_without(parts: Collection[str], epsilon: float = 0.0) -> LRP:
    """AttnLRP with these parts replaced, see `PARTS`; its name lists them.

    Raises:
        KeyError: no such part.
    """
    rules = dict(ATTNLRP)
    for part in parts:
        rules.update(PARTS[part])
    return LRP(" + ".join(parts) or "attnlrp", rules, epsilon)


def sets_of_parts() -> list[tuple[str, ...]]:
    """Every set of parts, from the empty set (AttnLRP) to all."""
    return [parts for size in range(len(PARTS) + 1) for parts in combinations(PARTS, size)]


def attnlrp_with_bypassed_softmax(layers: Collection[int], epsilon: float = 0.0) -> LRP:
    """AttnLRP that bypasses the softmax in these layers, counted from 0 at the inputs: all layers make CP-LRP."""

    def softmax(call: OperationCall) -> Any:
        return constant_rule(call) if call.number in layers else softmax_rule(call)

    name = f"attnlrp_bypassing_{'_'.join(map(str, sorted(layers)))}" if layers else "attnlrp"
    return LRP(name, {**ATTNLRP, "softmax": softmax}, epsilon)


def figure_2_sets(layers: int) -> dict[str, list[frozenset[int]]]:
    """The three series of Figure 2 for a model of this many layers, each in the order of Table A3, k = 1 … layers."""
    return {
        "first k layers": [frozenset(range(k)) for k in range(1, layers + 1)],
        "last k layers": [frozenset(range(layers - k, layers)) for k in range(1, layers + 1)],
        "layer k alone": [frozenset({k}) for k in range(layers)],
    }
