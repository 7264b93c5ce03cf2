"""lxt's explicit rules (Achtibat et al. 2024, arXiv 2402.05602), operation by operation, on an unmodified model.

lxt 2.1, the latest release, cannot explain a whole model here: its ``lxt.efficient`` and ``lxt.explicit.core`` do not
import on transformers 5. (lxt's main branch, said to be tested with transformers 5.9, was not tried.) This adapter uses
the rules, ``lxt.explicit.functional`` and ``.rules``: functions whose gradient is the relevance. This project's
`Propagation` computes each operation with relevance by the lxt function for it, with lxt's own ε, and rearrangements by
torch. Operations that lxt has no rule for are refused.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.operation_call import OperationCall, Rule, tensors_with_relevance
from faithcheck.explainers.lrp.operation_table import operations_with
from faithcheck.explainers.lrp.operations import Trait
from faithcheck.explainers.lrp.rules.attention import attention_rule
from faithcheck.explainers.lrp.rules.rearrangements import dropout_rule, gradient_rule
from faithcheck.explainers.peers.peer import Peer, import_peer
from faithcheck.explainers.protocol import in_standard_modes
from faithcheck.models.case import Case


class Explicit(Peer):
    """lxt's explicit rules on every operation: AttnLRP.

    lxt claims: "the LRP conservation property holds for all operations excluding bias terms"
    (``conservation_check_wrap``).
    """

    name = "lxt_explicit"
    label = "AttnLRP, explicit rules (lxt)"
    summary = "lxt's explicit rules on every operation; Achtibat et al. 2024"
    distribution = "lxt"
    refuses = ((RuntimeError, "returned an invalid gradient"),)
    way_out = "lxt's add2, mul2 and matmul return relevance in the shape of the result: expand the operand first"
    claims = frozenset({"conservation"})
    relevance = True

    @in_standard_modes
    def explain(self, model: nn.Module, case: Case) -> Tensor:
        propagation, output = LRP(self.name, table()).propagate(model, case)
        (relevance,) = torch.autograd.grad(output, propagation.point, output.detach())
        return relevance


def table() -> Mapping[str, Rule]:
    """lxt's rules by operation; ImportError names the extra if lxt is not installed."""
    functional, rules = import_peer("lxt.explicit.functional"), import_peer("lxt.explicit.rules")
    identity = partial(identity_rule, rules.identity)
    return {
        **{name: gradient_rule for name in operations_with(Trait.REARRANGEMENT, without=(Trait.ONE_VALUE,))},
        **dict.fromkeys((*operations_with(Trait.ONE_VALUE), *operations_with(Trait.MODULE), "neg"), identity),
        **dict.fromkeys(("add", "add_"), lambda call: functional.add2(*summands(call))),
        "sub": lambda call: functional.add2(summands(call)[0], functional.mul2(summands(call)[1], -1)),
        **dict.fromkeys(("conv1d", "conv2d", "addmm"), partial(epsilon_rule, rules.epsilon_lrp)),
        **dict.fromkeys(("mul", "mul_"), lambda call: functional.mul2(*call.args)),
        **dict.fromkeys(("div", "div_"), partial(quotient_rule, functional.mul2, rules.identity)),
        **dict.fromkeys(("matmul", "bmm", "mm"), lambda call: functional.matmul(*call.args)),
        "linear": lambda call: functional.linear_epsilon(*call.args, **call.kwargs),
        "mean": partial(mean_rule, functional.mean),
        "sum": lambda call: functional.mul2(mean_rule(functional.mean, call), call.args[0].shape[axis(call)]),
        "softmax": lambda call: functional.softmax(call.args[0], call.argument(1, "dim")),
        "layer_norm": lambda call: functional.layer_norm(
            call.args[0], call.argument(2, "weight"), call.argument(3, "bias"), call.argument(4, "eps", 1e-5)
        ),
        "rms_norm": identity,
        "scaled_dot_product_attention": attention_rule,
        "dropout": dropout_rule,
    }


def summands(call: OperationCall) -> list[Tensor]:
    """The operands of a sum or difference as tensors, because lxt takes no numbers."""
    (like,) = call.operands_with_relevance()[:1]
    operands = call.args[:2] if len(call.args) > 1 else (call.args[0], call.kwargs["other"])
    return [x if isinstance(x, Tensor) else torch.as_tensor(x).to(like) for x in operands]


def axis(call: OperationCall) -> int:
    """The axis of a mean or sum; lxt's mean takes a single axis."""
    dim = call.argument(1, "dim")
    if not isinstance(dim, int):
        raise call.unsupported("lxt's mean takes one axis")
    return dim


def mean_rule(mean: Callable[..., Tensor], call: OperationCall) -> Tensor:
    """lxt's ε-rule for a mean."""
    return mean(call.args[0], axis(call), bool(call.argument(2, "keepdim", False)))


def identity_rule(identity: Callable[..., Tensor], call: OperationCall) -> Tensor:
    """lxt's identity rule, for one operand with relevance."""
    operands = call.operands_with_relevance()
    if len(operands) != 1:
        raise call.unsupported("lxt's identity rule is for one operand")
    return identity(lambda _: call.value().detach(), operands[0])


def epsilon_rule(epsilon_lrp: Callable[..., Tensor], call: OperationCall) -> Tensor:
    """lxt's ε-rule for any function that is linear in its one operand."""
    position = next(i for i, x in enumerate(call.args) if tensors_with_relevance(x))
    rest = call.args[position + 1 :]
    return epsilon_lrp(
        lambda x: call.operation(*call.args[:position], x, *rest, **call.kwargs), 1e-8, call.args[position]
    )


def quotient_rule(mul2: Callable[..., Tensor], identity: Callable[..., Tensor], call: OperationCall) -> Any:
    """lxt's rule for a/b: the uniform rule for a · (1/b), the identity rule for the reciprocal."""
    numerator, denominator = call.args[0], call.argument(1, "other")
    if tensors_with_relevance(denominator):
        return mul2(numerator, identity(torch.reciprocal, denominator))
    return mul2(numerator, 1 / denominator)
