"""The conservation ledger: where the relevance of one LRP attribution goes, operation by operation.

Every operation receives relevance at its results, and passes relevance on to its operands. The difference is lost, to a
named cause whose loss has a formula of its own (`recorded_operation`), so that the ledger balances for each example:
relevance at the start = relevance at the inputs + Σ of named losses. A rule that loses relevance for another reason
(such as an activation's plain gradient) leaves a part unaccounted for. `ledger_recorder` records the forward pass.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.ledger_recorder import LedgerRecorder
from faithcheck.explainers.lrp.recorded_operation import ExampleBalance, rule_name
from faithcheck.explainers.protocol import in_standard_modes, per_feature
from faithcheck.models.case import Case


@dataclass(frozen=True)
class Balance:
    """The relevance that an operation or a module exchanged with others; tensors are ``(batch,)``, float64.

    It is ``received`` at the results and ``passed_on`` to the operands, by a module from and to operations outside it.
    """

    received: Tensor
    passed_on: Tensor
    losses: Mapping[str, Tensor]

    @property
    def lost(self) -> Tensor:
        """Received − passed on."""
        return self.received - self.passed_on

    @property
    def unaccounted(self) -> Tensor:
        """The loss without a named cause: round-off, or a rule that loses relevance by itself."""
        return self.lost - sum(self.losses.values(), torch.zeros_like(self.received))


@dataclass(frozen=True)
class OperationBalance(Balance):
    """The balance of one operation: its key in the table of rules, the module that ran it, and its rule's name."""

    operation: str
    module: str  # by the model's name for it; "" is the model itself
    rule: str


@dataclass(frozen=True)
class ConservationLedger:
    """Where the relevance of one attribution went, for each example separately.

    Attributes:
        operations: the operations that carry relevance, in the order of the forward pass.
        flows: ``{(sender, receiver): (batch,)}``, the relevance that operation number ``sender`` passed on to the
            operation number ``receiver``. The sender None is the explained output; the receiver None are the inputs.
        start: ``(batch,)``, the explained output, the relevance at the start.
        attribution: ``(batch, features)``, the explainer's attribution.
        special_tokens_mask: ``(batch, features)`` bool, the special tokens, if the case has such a mask.
    """

    operations: tuple[OperationBalance, ...]
    flows: Mapping[tuple[int | None, int | None], Tensor]
    start: Tensor
    attribution: Tensor
    special_tokens_mask: Tensor | None = None

    @property
    def at_features(self) -> Tensor:
        """Relevance of the features that are not special, ``(batch,)``."""
        return self.attribution.double().sum(1) - self.at_special

    @property
    def at_special(self) -> Tensor:
        """Relevance of special tokens, such as [CLS] and [SEP], ``(batch,)``."""
        if self.special_tokens_mask is None:
            return torch.zeros_like(self.start)
        return self.attribution.double().masked_fill(~self.special_tokens_mask, 0).sum(1)

    @property
    def destinations(self) -> dict[str, Tensor]:
        """Where relevance ended, ``(batch,)`` each: features, special tokens and every cause; they sum to `start`."""
        special = {} if self.special_tokens_mask is None else {"special tokens": self.at_special}
        return {"features": self.at_features, **special, **self.by_cause()}

    def by_cause(self) -> dict[str, Tensor]:
        """The losses by cause, ``(batch,)`` each."""
        return _summed(operation.losses for operation in self.operations)

    def by_module(self) -> dict[str, Balance]:
        """Every module that ran an operation, and the modules that contain it, in the order of the forward pass."""
        containing = [_containing(operation.module) for operation in self.operations]
        names = dict.fromkeys(name for modules in containing for name in modules)
        received, passed_on = ({name: torch.zeros_like(self.start) for name in names} for _ in range(2))
        for (sender, receiver), relevance in self.flows.items():
            sending, receiving = (set[str]() if n is None else set(containing[n]) for n in (sender, receiver))
            for name in receiving - sending:
                received[name] = received[name] + relevance
            for name in sending - receiving:
                passed_on[name] = passed_on[name] + relevance
        balances = {}
        for name in names:
            inside = (o.losses for o, modules in zip(self.operations, containing, strict=True) if name in modules)
            balances[name] = Balance(received[name], passed_on[name], _summed(inside))
        return balances

    @property
    def balance(self) -> Tensor:
        """Relevance at the start − relevance at the inputs − the named losses, ``(batch,)``: 0 up to round-off."""
        return self.start - sum(self.destinations.values(), torch.zeros_like(self.start))

    @property
    def gap(self) -> float:
        """The largest of `balance` and of every operation's `unaccounted`, relative to the example's largest relevance.

        The largest relevance is that which an operation received or passed on, or the relevance at the start.
        """
        sizes = [self.start, *(r for o in self.operations for r in (o.received, o.passed_on))]
        errors = torch.stack([self.balance, *(o.unaccounted for o in self.operations)]).abs().amax(0)
        scale = torch.stack(sizes).abs().amax(0)
        return float(torch.where(errors == 0, errors, errors / scale).max())


@in_standard_modes
def conservation_ledger(lrp: LRP, model: nn.Module, case: Case) -> ConservationLedger:
    """Compute the ledger of one attribution: one forward pass, and one backward pass for each example.

    The named causes are ε, constants, Eq. 5 and a product that is not halved; a rule that loses relevance for another
    reason leaves its loss unaccounted for.

    Raises:
        Unsupported: as ``lrp.attribute``; or an operation writes to an operand in a way that the ledger cannot follow;
            or a rule passes relevance on to another tensor than its operands.
    """
    recorder, output = lrp.propagate(model, case, LedgerRecorder)
    assert isinstance(recorder, LedgerRecorder)
    attribution = torch.zeros(case.shape, dtype=case.inputs.dtype, device=output.device)
    balances: list[list[ExampleBalance]] = []  # by example, then by operation
    for row in range(len(output)):
        attribution[row] = per_feature(case.inputs * recorder.backward(output[row]))[row]
        balances.append(recorder.balances())
    return _ledger(recorder, output, balances, attribution, case.special_tokens_mask)


@in_standard_modes
def ledger_of_batch(lrp: LRP, model: nn.Module, case: Case) -> ConservationLedger:
    """The ledger of the sum of a batch's explained outputs, as of one example: one forward and one backward pass.

    It has the sums of `conservation_ledger` over the examples, for a fraction of its cost. Arguments and errors as
    there.
    """
    recorder, output = lrp.propagate(model, case, LedgerRecorder)
    assert isinstance(recorder, LedgerRecorder)
    total = output.sum().unsqueeze(0)
    attribution = per_feature(case.inputs * recorder.backward(total[0])).sum(0, keepdim=True)
    return _ledger(recorder, total, [recorder.balances()], attribution)


def _ledger(
    recorder: LedgerRecorder,
    output: Tensor,
    balances: Sequence[Sequence[ExampleBalance]],
    attribution: Tensor,
    special_tokens_mask: Tensor | None = None,
) -> ConservationLedger:
    """The ledger from the balances, by example, then by operation."""
    start = output.detach().double()
    flows: dict[tuple[int | None, int | None], Tensor] = defaultdict(partial(torch.zeros_like, start))
    flows[None, recorder.producer_of(output)] += start
    operations = []
    for number, (operation, examples) in enumerate(zip(recorder.operations, zip(*balances, strict=True), strict=True)):
        for row, example in enumerate(examples):
            for operand, relevance in zip(operation.operands, example.passed_on, strict=True):
                flows[number, operand.producer][row] += relevance
        causes = dict.fromkeys(cause for example in examples for cause in example.losses)
        balance = OperationBalance(
            start.new_tensor([example.received for example in examples]),
            start.new_tensor([sum(example.passed_on) for example in examples]),
            {cause: start.new_tensor([example.losses.get(cause, 0.0) for example in examples]) for cause in causes},
            operation.call.name,
            operation.module,
            rule_name(operation.rule),
        )
        operations.append(balance)
    return ConservationLedger(tuple(operations), dict(flows), start, attribution, special_tokens_mask)


def _summed(losses: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    total: dict[str, Tensor] = {}
    for by_cause in losses:
        for cause, relevance in by_cause.items():
            total[cause] = total[cause] + relevance if cause in total else relevance
    return total


def _containing(module: str) -> tuple[str, ...]:
    """The module's name and the names of all modules that contain it: ``a.b`` gives ``"", "a", "a.b"``."""
    parts = module.split(".") if module else []
    return tuple(".".join(parts[:n]) for n in range(len(parts) + 1))
