"""Models of one operation, to compare LRP rules on, and the rules of autolrp 0.2 written as rules of this project."""

import torch
import torch.nn.functional as F
from torch import nn

from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.modified_gradient import modified
from faithcheck.explainers.lrp.rules.rearrangements import gradient_rule
from faithcheck.models.case import Case


class Operation(nn.Module):
    """One operation as a model, ``(batch, 12)`` to ``(batch, outputs)``."""

    def __init__(self, function, parameters=()):
        super().__init__()
        self.function = function
        for number, value in enumerate(parameters):  # not a ParameterList, because that is a module
            self.register_parameter(f"constant_{number}", nn.Parameter(value))

    def forward(self, x):
        return self.function(x, *self.parameters())


def constants(*shapes):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]


def matrices(x):
    return x[:, :6].reshape(-1, 2, 3), x[:, 6:].reshape(-1, 3, 2)


OPERATIONS = {
    "linear, no bias": Operation(lambda x, w: F.linear(x, w), constants((4, 12))),
    "linear, bias": Operation(F.linear, constants((4, 12), (4,))),
    "x + y": Operation(lambda x: x[:, :6] + x[:, 6:]),
    "x − y": Operation(lambda x: x[:, :6] - x[:, 6:]),
    "x + constant": Operation(lambda x, c: x + c, constants((12,))),
    "x · constant": Operation(lambda x, c: x * c, constants((12,))),
    "x · y": Operation(lambda x: x[:, :6] * x[:, 6:]),
    "x / y": Operation(lambda x: x[:, :6] / x[:, 6:]),
    "sum": Operation(lambda x: x.reshape(-1, 3, 4).sum(2)),
    "mean": Operation(lambda x: x.reshape(-1, 3, 4).mean(2)),
    "X Y, data": Operation(lambda x: torch.matmul(*matrices(x)).flatten(1)),
    "X C, constant": Operation(lambda x, c: torch.matmul(matrices(x)[0], c).flatten(1), constants((3, 2))),
    "softmax": Operation(lambda x: torch.softmax(x, -1)),
    "layer norm, plain": Operation(lambda x: F.layer_norm(x, (12,))),
    "layer norm, γ and β": Operation(lambda x, g, b: F.layer_norm(x, (12,), g, b), constants((12,), (12,))),
    "gelu": Operation(F.gelu),
    "tanh": Operation(torch.tanh),
    "relu": Operation(torch.relu),
    "silu": Operation(F.silu),
}


class ModuleInside(nn.Module):
    """A module inside a model, ``(batch, 12)`` to the module's outputs."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


def modules():
    """Some of these operations as modules of torch, so that hooks see them."""
    torch.manual_seed(2)
    named = {
        "nn.Linear, no bias": nn.Linear(12, 4, bias=False),
        "nn.Linear, bias": nn.Linear(12, 4),
        "nn.ReLU": nn.ReLU(),
        "nn.Tanh": nn.Tanh(),
        "nn.GELU": nn.GELU(),
        "nn.Softmax": nn.Softmax(1),
        "nn.LayerNorm": nn.LayerNorm(12),
        "nn.BatchNorm1d": nn.BatchNorm1d(12),
    }
    return {name: ModuleInside(module).double().eval() for name, module in named.items()}


def operation_case():
    """Five points; the target is the largest of the first three inputs, which is positive, so that relu keeps it."""
    x = torch.randn(6, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))[1:]
    return Case(x, x[:, :3].argmax(1), torch.zeros_like(x))


# --- the rules of autolrp -------------------------------------------------------------------------------------------


def by_magnitude(value, *operands):
    """z, with relevance R_i = |x_i| / Σ|x| · R for its operands: the gradient of x_i is z · sign x_i / Σ|x|."""
    total = sum(x.detach().abs() for x in operands)
    share = torch.where(total > 0, value.detach() / total, 0)
    weighted = sum(x * (share * x.detach().sign()) for x in operands if x.requires_grad)
    return weighted + (value - weighted).detach()


def as_tensors(call):
    first, second = call.args[:2]
    like = first if isinstance(first, torch.Tensor) else second
    return [x if isinstance(x, torch.Tensor) else torch.as_tensor(x).to(like) for x in (first, second)]


def sum_rule(call):
    """A sum of two tensors is split by magnitude, and a constant tensor gets its share; a number gets none."""
    if not all(isinstance(x, torch.Tensor) for x in call.args[:2]):
        value = call.value()
        (x,) = call.operands_with_relevance()
        return modified(x, value, lambda gradient: gradient * (value.detach() / x.detach()))
    first, second = torch.broadcast_tensors(*as_tensors(call))
    return by_magnitude(call.value(), first, second)


def product_rule(call):
    """A product of data is split by magnitude."""
    if len(call.operands_with_relevance()) < 2:
        return gradient_rule(call)
    return by_magnitude(call.value(), *torch.broadcast_tensors(*call.args[:2]))


def quotient_rule(call):
    """a/b is split like the product of a and 1/b; the reciprocal leaves relevance unchanged."""
    numerator, denominator = call.args[0], call.argument(1, "other")
    if not (isinstance(denominator, torch.Tensor) and denominator.requires_grad):
        return gradient_rule(call)
    inverse = denominator.detach().reciprocal()
    inverse = modified(denominator, inverse, lambda gradient: gradient * inverse.square())
    return by_magnitude(call.value(), *torch.broadcast_tensors(numerator, inverse))


def linear_rule(call):
    """The bias gets |b| / (|z| + |b|) of the relevance; Eq. 1 without the bias distributes the rest."""
    x, weight, bias = call.argument(0, "input"), call.argument(1, "weight"), call.argument(2, "bias")
    z = F.linear(x, weight)
    return z if bias is None else without_bias(z, bias)


def addmm_rule(call):
    bias, x, weight = call.args
    return without_bias(torch.mm(x, weight), bias)


def conv2d_rule(call):
    x, weight, bias, *rest = call.args
    z = F.conv2d(x, weight, None, *rest)
    return z if bias is None else without_bias(z, bias.view(-1, 1, 1))


def without_bias(z, bias):
    """z + b with relevance |z| / (|z| + |b|) · R for z."""
    share = (z + bias).detach() * z.detach().sign() / (z.detach().abs() + bias.detach().abs())
    return modified(z, (z + bias).detach(), lambda gradient: gradient * share)


def layer_norm_rule(call):
    """Mean, standard deviation and γ are held constant: R_x = R less the share of the bias, as in `without_bias`."""
    x, shape = call.argument(0, "input"), call.argument(1, "normalized_shape")
    gamma, beta = call.argument(2, "weight"), call.argument(3, "bias")
    y = F.layer_norm(x.detach(), shape, gamma, None, call.argument(4, "eps", 1e-5))
    value = y if beta is None else y + beta
    ratio = value / x.detach() * (1 if beta is None else y.abs() / (y.abs() + beta.abs()))
    return modified(x, value, lambda gradient: gradient * ratio)


def mean_rule(call):
    """A mean or a sum is split by magnitude."""
    x, axes = call.args[0], call.argument(1, "dim")
    value, total = call.value(), x.detach().abs().sum(axes, keepdim=True)
    whole = value if call.argument(2, "keepdim", False) else value.unsqueeze(axes)
    weighted = (x * (whole.detach() / total * x.detach().sign())).sum(axes, keepdim=True)
    result = weighted + (whole - weighted).detach()
    return result.reshape(value.shape)


CHANGES = {
    "bias by magnitude": {"linear": linear_rule, "addmm": addmm_rule, "conv2d": conv2d_rule},
    "sums by magnitude": {"add": sum_rule, "sub": sum_rule},
    "LayerNorm's mean held constant": {"layer_norm": layer_norm_rule},
    "products by magnitude": {"mul": product_rule, "div": quotient_rule},
    "means by magnitude": {"mean": mean_rule, "sum": mean_rule},
}
"""The rules of autolrp that differ from ours, by the difference."""

AUTOLRP = {**ATTNLRP, **{name: rule for change in CHANGES.values() for name, rule in change.items()}}
