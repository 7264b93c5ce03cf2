"""Softmax attention over the features, in any unmodified model: seen, and features taken from it.

A `TorchFunctionMode` sees every softmax of the forward pass: as an operation, within ``scaled_dot_product_attention``,
or written out as exponential and division. Nothing is patched, and nothing is left on the model.

Taking key i from a row of attention weights A is what a 0 in an attention mask does to it: A_k becomes
A_k / (1 − A_i) for k ≠ i, and A_i becomes 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from faithcheck.explainers.lrp.operation_call import OperationCall
from faithcheck.explainers.lrp.operations import operation_name
from faithcheck.explainers.lrp.rules.attention import attention_rule
from faithcheck.explainers.lrp.rules.dropout import dropout_rule
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models.case import Case, select_target

HIDING = frozenset(
    {"multi_head_attention_forward", "_native_multi_head_attention", "_transformer_encoder_layer_fwd", "log_softmax"}
)
"""Operations that have attention weights which no torch function shows."""

Gates: TypeAlias = tuple[Tensor, ...]
"""Of an example in a layer: the attention weights, the gradient there, and that at the logits if it is known."""

Kind: TypeAlias = Literal["derivative", "change"]
"""What a gate moves: to first order, or in all."""

TOGETHER = 2**18
"""Entries of attention weights up to which layers are worked on together: of short texts, each takes no time."""

ALMOST_ALONE = 0.99
"""An attention weight A above which 1 − A is the sum of the other keys' weights: it has lost two digits."""


def in_the_model() -> str:
    """Where an operation is: no module is followed."""
    return "the model"


class AttentionObserver(TorchFunctionMode):
    """Sees each softmax of self-attention over at least ``features`` positions, of which the features are the last.

    Args:
        case: what the model is run on.
        removed: ``(batch, features)`` bool, the features taken from every row of every layer; by default none.
        strength: how far they are taken, in [0, 1]: the weights are (1 − strength)·A + strength·A without them.
    """

    met = HIDING | {"scaled_dot_product_attention", "dropout", "softmax", "exp", "sum", "div"}
    """Of all others, a short text has hundreds of a few microseconds: they pass at once."""

    def __init__(self, case: Case, removed: Tensor | None = None, strength: float = 1.0) -> None:
        super().__init__()
        self.case, self.removed, self.strength = case, removed, strength
        self.whole: list[Tensor] = []  # A, (batch, heads, queries, keys) a layer
        self.weights: list[Tensor] = []  # what the model goes on with
        self._moved = Moved()
        self._exponentials: list[tuple[Tensor, Tensor, Tensor | None]] = []  # u, exp u and its sum
        self._others: set[int] = set()  # over how many entries the softmaxes were that are no attention of the features

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = operation_name(func)
        if name not in self.met:
            return func(*args, **(kwargs or {}))
        return self.operate(OperationCall(name, func, args, kwargs or {}, 0.0, in_the_model))

    def operate(self, call: OperationCall) -> Any:
        """Compute one of the operations that are `met`."""
        name = call.name
        if name in HIDING and (name != "log_softmax" or self.over_features(call.argument(0, "input"))):
            raise Unsupported(f"{name} hides its attention weights: load the model with attn_implementation='eager'")
        if name == "scaled_dot_product_attention":
            steps = attention_rule(call)
            with self:
                return steps()
        if name == "dropout":
            return dropout_rule(call)
        if name == "softmax":
            return self.softmax(call)
        return self.written_out(call, call.value())

    def softmax(self, call: OperationCall) -> Any:
        """A softmax: of attention over the features, or another."""
        logits, axis = call.argument(0, "input"), call.argument(1, "dim")
        if not self.over_features(logits):
            self._others.add(logits.shape[-1])
            return call.value()
        if axis not in (-1, logits.dim() - 1):
            raise Unsupported("attention weights that are not normalised over the keys, the last axis")
        options = {name: value for name, value in call.kwargs.items() if name not in ("input", "dim")}
        return self.attend(logits, lambda u: call.operation(u, axis, *call.args[2:], **options))

    def over_features(self, logits: Tensor) -> bool:
        """Whether these are logits of attention: as many keys as queries, and a position for each feature."""
        return logits.dim() >= 3 and logits.shape[-2] == logits.shape[-1] >= self.case.shape[1]

    def attend(self, logits: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        """The attention weights that the model goes on with: a seam for those who attend otherwise."""
        if len(logits) != len(self.case.inputs):
            raise Unsupported(f"attention of {len(logits)} rows for {len(self.case.inputs)} examples")
        # The backward pass makes the gradient at the logits, unless A is not the weights, or the types are narrow.
        # Where there are few, making it again takes as long as waiting.
        passed = bool(self.weights) and logits.requires_grad and self.removed is None
        passed &= logits.element_size() >= 4 and logits[0].numel() >= TOGETHER
        if passed:
            logits = logits.view_as(logits)  # of our own: others may read them too, and add to the gradient there
        whole, weights = self.without(logits, softmax)
        if torch.is_grad_enabled():
            if not (weights.requires_grad and self.weights):
                weights = weights.detach()  # of what is below the first attention no gradient is needed
            weights = self._moved.follow(whole.detach(), weights, logits if passed else None)
        self.whole.append(whole.detach())
        self.weights.append(weights)
        return weights

    def without(self, logits: Tensor, softmax: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """A, and the weights that the removed features are taken from as far as ``strength`` says."""
        if self.removed is None:
            return 2 * (softmax(logits),)
        gone = logits.new_zeros(len(logits), logits.shape[-1], dtype=torch.bool)
        gone[:, -self.case.shape[1] :] = self.removed
        gone = gone.reshape(len(gone), *(1,) * (logits.dim() - 2), -1)
        if self.strength == 1:
            # The lowest number and not −∞: under a causal mask the first row may have nothing else to attend to.
            return 2 * (softmax(logits.masked_fill(gone, torch.finfo(logits.dtype).min)),)
        # A_k is to be (1 − s)·A_k where k is removed, and (1 − s + s/left)·A_k elsewhere. So the logits of the removed
        # are lowered by that ratio. It counts as a constant, which spares a second softmax in the graph.
        whole = softmax(logits.detach())
        left = (full(whole) @ full((~gone).to(whole)).mT).clamp_min(torch.finfo(torch.float32).tiny)
        lower = -torch.log1p(self.strength / (1 - self.strength) / left).to(logits)
        return whole, softmax(torch.addcmul(logits, lower, gone.to(logits)))

    def written_out(self, call: OperationCall, result: Any) -> Any:
        """Recognise a softmax over the last axis that a model writes as exp u / Σ exp u."""
        name, args = call.name, call.args
        if name == "exp" and self.over_features(args[0]):
            self._exponentials.append((args[0], result, None))
        elif name == "sum" and self._exponentials and args[0] is self._exponentials[-1][1]:
            self._exponentials[-1] = (*self._exponentials[-1][:2], result)
        elif name == "div" and self._exponentials and args[0] is self._exponentials[-1][1]:
            logits, _, total = self._exponentials.pop()
            if total is args[1] and total.shape == (*logits.shape[:-1], 1) and not call.kwargs:
                return self.attend(logits, lambda u: torch.softmax(u, -1))
        return result

    def require_attention(self) -> None:
        """Refuse a model in which no attention over the features was seen.

        Raises:
            Unsupported: there was none, as in a model without attention or one that hides it; or layers of unlike
                length.
        """
        lengths = {weights.shape[-1] for weights in self.weights}
        if self._exponentials:
            raise Unsupported("exponentials over the features of which no softmax is made: attention of another kind")
        if not lengths:
            raise Unsupported("no softmax attention over the features in this model: remove them by their baseline")
        if self._others & lengths:
            raise Unsupported(
                "a softmax over the features beside their attention (pooling, another model's keys): no gate"
            )
        if len(lengths) > 1:
            raise Unsupported(f"layers of {' and '.join(map(str, sorted(lengths)))} positions: no rule to join them")
        features = self.case.shape[1]
        if max(lengths) > features:
            attended = torch.stack([(whole[..., -features:] > 0).flatten(1, -2).any(1) for whole in self.whole]).any(0)
            expected = self.case.unpadded if self.removed is None else self.case.unpadded & ~self.removed
            if bool((expected & ~attended).any()):
                raise Unsupported("features that no row attends to: the features are not the last positions (padding?)")

    @property
    def read(self) -> Tensor:
        """Which rows the output is read at, ``(batch, queries)`` bool: whose weights in the last layer `moved` it."""
        return self._moved.read

    def moved(self, output: Tensor, *kinds: Kind) -> tuple[Tensor, ...]:
        """What each feature's gate moves in each row of each layer, summed over heads.

        With S the gradient at the weights A, the derivative at the gate m_i = 1 of A_k ∝ m_k exp z_k is
        A_i (S_i − Σ_k A_k S_k), the gradient at the logit z_i. The finite change Σ_k S_k (A_k − A_k without i) is that
        over 1 − A_i.

        Args:
            output: the explained output, ``(batch,)``.
            kinds: which of the two.

        Returns:
            ``(layers, batch, queries, features)``, one for each kind.

        Raises:
            Unsupported: no attention was seen, layers of unlike length, or weights that the output does not depend on.
        """
        self.require_attention()
        if not output.requires_grad and not output.is_inference():  # torch says itself that there is no gradient there
            raise Unsupported("attention weights that the explained output does not depend on")
        self._moved.forget(kinds)
        torch.autograd.grad(output.sum(), self._moved.asked, allow_unused=True)
        self._moved.finish()
        found, layers = self._moved.found, len(self.weights)
        if len(found) < layers * len(output):
            raise Unsupported("attention weights that the explained output does not depend on")
        in_order = zip(*(found[place] for place in sorted(found)), strict=True)
        features = slice(-self.case.shape[1], None)
        return tuple(torch.unflatten(torch.stack(each)[..., features], 0, (layers, -1)) for each in in_order)


class Shown(torch.autograd.Function):
    """The values, whose gradient is shown as it passes when that at ``asked``, a number, is asked for.

    To ask for the gradient at the values would keep it until the end: of a long text as much memory again.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, asked: Tensor, show: Callable[[Tensor], None]) -> Tensor:
        """The values, and no gradient of their own yet."""
        ctx.show = show
        return values.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """The gradient as it is, and 0 where it was asked for."""
        ctx.show(gradient)
        return gradient, gradient.new_zeros(()), None


class Moved:
    """What the gates of each layer move, reckoned as the gradients come by, while they are at hand.

    It holds no tensor of the graph: the graph holds it, and neither would ever be freed.
    """

    def __init__(self) -> None:
        self.asked: list[Tensor] = []  # one a layer, at which to ask for the gradient
        self.read = torch.empty(0)  # which rows of the last layer the output is read at
        self.scratch = torch.empty(0)  # one for all layers: memory that is given back each time is made anew each time
        self.forget(())

    def forget(self, kinds: tuple[Kind, ...]) -> None:
        """Forget what another backward pass left: from now on these kinds are asked for."""
        self.kinds = kinds
        self.found: dict[tuple[int, int], list[Tensor]] = {}  # by layer and example: one for each kind
        self.waiting: dict[int, tuple[Tensor, Tensor]] = {}  # A and the gradient there, until that at the logits comes
        self.together: list[tuple[tuple[int, int], Gates]] = []  # of short texts, up to `TOGETHER`

    def follow(self, whole: Tensor, weights: Tensor, logits: Tensor | None) -> Tensor:
        """The weights, the gradient at which is waited for, and that at the logits where it passes."""
        layer, passes = len(self.asked), logits is not None  # a hook that held the logits would keep them in memory

        def at_weights(gradient: Tensor) -> None:
            if not len(self.read):  # the last layer, the first to be passed
                size = gradient.abs().amax(-1)
                self.read = read_at(size.flatten(1, -2).amax(1) if size.dim() > 2 else size)
            if passes:
                self.waiting[layer] = whole, gradient
            else:
                self.reckon(layer, zip(whole, gradient, strict=True))

        def at_logits(gradient: Tensor) -> None:
            if layer in self.waiting:
                self.reckon(layer, zip(*self.waiting.pop(layer), gradient, strict=True))

        if logits is not None:
            logits.register_hook(at_logits)  # type: ignore[no-untyped-call]
        self.asked.append(weights.new_zeros((), requires_grad=True))
        shown: Tensor = Shown.apply(weights, self.asked[-1], at_weights)  # type: ignore[no-untyped-call]
        return shown

    def finish(self) -> None:
        """Reckon by hand where no gradient came by the logits: nothing below them is asked for."""
        for layer, (whole, gradient) in self.waiting.items():
            self.reckon(layer, zip(whole, gradient, strict=True))
        self.waiting = {}
        self.reckon_together()

    def reckon(self, layer: int, each: Iterable[Gates]) -> None:
        """Reckon what the gates of each example move in a layer, by itself or together with those of other layers."""
        for example, gates in enumerate(each):
            every = tuple(by_heads(values) for values in gates)
            if self.together and [x.shape for x in self.together[0][1]] != [x.shape for x in every]:
                self.reckon_together()
            self.together.append(((layer, example), every))
            if 2 * len(self.together) * every[0].numel() > TOGETHER:
                self.reckon_together()

    def reckon_together(self) -> None:
        """Reckon what has come together."""
        if not self.together:
            return
        places, parts = zip(*self.together, strict=True)
        self.together = []
        stacked = [full(torch.stack(one) if len(one) > 1 else one[0].unsqueeze(0)) for one in zip(*parts, strict=True)]
        if self.scratch.shape != stacked[0].shape or self.scratch.dtype != stacked[0].dtype:
            self.scratch = torch.empty_like(stacked[0])
        moved = gates_moved(self.kinds, self.scratch, *stacked)
        self.found |= {place: each for place, *each in zip(places, *moved, strict=True)}


def gates_moved(
    kinds: tuple[Kind, ...], scratch: Tensor, weights: Tensor, gradient: Tensor, at_logits: Tensor | None = None
) -> list[Tensor]:
    """These kinds of `AttentionObserver.moved`: ``(…, heads, queries, keys)`` to without heads.

    ``at_logits`` is the gradient at the logits, where the backward pass has made it; ``scratch`` is written over.
    """
    if at_logits is None:
        at_logits = torch.mul(weights, gradient)
        at_logits = torch.sub(gradient, at_logits.sum(-1, keepdim=True), out=at_logits).mul_(weights)
    moved = [at_logits if kind == "derivative" else finite(weights, gradient, at_logits, scratch) for kind in kinds]
    return [over_heads(each) for each in moved]


def finite(weights: Tensor, gradient: Tensor, at_logits: Tensor, change: Tensor) -> Tensor:
    """The finite change of `AttentionObserver.moved` in each head, written to ``change``."""
    torch.sub(1, weights, out=change)
    almost_alone = not bool(change.amin() >= 1 - ALMOST_ALONE)
    torch.div(at_logits, change, out=change)
    if almost_alone:
        # Where a row attends to one key almost alone, 1 − A is round-off: there by A (S − mean of S over the others).
        rows = (weights.amax(-1) > ALMOST_ALONE).nonzero(as_tuple=True)
        of_row, at_row = weights[rows], gradient[rows]
        key = of_row.argmax(-1, keepdim=True)
        others = of_row.scatter(-1, key, 0)
        left = others.sum(-1, keepdim=True)
        step = of_row.gather(-1, key) * (at_row.gather(-1, key) - (others * at_row).sum(-1, keepdim=True) / left)
        change[(*rows, key.squeeze(-1))] = step.masked_fill(left == 0, 0).squeeze(-1)  # nothing left to compare with
    return change


def read_at(size: Tensor) -> Tensor:
    """At which positions the output is read, by the size of its gradient there, ``(batch, positions)``, bool.

    Round-off is no reading: a readout that is rotated and rotated back leaves some everywhere.
    """
    return size > min(100 * torch.finfo(size.dtype).eps, 1e-3) * size.amax(1, keepdim=True)


def full(values: Tensor) -> Tensor:
    """The values in float32 at least: half types keep too little of 1 − A."""
    return values.float() if values.element_size() < 4 else values


def by_heads(values: Tensor) -> Tensor:
    """The values of one example, ``(heads, queries, keys)``, whatever is before its last two axes."""
    return values.reshape(-1, *values.shape[-2:])


def over_heads(values: Tensor) -> Tensor:
    """The sum over heads, ``(…, heads, queries, keys)`` to ``(…, queries, keys)``."""
    return values.sum(-3)


@torch.no_grad()
def output_without(model: nn.Module, case: Case, removed: Tensor) -> Tensor:
    """The explained output where no row attends to the removed features ``(batch, features)``: ``(batch,)``.

    The same as a 0 in the attention mask, for models that use it in their self-attention alone, and defined for those
    that take none. (OPT counts positions by the mask as well, and ALiBi distances.)

    Raises:
        Unsupported: no attention was seen.
    """
    with AttentionObserver(case, removed) as attention:
        output = case.run(model)
    attention.require_attention()
    return select_target(output, case.target)
