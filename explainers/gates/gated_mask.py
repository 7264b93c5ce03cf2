"""The attention mask as real numbers: the derivative of the output along the removal, which is checked at its end.

These gates are for models that use the mask elsewhere than in self-attention over the features; that alone takes one
pass (`faithcheck.explainers.gates.attention_gates`).

Removal by the attention mask has two forms. A softmax, a logsumexp or a choice of the largest leaves out a removed key;
there a gate m scales the unnormalised weight, A_k ∝ m_k exp z_k, so that log m_k is added to z_k. Elsewhere the model
multiplies by the mask; there the gate stands in place of the 1 of the mask. At m = 1 the model is unchanged, and at
m = 0 the feature is removed. So ∂f/∂m at m = 1 is the first-order effect of the removal.

Which operations leave keys out, and where these keys are, is seen and not assumed: the batch is run together with a
copy from which the mask removes every second feature. The keys of the features are those that get no weight in the
copy. So cross-attention to an encoder's features has gates, a decoder's attention to its own tokens has none, and a
sink beside the keys shifts nothing. `require_the_removal` refuses gates that miss a part of the removal.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._pytree import tree_iter

from faithcheck.explainers.gates.followed_mask import FollowedMask
from faithcheck.explainers.gates.gate_observer import GateObserver
from faithcheck.explainers.lrp.operation_call import OperationCall
from faithcheck.explainers.modules import module_in_words, running_module
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models.case import Case, select_target

AXIS = {"softmax": (1, "dim"), "log_softmax": (1, "dim"), "logsumexp": (1, "dim"), "topk": (2, "dim")}
"""Operations over keys that can be left out: position and name of the argument that is the axis."""


class GatedKeys(GateObserver):
    """Gates on the keys of every operation that leaves removed features out, seen beside a copy without some of them.

    The case has the examples, followed by their copies; ``gates`` and ``removed`` are ``(batch, features)``, of the
    examples.
    """

    operations = GateObserver.operations | AXIS.keys()

    def __init__(self, case: Case, gates: Tensor, removed: Tensor, mask: FollowedMask | None = None) -> None:
        super().__init__(case, mask)
        self.log_gates, self.removed = with_ones(gates).log(), removed

    def compute(self, call: OperationCall) -> Any:
        """See `GateObserver.compute`; gates the other operations that leave keys out, too."""
        if call.name not in AXIS:
            return super().compute(call)
        logits, axis = call.argument(0, "input"), call.argument(*AXIS[call.name], -1)
        if not isinstance(axis, int) or axis % max(logits.dim(), 1) == 0:
            return call.value()
        gated = self.with_gates(logits.movedim(axis, -1)).movedim(-1, axis)
        return call.operation(gated, *call.args[1:], **{name: x for name, x in call.kwargs.items() if name != "input"})

    def checked_attend(self, call: OperationCall, logits: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        """See `AttentionObserver.checked_attend`; the softmax, with gates if it leaves features out."""
        return softmax(self.with_gates(logits))

    def is_over_features(self, logits: Tensor) -> bool:
        """Whether the last axis may be that of the features: each example has rows, and a key for every feature."""
        examples, features = len(self.case.inputs), self.removed.shape[1]
        return logits.dim() > 1 and len(logits) % examples == 0 and logits.shape[-1] >= features

    def with_gates(self, logits: Tensor) -> Tensor:
        """The logits ``(…, keys)``, with log m on the features' keys if they leave features out."""
        if not self.is_over_features(logits):
            return logits
        queries = logits.shape[-2] if logits.dim() > 2 else 1
        by_example = logits.reshape(len(self.case.inputs), -1, queries, logits.shape[-1])
        gates = self.log_gates_of((by_example.detach().softmax(-1) > 0).any(1))
        return logits if gates is None else (by_example + gates.unsqueeze(1).to(logits.dtype)).reshape(logits.shape)

    def log_gates_of(self, attended: Tensor) -> Tensor | None:
        """Log m of each feature's key, else 0: ``(rows, 1 or queries, keys)``; None: no feature is left out.

        ``attended``, ``(rows, queries, keys)``, says which weights are not 0. Rows of removed features and of padding
        do not count: no other row reads them, and some models let them attend to anything. A feature may also keep its
        own row.
        """
        first = self.first_key(attended)
        if first is None:
            return None
        features = self.removed.shape[1]
        log_gates = nn.functional.pad(self.log_gates, (first, attended.shape[-1] - first - features)).unsqueeze(1)
        if attended.shape[1] != attended.shape[2]:
            return log_gates
        own = attended.diagonal(dim1=1, dim2=2)[:, first : first + features].chunk(2)[1]
        if not bool(own[self.removed].all()):
            return log_gates
        return log_gates.masked_fill(torch.eye(attended.shape[1], dtype=torch.bool, device=attended.device), 0)

    def first_key(self, attended: Tensor) -> int | None:
        """The place of the first feature's key; None: wherever it were, copies would attend to removed features."""
        features, keys, most, best = self.removed.shape[1], attended.shape[-1], 0, None
        present, copies = attended.chunk(2)
        kept = self.case.unpadded.chunk(2)[1]
        for first in range(keys - features + 1):
            removed = nn.functional.pad(self.removed, (first, keys - first - features))
            could = present & removed.unsqueeze(1)
            if could.shape[1] == keys:
                could = could & nn.functional.pad(kept, (first, keys - first - features)).unsqueeze(2)
            if int(could.sum()) > most and not bool((could & copies).any()):
                most, best = int(could.sum()), first
        return best


def with_ones(gates: Tensor) -> Tensor:
    """The gates of the examples, and ones for their copies."""
    return torch.cat([gates, torch.ones_like(gates)])


def every_second_feature(case: Case) -> Tensor:
    """Features to remove, ``(batch, features)`` bool: every second one after the first, others in the next example.

    The first stays, so that each row under a causal mask has something left to attend to.
    """
    number = case.unpadded.cumsum(1) - 1
    others = case.unpadded & (number > 0)
    turn = torch.arange(len(number), device=number.device).unsqueeze(1)
    second = others & ((number + turn) % 2 == 1)
    return torch.where(second.any(1, keepdim=True), second, others)


def gated_outputs(model: nn.Module, case: Case, gates: Tensor, removed: Tensor) -> tuple[Tensor, Tensor]:
    """The explained output with these gates, in [0, 1], and that without the removed features, ``(batch,)`` each."""
    twice = case.select(torch.arange(len(gates), device=gates.device).repeat(2))
    mask = twice.forward_arguments["attention_mask"]
    mask = mask.masked_fill(torch.cat([torch.zeros_like(removed), removed]), 0)
    twice = replace(twice, forward_arguments={**twice.forward_arguments, "attention_mask": mask})
    with GatedKeys(twice, gates, removed, FollowedMask(mask, with_ones(gates))):
        output = twice.run(model)
    gated, without = select_target(output, twice.target).chunk(2)
    return gated, without


@torch.enable_grad()
def mask_derivatives(model: nn.Module, case: Case) -> Tensor:
    """∂f/∂m at m = 1, of gates m on the attention mask: ``(batch, features)``.

    It takes two forward passes and a backward pass of twice the examples. Raises Unsupported if the output does not
    depend on the gates, they miss a part of the removal, or the texts have one token each.
    """
    removed = every_second_feature(case)
    if not removed.any():
        raise Unsupported(
            f"attention_mask in {module_in_words(model, model)}: nothing is left without the one token of a text: "
            "remove it by its baseline"
        )
    dtype = torch.promote_types(case.inputs.dtype, torch.float32)
    gates = torch.ones(case.shape, dtype=dtype, device=case.inputs.device, requires_grad=True)
    require_the_removal(model, case, gates.detach().masked_fill(removed, 0), removed)
    output, _ = gated_outputs(model, case, gates, removed)
    derivatives = None
    if output.requires_grad:
        (derivatives,) = torch.autograd.grad(output.sum(), gates, allow_unused=True)
    if derivatives is None:
        raise Unsupported(
            f"attention_mask in {module_in_words(model, model)}: the explained output does not depend on it by any "
            "operation that has a gate: remove features by their baseline"
        )
    return derivatives


@torch.no_grad()
def require_the_removal(model: nn.Module, case: Case, gates: Tensor, removed: Tensor) -> None:
    """Raise Unsupported unless gates of 0 at the removed features, else 1, give the output without these features."""
    with first_difference(2 * len(gates)) as places:
        gated, without = gated_outputs(model, case, gates, removed)
    if differ(gated, without):
        place = places[0] if places else module_in_words(model, model)
        raise Unsupported(
            f"attention_mask in {place}: it removes features in a way that has no gate; a gate scales keys of a "
            "softmax and factors of a product: remove features by their baseline"
        )


@contextmanager
def first_difference(rows: int) -> Iterator[list[str]]:
    """The first module in the block whose output differs between the examples and their copies, ``rows`` in all."""
    places: list[str] = []

    def compare(module: nn.Module, args: Any, output: Any) -> None:
        values = [value for value in tree_iter(output) if isinstance(value, Tensor)]
        states = next((value for value in values if value.is_floating_point() and value.dim() > 2), None)
        if not places and states is not None and len(states) == rows and differ(*states.chunk(2)):
            places.append(running_module())

    handle = register_module_forward_hook(compare)
    try:
        yield places
    finally:
        handle.remove()


def differ(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors differ by more than the round-off of many operations."""
    return a.numel() > 0 and bool(((a - b).abs() > torch.finfo(a.dtype).eps ** 0.5 * b.abs().max()).any())
