"""Observe softmax attention over the features in any unmodified model.

A `TorchFunctionMode` sees every softmax of the forward pass: as an operation, within ``scaled_dot_product_attention``,
or written out as exponential and division. It patches nothing and leaves nothing on the model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Size, Tensor, softmax
from torch.overrides import TorchFunctionMode

from faithcheck.explainers.lrp.operation_call import OperationCall
from faithcheck.explainers.lrp.operations import operation_name
from faithcheck.explainers.lrp.rules.attention import attention_rule
from faithcheck.explainers.modules import remembered_module, running_module
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models.case import Case

Place: TypeAlias = Callable[[], str]
"""Names a module when it is called."""

OpenExponential: TypeAlias = tuple[Tensor, Tensor, Tensor | None, Place]
"""z, exp z, Σ exp z once it is computed, and where."""

OPAQUE_ATTENTION = frozenset(
    {"multi_head_attention_forward", "_native_multi_head_attention", "_transformer_encoder_layer_fwd", "log_softmax"}
)
"""Operations whose attention weights no torch function shows."""
SOFTMAX = frozenset({"scaled_dot_product_attention", "softmax", "logsumexp", "exp", "sum", "div"})
"""Operations that are a softmax, or a part of one that is written out."""
CHOICES = frozenset({"topk", "argmax", "max"})
"""Operations by which a router chooses among the results of its softmax, one for each expert."""


@dataclass(frozen=True)
class OtherSoftmax:
    """A softmax that is not attention over the features, and is as long as they are, or longer.

    ``shape`` is that of its logits, and ``result`` is what it gives, if it may be a router's.
    """

    shape: Size
    place: Place
    result: Tensor | None


class OtherAttention(Unsupported):
    """The model has other attention than softmax self-attention over the features."""


class AttentionObserver(TorchFunctionMode):
    """Records the attention weights A of each self-attention over the features.

    ``weights`` has one tensor ``(batch, …, queries, keys)`` per layer, detached. Attention over the features has as
    many keys as queries, and at least one position per feature. If there are more positions than features, such as a
    class token's, the features are the last ones.
    """

    operations = OPAQUE_ATTENTION | SOFTMAX | CHOICES
    """The operations that are inspected. All others take the fast path: they return at once."""
    remedy = "take an explainer that reads no attention weights"
    """What the user can do if the model has no attention over the features."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        self.weights: list[Tensor] = []
        self.places: list[Place] = []  # of the weights
        self.other_softmaxes: list[OtherSoftmax] = []
        self.open_exponentials: list[OpenExponential] = []
        self.largest: Tensor | None = None  # the values of the last topk
        self.attended: Tensor | None = None  # the attention weights that the model continued with last

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = operation_name(func)
        if name not in self.operations:
            return func(*args, **(kwargs or {}))
        return self.compute(OperationCall(name, func, args, kwargs or {}, 0.0, running_module))

    def compute(self, call: OperationCall) -> Any:
        """The value of one of the inspected `operations`; Unsupported if its attention weights cannot be observed."""
        name = call.name
        if name in OPAQUE_ATTENTION and (name != "log_softmax" or self.is_over_features(call.argument(0, "input"))):
            raise call.unsupported(
                "it hides its attention weights: load the model with attn_implementation='eager', or write the "
                "attention by torch.softmax"
            )
        if name == "scaled_dot_product_attention":
            steps = attention_rule(call)
            with self:
                return steps()
        if name in ("softmax", "logsumexp"):
            return self.compute_softmax(call)
        if name in CHOICES:
            return self.choose(call)
        return self.recognise_softmax(call, call.value())

    def compute_softmax(self, call: OperationCall) -> Any:
        """The value of a softmax: of attention over the features, or another; or of a logsumexp."""
        logits, axis = call.argument(0, "input"), call.argument(1, "dim")
        if call.name == "logsumexp" or not self.is_over_features(logits):
            result = call.value()
            self.note_other(logits, result)
            return result
        if axis not in (-1, logits.dim() - 1):
            raise OtherAttention(f"{call.name} in {call.where()}: it is not normalised over the keys, the last axis")
        options = {name: value for name, value in call.kwargs.items() if name not in ("input", "dim")}
        return self.checked_attend(call, logits, lambda z: call.operation(z, axis, *call.args[2:], **options))

    def note_other(self, logits: Tensor, result: Tensor) -> None:
        """Note a softmax that is not attention over the features."""
        of_router = self.may_be_of_router(result)
        if logits.shape[-1] < self.case.shape[1] or (of_router and logits is self.largest):
            return
        self.other_softmaxes.append(OtherSoftmax(logits.shape, remembered_module(), result if of_router else None))

    def may_be_of_router(self, weights: Tensor) -> bool:
        """Whether each position of each example may have these weights of experts, as many as there are positions."""
        return weights.dim() == 2 and len(weights) == len(self.case.inputs) * weights.shape[1]

    def choose(self, call: OperationCall) -> Any:
        """The value of a choice by size; a softmax whose results are chosen from is a router's, and is forgotten.

        Raises OtherAttention if the softmax was taken for attention, as there are as many experts as positions.
        """
        values = call.argument(0, "input")
        if values is self.attended:
            raise OtherAttention(
                f"{call.name} in {call.where()}: chooses among what was taken for attention weights: where a mixture "
                f"has as many experts as the text has tokens, they look alike; {self.remedy}"
            )
        self.other_softmaxes = [other for other in self.other_softmaxes if other.result is not values]
        result = call.value()
        if call.name == "topk":
            self.largest = result[0]
        return result

    def recognise_softmax(self, call: OperationCall, result: Any) -> Any:
        """Recognise a softmax over the last axis that a model writes as exp z / Σ exp z."""
        name, operand, exponentials = call.name, call.argument(0, "input"), self.open_exponentials
        if name == "exp" and self.is_over_features(operand):
            exponentials.append((operand, result, None, remembered_module()))
        elif name == "sum" and exponentials and operand is exponentials[-1][1]:
            exponentials[-1] = (*exponentials[-1][:2], result, exponentials[-1][3])
        elif name == "div" and exponentials and operand is exponentials[-1][1]:
            logits, _, total, _ = exponentials.pop()
            if total is call.argument(1, "other") and total.shape == (*logits.shape[:-1], 1) and not call.kwargs:
                return self.checked_attend(call, logits, lambda z: softmax(z, -1))
        return result

    def is_over_features(self, logits: Tensor) -> bool:
        """Whether these are logits of attention: as many keys as queries, and a position for each feature."""
        return logits.dim() >= 3 and logits.shape[-2] == logits.shape[-1] >= self.case.shape[1]

    def checked_attend(self, call: OperationCall, logits: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        """`attend`, if the first axis of the logits is the batch."""
        if len(logits) != len(self.case.inputs):
            raise OtherAttention(
                f"{call.name} in {call.where()}: attention of {len(logits)} rows for {len(self.case.inputs)} examples: "
                "the first axis of attention weights must be the batch"
            )
        self.attended = self.attend(logits, softmax)
        return self.attended

    def attend(self, logits: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        """Record the attention weights of one layer, and return those that the model continues with.

        Subclasses override it to record something else, or to change the weights.
        """
        weights = softmax(logits)
        self.note(weights.detach())
        return weights

    def note(self, weights: Tensor) -> None:
        """Record the attention weights of one layer, and where they are."""
        self.weights.append(weights)
        self.places.append(remembered_module())

    def require_attention(self) -> int:
        """The number of positions, which all layers must have in common.

        Raises OtherAttention if they differ, if no attention over the features was observed, or if there is another
        softmax.
        """
        places = {weights.shape[-1]: place for weights, place in zip(self.weights, self.places, strict=True)}
        if not places:
            raise OtherAttention(f"softmax in the model: no softmax attention over the features; {self.remedy}")
        if len(places) > 1:
            each = " and ".join(f"{length} in {places[length]()}" for length in sorted(places))
            raise OtherAttention(f"softmax: attention over positions, {each}: no rule to join them; {self.remedy}")
        (positions,) = places
        others = self.other_softmaxes
        if other := next((one for one in others if one.shape[-1] == positions or len(one.shape) > 3), None):
            raise OtherAttention(
                f"softmax in {other.place()}: over the features beside their attention (pooling, cross-attention, a "
                f"sink); {self.remedy}"
            )
        return positions
