"""Functions of one value, against the same function by other functions of one value.

1. The identity rule leaves relevance unchanged: R_x = R_φ(x) (Achtibat et al. 2024, arXiv 2402.05602).
2. So a function of one feature that is computed by such functions, by multiples and by sums without constants passes
   all relevance on to that feature, in however many operations: every way to write it has the same map.
3. Sums take the place of products: xφ(x) is exp(log x + log φ(x)) for positive x and φ(x). And a constant is added
   inside an exponential: x + c is log(exp(x)·eᶜ). So ε-LRP, which refuses products of data, has a map too.
4. DeepLIFT's slopes along a chain multiply to the slope of the chain. Block-wise LRP takes the chain as one function.

The operand u = exp(tanh x) lies between 1/e and e.
"""

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.special import ndtr
from transformers import activations
from transformers.models.bloom.modeling_bloom import BloomGelu

from faithcheck.models.case import Case
from faithcheck.models.expectation import ALL_LRP, expect, expect_lrp
from faithcheck.models.networks.operation_by_operation import OperationByOperation, Written, operation_pair

UNCHANGED = expect_lrp("each function leaves relevance unchanged, so that every chain does", of=ALL_LRP)


def positive(x: Tensor) -> Tensor:
    return torch.exp(torch.tanh(x))


def plus(u: Tensor, c: float) -> Tensor:
    """u + c as log(exp(u)·eᶜ): the constant keeps no relevance."""
    return torch.log(torch.exp(u) * math.exp(c))


operation_pair(
    "functions",
    {
        "gelu": Written(functional.gelu, lambda u: torch.exp(torch.log(u) + torch.log(ndtr(u)))),
        "silu": Written(functional.silu, lambda u: torch.exp(torch.log(u) + functional.logsigmoid(u))),
        "mish": Written(
            functional.mish, lambda u: torch.exp(torch.log(u) + torch.log(torch.tanh(functional.softplus(u))))
        ),
        "tanh": Written(torch.tanh, lambda u: torch.exp(torch.log(torch.expm1(2 * u)) - functional.softplus(2 * u))),
        "sigmoid": Written(torch.sigmoid, lambda u: torch.exp(functional.logsigmoid(u))),
        "log_sigmoid": Written(functional.logsigmoid, lambda u: -functional.softplus(-u)),
        "softplus": Written(functional.softplus, lambda u: -functional.logsigmoid(-u)),
        "softsign": Written(functional.softsign, lambda u: torch.exp(torch.log(u) - torch.log1p(u))),
        "elu": Written(lambda u: functional.elu(-u), lambda u: torch.expm1(-u)),
        "selu": Written(
            lambda u: functional.selu(-u), lambda u: 1.0507009873554805 * 1.6732632423543772 * torch.expm1(-u)
        ),
        "celu": Written(lambda u: functional.celu(-u, 0.5), lambda u: 0.5 * torch.expm1(-2 * u)),
        "leaky_relu": Written(lambda u: functional.leaky_relu(-u, 0.125), lambda u: -0.125 * u),
        "hardtanh": Written(lambda u: functional.hardtanh(u, 0.5, 1.5), lambda u: torch.clamp(u, 0.5, 1.5)),
        "clamp": Written(lambda u: torch.clamp(u, 0.5, 1.5), lambda u: functional.hardtanh(u, 0.5, 1.5)),
        "clamp_min": Written(lambda u: torch.clamp_min(u, 1.0), lambda u: torch.clamp(u, 1.0, 9.0)),
        "clamp_max": Written(lambda u: torch.clamp_max(u, 1.0), lambda u: torch.clamp(u, 0.0, 1.0)),
        "relu6": Written(lambda u: functional.relu6(4 * u), lambda u: functional.hardtanh(4 * u, 0.0, 6.0)),
        # Torch rounds their slope 1/6 to float32, so the operand lies where it has the slopes 0 and 1.
        "hardsigmoid": Written(lambda u: functional.hardsigmoid(9 * u), lambda u: functional.relu6(plus(9 * u, 3)) / 6),
        "hardswish": Written(
            lambda u: functional.hardswish(9 * u),
            lambda u: torch.exp(torch.log(9 * u) + torch.log(functional.hardsigmoid(9 * u))),
        ),
        "erf": Written(torch.erf, lambda u: torch.expm1(torch.log(2 * ndtr(u * math.sqrt(2))))),
        "special_ndtr": Written(ndtr, lambda u: torch.exp(torch.log(functional.gelu(u)) - torch.log(u))),
        "exp": Written(torch.exp, lambda u: math.e**u),
        "expm1": Written(lambda u: torch.expm1(-u), lambda u: functional.elu(-u)),
        "log": Written(lambda u: torch.log(torch.sigmoid(u)), functional.logsigmoid),
        "log1p": Written(lambda u: torch.log1p(torch.exp(u)), functional.softplus),
        "pow": Written(lambda u: u**3, lambda u: torch.exp(3 * torch.log(u))),
        "rpow": Written(lambda u: 2.0**u, lambda u: torch.exp(math.log(2) * u)),
        "square": Written(torch.square, lambda u: torch.exp(2 * torch.log(u))),
        "sqrt": Written(torch.sqrt, lambda u: torch.exp(torch.log(u) / 2)),
        "rsqrt": Written(torch.rsqrt, lambda u: torch.exp(torch.log(u) / -2)),
        "reciprocal": Written(torch.reciprocal, lambda u: torch.exp(-torch.log(u))),
    },
    "one function of u, by identities of exponentials and logarithms",
    UNCHANGED,
    expect("invariance", "blockwise_lrp deeplift_rescale", "a chain of functions of one value is one function"),
    prepare=positive,
)
operation_pair(
    "quotient_of_a_constant",
    {"rdiv": Written(lambda u: 2 / u, lambda u: 2 * torch.exp(-torch.log(u)))},
    "2/u, by an exponential and a logarithm",
    UNCHANGED,
    expect("invariance", "blockwise_lrp", "a chain of functions of one value is one function"),
    prepare=positive,
)


BLOOM = 0.79788456  # √(2/π) in `transformers`, which has eight digits


def start_of_the_chain(f: OperationByOperation, g: nn.Module, case: Case) -> Tensor:
    """w (φ(u(0)) − φ(u)/u) of each feature: ``(1, 8)``."""
    module, u, start = f.functions[0], f.prepare(case.inputs), f.prepare(torch.zeros_like(case.inputs))
    difference: Tensor = (module(start) - module(u) / u) * f.readouts[0]
    return difference.detach()


operation_pair(
    "module_of_positive_numbers",
    {
        "BloomGelu": Written(
            BloomGelu(),  # type: ignore[no-untyped-call]
            lambda u: torch.exp(torch.log(u) + functional.logsigmoid(2 * BLOOM * (u + 0.044715 * u**3))),
        )
    },
    "the formula of the class: ½(1 + tanh z) = σ(2z)",
    UNCHANGED,
    expect(
        "invariance",
        "blockwise_lrp",
        "φ(u(x)) as a chain has φ(u(x)) − φ(u(0)); a module is outside of it, and has (u(x) − u(0)) φ(u)/u",
        predict=start_of_the_chain,
    ),
    prepare=positive,
)


# --- modules of transformers -----------------------------------------------------------------------------------------


GELU_BY_TANH = partial(functional.gelu, approximate="tanh")

operation_pair(
    "modules",
    {
        "GELUActivation": Written(activations.GELUActivation(), functional.gelu),
        "GELUTanh": Written(activations.GELUTanh(), GELU_BY_TANH),
        "NewGELUActivation": Written(activations.NewGELUActivation(), GELU_BY_TANH),
        "FastGELUActivation": Written(activations.FastGELUActivation(), GELU_BY_TANH),
        "AccurateGELUActivation": Written(activations.AccurateGELUActivation(), GELU_BY_TANH),  # type: ignore[no-untyped-call]
        "QuickGELUActivation": Written(activations.QuickGELUActivation(), lambda x: functional.silu(1.702 * x) / 1.702),
        "ClippedGELUActivation": Written(
            activations.ClippedGELUActivation(-0.0625, 0.75), lambda x: torch.clamp(functional.gelu(x), -0.0625, 0.75)
        ),
        "MishActivation": Written(activations.MishActivation(), functional.mish),  # type: ignore[no-untyped-call]
        "ReLUSquaredActivation": Written(activations.ReLUSquaredActivation(), lambda x: torch.relu(x).square()),
    },
    "the formula of the class, in one or two functions",
    UNCHANGED,
    expect("invariance", "blockwise_lrp", "φ(0) = 0: Integrated Gradients from 0 are φ(x)"),
)


def offset_at_zero(f: OperationByOperation, g: nn.Module, case: Case) -> Tensor:
    """w_k φ_k(0) of each feature: ``(batch, 8)``."""
    at_zero = [function(torch.zeros_like(case.inputs)) for function in f.functions]
    return torch.cat([(value * w)[:1] for value, w in zip(at_zero, f.readouts, strict=True)]).detach()


operation_pair(
    "modules_with_offset",
    {
        "LaplaceActivation": Written(activations.LaplaceActivation(), lambda x: ndtr(plus(x, -0.707107) / 0.282095)),
        "SqrtSoftplusActivation": Written(
            activations.SqrtSoftplusActivation(), lambda x: torch.exp(torch.log(functional.softplus(x)) / 2)
        ),
    },
    "the formula of the class, in several functions",
    UNCHANGED,
    expect(
        "invariance",
        "blockwise_lrp",
        "φ(0) is a bias and keeps its share of a function, but not of a module treated as one operation",
        predict=offset_at_zero,
    ),
)
