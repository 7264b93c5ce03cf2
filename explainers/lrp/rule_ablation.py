"""AttnLRP with each of its parts switched on its own: which of them makes CP-LRP agree with LOO, or not.

The open question of arXiv 2510.18810: CP-LRP and AttnLRP differ in more than the softmax, depending on whose they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from itertools import combinations

from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.rules import (
    ACTIVATION_MODULES,
    ACTIVATIONS,
    ATTNLRP,
    MATRIX_PRODUCTS,
    Rule,
    constant_rule,
    gradient_rule,
    identity_rule,
    quotient_rule,
)

PARTS: Mapping[str, Mapping[str, Rule]] = {
    "softmax bypassed": {"softmax": constant_rule},
    "LayerNorm by the identity rule": {"layer_norm": identity_rule},
    "activations by their gradient": dict.fromkeys((*ACTIVATIONS, *ACTIVATION_MODULES), gradient_rule),
    "products not halved": {
        **dict.fromkeys((*MATRIX_PRODUCTS, "mul"), gradient_rule),
        **dict.fromkeys(("div", "rdiv"), partial(quotient_rule, product=gradient_rule)),
    },
}
"""What replaces AttnLRP's rule in each part.

AttnLRP has Eq. 5 for the softmax; σ held constant in LayerNorm, where the identity rule leaves relevance as it is, bias
and mean included; f(x)/x for an activation; and half of a product's relevance for either operand.
"""


def switched(parts: Collection[str], epsilon: float = 0.0) -> LRP:
    """AttnLRP with these parts replaced as `PARTS` has it; named by them.

    Raises:
        KeyError: no such part.
    """
    rules = dict(ATTNLRP)
    for part in parts:
        rules.update(PARTS[part])
    return LRP(" + ".join(parts) or "attnlrp", rules, epsilon)


def every_switch() -> list[tuple[str, ...]]:
    """Every set of parts, from none, which is AttnLRP, to all."""
    return [parts for size in range(len(PARTS) + 1) for parts in combinations(PARTS, size)]
