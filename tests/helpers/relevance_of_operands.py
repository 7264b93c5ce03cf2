"""The relevance of an operation's operands by the engine, to compare with an oracle."""

import pytest
import torch

from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.propagation import Propagation

# The oracles add at most a dozen float64 terms.
CLOSE = {"rtol": 1e-10, "atol": 1e-12}
both_forms = pytest.mark.parametrize("epsilon", [0.0, 1e-6, 1e-2], ids=["limit", "default", "coarse"])


def relevance_of(operation, *operands, relevance, epsilon=0.0, rules=ATTNLRP):
    """Relevance of the operands by the engine, if the output receives ``relevance``.

    Relevance at an output z is z ⊙ gradient, so the gradient at z is relevance / z.
    """
    packed = torch.cat([x.flatten() for x in operands]).requires_grad_()
    sizes = [x.numel() for x in operands]
    with Propagation(rules, epsilon, packed):
        parts = [p.view(x.shape) for p, x in zip(packed.split(sizes), operands, strict=True)]
        z = operation(*parts)
    (gradient,) = torch.autograd.grad(z, packed, relevance / z.detach())
    result = (packed.detach() * gradient).split(sizes)
    return [r.view(x.shape) for r, x in zip(result, operands, strict=True)]
