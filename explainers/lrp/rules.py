"""The rules of Layer-wise Relevance Propagation, one operation each, and the tables that make them methods.

A table's keys are names of torch operations, and of module classes that are one atom (``*`` stands for any beginning).

Relevance is carried as gradient: R = z ⊙ (modified gradient at z) for every intermediate z. Then, with w = ∂z/∂x,

* the ε-rule (arXiv 2510.18810, Eq. 1)  R_i = Σ_j x_i w_ij R_j / (z_j + ε·sign z_j)  is the plain gradient, each
  gradient at z scaled by |z| / (|z| + ε); a bias in z keeps its share;
* the bilinear rule (Eqs. 3–4)  R_A = A ⊙ (S Vᵀ), R_V = V ⊙ (Aᵀ S), S = R_O / (2O + ε·sign O)  is the plain gradient
  with that at O scaled by |O| / (2|O| + ε);
* the softmax rule (Eq. 5)  R_Z = Z ⊙ (R_A − A Σ R_A)  is the plain gradient of the softmax;
* an element-wise activation passes relevance on unchanged: the gradient is f(x) / x;
* LayerNorm and RMSNorm are linear maps once their 1/σ is held constant, and then follow the ε-rule.

So one code serves both forms, and in the limit ε = 0 the scalings are exactly 1 and ½. The tests hold each rule against
a slow oracle written from its equation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_iter, tree_unflatten

from faithcheck.explainers.protocol import Unsupported


def tensors_with_relevance(values: Any) -> list[Tensor]:
    """The tensors in these values that depend on the explained inputs, in order."""
    found: list[Tensor] = []
    _collect(values, found)
    return found


def _collect(values: Any, found: list[Tensor]) -> None:
    # By hand for what nearly every call has: torch's pytree takes longer than a small operation.
    if isinstance(values, Tensor):
        if values.requires_grad:
            found.append(values)
    elif isinstance(values, tuple | list):
        for value in values:
            _collect(value, found)
    elif isinstance(values, dict):
        for value in values.values():
            _collect(value, found)
    elif not isinstance(values, int | float | str | None):
        found += [x for x in tree_iter(values) if isinstance(x, Tensor) and x.requires_grad]


@dataclass(frozen=True)
class OperationCall:
    """One operation, or one module as an atom, on its way to a rule.

    Attributes:
        name: its key in the table of rules.
        operation: the function that computes it.
        args: its arguments.
        kwargs: its arguments by keyword.
        epsilon: the stabiliser ε ≥ 0.
        where: names the module whose forward pass is running.
        number: how many calls of this name the forward pass made before.
        signed: whether the stabiliser has the sign of what it is added to.
    """

    name: str
    operation: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    epsilon: float
    where: Callable[[], str]
    number: int = 0
    signed: bool = True

    def value(self) -> Any:
        """The operation's own result, with its plain gradient."""
        return self.operation(*self.args, **self.kwargs)

    def operands_with_relevance(self) -> list[Tensor]:
        """The operands that carry relevance, in order; an operand used twice counts twice."""
        return tensors_with_relevance((self.args, self.kwargs))

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument given by position or by name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    def with_first_constant(self) -> OperationCall:
        """The same call, its first relevance-carrying operand held constant."""
        leaves, structure = tree_flatten((self.args, self.kwargs))
        first = next(i for i, x in enumerate(leaves) if isinstance(x, Tensor) and x.requires_grad)
        leaves[first] = leaves[first].detach()
        args, kwargs = tree_unflatten(leaves, structure)
        return replace(self, args=args, kwargs=kwargs)

    def stabilised(self, z: Tensor, parts: int = 1) -> Tensor:
        """`stabilised`, by the stabiliser of this call.

        Raises:
            ZeroDivisionError: a denominator parts·z + ε without a sign is 0.
        """
        if not self.signed and self.epsilon > 0 and (quotient(self.epsilon, z) == -parts).any():
            raise ZeroDivisionError(
                f"{self.name} in {self.where()}: the stabiliser has no sign, and the denominator {parts}·z + ε is 0 "
                f"for ε = {self.epsilon:g}: take the signed one, or another ε"
            )
        return stabilised(z, self.epsilon, parts, self.signed)

    def unsupported(self, why: str) -> Unsupported:
        """The error that refuses this call."""
        return Unsupported(f"{self.name} in {self.where()}: {why}")


Rule: TypeAlias = Callable[[OperationCall], Any]
"""A rule returns the operation's value with a modified gradient, or a function of no arguments that computes it by
steps, each of which then meets its own rule."""


class _Modified(torch.autograd.Function):
    """A value, as a function of ``x``, whose gradient at ``x`` is given and not derived."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Callable[[], Tensor], gradient: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.gradient = gradient
        return value()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.gradient(gradients[0]), None, None


def modified(x: Tensor, value: Tensor, gradient: Callable[[Tensor], Tensor]) -> Tensor:
    """``value`` as a function of ``x``; ``gradient`` takes the gradient at the value to the one at ``x``."""
    # In a closure: autograd would make a view of an input that is returned, and a model may write to its values.
    result: Tensor = _Modified.apply(x, value.detach, gradient)  # type: ignore[no-untyped-call]
    return result


def quotient(epsilon: float, z: Tensor) -> Tensor:
    """ε/z, rounded once, so that it is exactly −parts at the pole z = −ε/parts."""
    return torch.full_like(z.detach(), epsilon).div_(z.detach())


def stabilised(z: Tensor, epsilon: float, parts: int = 1, signed: bool = True) -> Tensor:
    """z, its gradient scaled by |z| / (parts·|z| + ε): the denominators parts·z + ε·sign z of Eqs. 1, 3 and 4.

    Without the sign, by z / (parts·z + ε), which has a pole at z = −ε/parts.
    """
    if not z.requires_grad:  # computed under no_grad
        return z
    if epsilon > 0:
        # parts + ε/|z| is finite at z = ±∞ (a masked logit), and infinite at z = 0, where no relevance goes on.
        ratio = z.detach().abs().reciprocal_().mul_(epsilon) if signed else quotient(epsilon, z)
        denominator = ratio.add_(parts)
        z.register_hook(lambda gradient: gradient / denominator)  # type: ignore[no-untyped-call]
    elif parts != 1:
        z.register_hook(lambda gradient: gradient / parts)  # type: ignore[no-untyped-call]
    return z


def gradient_rule(call: OperationCall) -> Any:
    """The plain gradient: rearrangements and selections, multiples by a constant, the softmax rule (Eq. 5)."""
    return call.value()


def unbind_rule(call: OperationCall) -> Callable[[], Any]:
    """Iteration over a tensor is unbind, in sight."""
    return lambda: iter(call.args[0].unbind(0))


def epsilon_rule(call: OperationCall) -> Tensor:
    """Eq. 1, for a map that is linear in one operand, or in all its operands together (a sum)."""
    return call.stabilised(call.value())


def refuse_several_operands(call: OperationCall) -> None:
    """Refuse a product of operands that both carry relevance, where the rule is one for a constant and data."""
    if len(call.operands_with_relevance()) > 1:
        raise call.unsupported("no rule for a product of operands that both carry relevance")


def linear_rule(call: OperationCall) -> Tensor:
    """Eq. 1 for an operation that is linear in each operand but not in several together."""
    refuse_several_operands(call)
    return epsilon_rule(call)


def constant_factor_rule(call: OperationCall) -> Any:
    """An element-wise product with a constant: relevance passes on unchanged."""
    refuse_several_operands(call)
    return gradient_rule(call)


def bilinear_rule(call: OperationCall) -> Tensor:
    """Eqs. 3–4 where both operands carry relevance; Eq. 1 where only one does, which then takes all of it."""
    operands = len(call.operands_with_relevance())
    if operands > 2:
        raise call.unsupported(
            f"no rule for a product of {operands} operands that carry relevance; multiply two by two"
        )
    return call.stabilised(call.value(), parts=operands)


def product_rule(call: OperationCall) -> Any:
    """Eqs. 3–4 for an element-wise product; a constant factor passes relevance on unchanged."""
    return bilinear_rule(call) if len(call.operands_with_relevance()) > 1 else gradient_rule(call)


def first_operand_constant_rule(call: OperationCall) -> Tensor:
    """CP-LRP: in a product of data, O = AV, the first operand (the attention weights) is a constant."""
    operands = len(call.operands_with_relevance())
    return bilinear_rule(call.with_first_constant() if operands == 2 else call)


def constant_rule(call: OperationCall) -> Tensor:
    """No relevance goes through: CP-LRP's softmax."""
    result: Tensor = call.value()
    return result.detach()


def identity_rule(call: OperationCall) -> Tensor:
    """An element-wise function of one operand: R_x = R_f(x), so the gradient is f(x)/x.

    At x = 0 the gradient is f′(0), the limit where f(0) = 0. Where f(0) ≠ 0 (a sigmoid, an exponential), an x of
    exactly 0 can carry no relevance, x ⊙ gradient being 0: what arrives there is absorbed, as by a bias.
    """
    if len(call.operands_with_relevance()) != 1:
        raise call.unsupported("no rule for several operands that carry relevance")
    if call.kwargs.get("inplace"):
        raise call.unsupported("no rule for an activation that overwrites its input: set inplace=False")
    (x,) = call.operands_with_relevance()
    value = call.value()
    ratio = value.detach() / x.detach()
    if not ratio.sum().isfinite() and (zero := x.detach() == 0).any():
        (slope,) = torch.autograd.grad(value.sum(), x)
        if not slope[zero].isfinite().all():
            raise call.unsupported("no rule where its slope at 0 is infinite")
        ratio = torch.where(zero, slope, ratio)
    return modified(x, value, lambda gradient: gradient * ratio)


def rms_norm_module_rule(call: OperationCall) -> Tensor:
    """A module that is RMSNorm, as the linear map x/rms(x) ⊙ γ with the mean square held constant, then Eq. 1.

    The map is diagonal, and what it multiplies x by is y/x: the identity rule's gradient, at x = 0 too.
    """
    return call.stabilised(identity_rule(call))


def quotient_rule(call: OperationCall, product: Rule = product_rule) -> Any:
    """a/b as the product of a and 1/b: the rule for products, and the identity rule for the reciprocal."""
    numerator, denominator = call.argument(0, "input"), call.argument(1, "other")
    if call.name == "rdiv":
        numerator, denominator = denominator, numerator
    if call.kwargs.get("rounding_mode") is not None:
        raise call.unsupported("no rule for a rounded quotient")
    if not (isinstance(denominator, Tensor) and denominator.requires_grad):
        return gradient_rule(call)
    reciprocal = identity_rule(replace(call, operation=torch.reciprocal, args=(denominator,), kwargs={}))
    return product(replace(call, operation=torch.mul, args=(reciprocal, numerator), kwargs={}))


def layer_norm_rule(call: OperationCall) -> Tensor:
    """LayerNorm as the linear map (x − mean x)/σ ⊙ γ + β with σ held constant (Ali et al. 2022), then Eq. 1."""
    refuse_several_operands(call)
    x, shape = call.argument(0, "input"), call.argument(1, "normalized_shape")
    gamma, beta = call.argument(2, "weight"), call.argument(3, "bias")
    value, _, deviation = torch.native_layer_norm(x.detach(), shape, gamma, beta, call.argument(4, "eps", 1e-5))
    axes = tuple(range(-len(shape), 0))  # deviation is 1/σ

    def gradient(at_value: Tensor) -> Tensor:
        scaled = at_value if gamma is None else at_value * gamma
        return (scaled - scaled.mean(axes, keepdim=True)).mul_(deviation)

    return call.stabilised(modified(x, value, gradient))


def rms_norm_rule(call: OperationCall) -> Tensor:
    """RMSNorm as the linear map x/rms(x) ⊙ γ with the mean square held constant, then Eq. 1."""
    refuse_several_operands(call)
    x, shape = call.argument(0, "input"), call.argument(1, "normalized_shape")
    gamma, eps = call.argument(2, "weight"), call.argument(3, "eps")
    square = x.detach().square().mean(tuple(range(-len(shape), 0)), keepdim=True)
    z = x * (square + (torch.finfo(x.dtype).eps if eps is None else eps)).rsqrt()
    return call.stabilised(z if gamma is None else z * gamma)


def batch_norm_rule(call: OperationCall) -> Tensor:
    """BatchNorm with its running statistics is an affine map: Eq. 1."""
    if call.argument(5, "training", False):
        raise call.unsupported("no rule for batch statistics: call model.eval()")
    return linear_rule(call)


def dropout_rule(call: OperationCall) -> Any:
    """Dropout is the identity in eval mode."""
    if call.argument(2, "training", True) and call.argument(1, "p", 0.5) > 0:
        raise call.unsupported("no rule for dropout in train mode: call model.eval()")
    return gradient_rule(call)


def attention_rule(call: OperationCall) -> Callable[[], Tensor]:
    """Scaled dot-product attention written out, so that its products and its softmax meet their own rules."""
    query, key, value = (call.argument(i, name) for i, name in enumerate(("query", "key", "value")))
    mask, causal = call.argument(3, "attn_mask"), call.argument(5, "is_causal", False)
    scale = call.argument(6, "scale")
    if call.argument(4, "dropout_p", 0.0) > 0:
        raise call.unsupported("no rule for dropout in train mode: call model.eval()")
    if mask is not None and mask.requires_grad:
        raise call.unsupported("no rule for an attention mask that carries relevance")
    if causal:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()

    def steps() -> Tensor:
        k, v = key, value
        if call.argument(7, "enable_gqa", False):
            k, v = (x.repeat_interleave(query.shape[-3] // x.shape[-3], dim=-3) for x in (key, value))
        logits = torch.matmul(query, k.transpose(-2, -1)) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if mask is not None and mask.dtype == torch.bool:
            logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
        elif mask is not None:
            logits = logits + mask
        return torch.matmul(torch.softmax(logits, -1), v)

    return steps


REARRANGEMENTS = (
    *("T", "mT", "H", "mH", "view", "view_as", "reshape", "reshape_as", "transpose", "permute", "swapaxes", "movedim"),
    *("flatten", "unflatten", "ravel", "squeeze", "unsqueeze", "expand", "expand_as", "broadcast_to", "repeat", "tile"),
    *("repeat_interleave", "contiguous", "clone", "to", "type", "type_as", "float", "double", "getitem", "setitem"),
    *("select", "narrow", "index_select", "gather", "take_along_dim", "split", "chunk", "unbind", "tensor_split"),
    *("cat", "concat", "stack", "hstack", "vstack", "roll", "flip", "pad", "masked_fill", "where", "tril", "triu"),
    *("diagonal", "max", "min", "amax", "amin", "maximum", "minimum", "abs", "neg", "positive", "relu"),
    *("max_pool1d", "max_pool2d", "masked_fill_"),
)
"""Operations that move or select values, or only change their sign: each output is ± one input, so relevance goes where
the gradient goes."""

SUMS = ("add", "sub", "rsub", "sum", "mean", "cumsum", "add_", "iadd", "sub_", "isub")
MULTIPLES = ("mul", "div", "mul_", "imul", "div_", "itruediv")
LINEAR = (
    *("linear", "conv1d", "conv2d", "conv3d", "addmm", "baddbmm"),
    *("avg_pool1d", "avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d"),
)
MATRIX_PRODUCTS = ("matmul", "mm", "bmm", "mv", "dot", "inner", "outer", "einsum")
ACTIVATIONS = (
    *("gelu", "silu", "mish", "tanh", "sigmoid", "logsigmoid", "softplus", "softsign", "elu", "selu", "celu"),
    *("leaky_relu", "hardtanh", "hardsigmoid", "hardswish", "relu6", "clamp", "erf", "exp", "expm1", "log", "log1p"),
    *("sqrt", "rsqrt", "square", "reciprocal", "pow", "rpow", "special_ndtr"),
)
ACTIVATION_MODULES = (
    *("GELUTanh", "NewGELUActivation", "GELUActivation", "FastGELUActivation", "QuickGELUActivation"),
    *("AccurateGELUActivation", "ClippedGELUActivation", "MishActivation", "LaplaceActivation"),
    *("ReLUSquaredActivation", "SqrtSoftplusActivation"),
)
"""Activations that `transformers` writes out in several operations: classes that are one atom."""

RMS_NORM_MODULES = ("*RMSNorm", "*T5LayerNorm")
"""RMSNorm as `transformers` writes it out, in a class of its own for each family."""

EPSILON_LRP: Mapping[str, Rule] = {
    **dict.fromkeys(REARRANGEMENTS, gradient_rule),
    **dict.fromkeys(SUMS, epsilon_rule),
    **dict.fromkeys((*LINEAR, *MATRIX_PRODUCTS), linear_rule),
    **dict.fromkeys((*ACTIVATIONS, *ACTIVATION_MODULES), identity_rule),
    **dict.fromkeys(RMS_NORM_MODULES, rms_norm_module_rule),
    **dict.fromkeys(MULTIPLES, constant_factor_rule),
    **dict.fromkeys(("div", "rdiv"), partial(quotient_rule, product=constant_factor_rule)),
    "iter": unbind_rule,
    "layer_norm": layer_norm_rule,
    "rms_norm": rms_norm_rule,
    "batch_norm": batch_norm_rule,
    "dropout": dropout_rule,
}
"""ε-LRP: Eq. 1 and what leaves relevance unchanged."""

ATTNLRP: Mapping[str, Rule] = {
    **EPSILON_LRP,
    **dict.fromkeys(MATRIX_PRODUCTS, bilinear_rule),
    "mul": product_rule,
    **dict.fromkeys(("div", "rdiv"), quotient_rule),
    "softmax": gradient_rule,
    "scaled_dot_product_attention": attention_rule,
}
"""AttnLRP: Eqs. 1–5."""

CP_LRP: Mapping[str, Rule] = {
    **ATTNLRP,
    **dict.fromkeys(MATRIX_PRODUCTS, first_operand_constant_rule),
    "softmax": constant_rule,
}
"""CP-LRP: the softmax, and with it queries and keys, gets no relevance. Where there is no softmax (linear attention),
the first operand of a matrix product of data is taken for the attention weights; element-wise products of data, on
which CP-LRP says nothing, keep AttnLRP's half."""
