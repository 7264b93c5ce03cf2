"""LRP methods with one wrong rule: every operation of a method's table, with each fault that its rule can have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch.utils._pytree import tree_map

from faithcheck.axioms.measure.record import Record
from faithcheck.axioms.measure.statuses import RED
from faithcheck.check import Check
from faithcheck.explainers.lrp.blockwise import BlockRules, Blockwise
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.operation_call import OperationCall, Rule
from faithcheck.explainers.lrp.recorded_operation import rule_name, writes_in_place
from faithcheck.explainers.lrp.rules.rearrangements import gradient_rule
from faithcheck.models.networks.operation_by_operation import PAIRS_OF_OPERATIONS
from faithcheck.models.pair import registered_pairs
from faithcheck.plan import plan
from faithcheck.request import Settings


def scaled(factor: float, rule: Rule, call: OperationCall) -> Any:
    """The rule, with the relevance that it passes on multiplied by a factor."""

    def scale(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.requires_grad:
            return value
        value = value.view_as(value)  # an operation may return its operand, which has other uses
        value.register_hook(lambda gradient: gradient * factor)
        return value

    result = rule(call)
    if callable(result):  # the operation in several steps
        return lambda: scale(result())
    if result is None or writes_in_place(call):
        call.args[0].register_hook(lambda gradient: gradient * factor)
        return result
    return tree_map(scale, result)


def left_out(rule: Rule, call: OperationCall) -> Any:
    """The operation as a constant; one that writes to its operand passes on zeros."""
    if writes_in_place(call) or callable(result := rule(call)):
        return scaled(0.0, rule, call)
    return tree_map(lambda value: value.detach() if isinstance(value, Tensor) else value, result)


def by_gradient(rule: Rule, call: OperationCall) -> Any:
    """The plain gradient: a product that is not halved, a function with its slope, a norm with its σ as data."""
    return gradient_rule(call)


FAULTS: dict[str, Callable[[Rule, OperationCall], Any]] = {
    "1 % too much": partial(scaled, 1.01),
    "twice as much": partial(scaled, 2.0),
    "with the other sign": partial(scaled, -1.0),
    "left out": left_out,
    "plain gradient": by_gradient,
}
NO_GRADIENT = ("identity_rule", "function_rule", "bilinear_rule", "product_rule", "quotient_rule", "layer_norm_rule")
NO_GRADIENT += ("rms_norm_rule", "rms_norm_module_rule", "first_operand_constant_rule")
"""The rules that differ from the plain gradient."""


@dataclass(frozen=True)
class RuleFault:
    """One wrong rule of an LRP method."""

    method: LRP
    operation: str
    fault: str

    @property
    def id(self) -> str:
        """``method-operation-fault``."""
        return f"{self.method.name}-{self.operation}-{self.fault}"

    @contextmanager
    def applied(self, name: str | None = None) -> Iterator[LRP]:
        """The method with the wrong rule, under a name of its own if one is given: what it expects is then gone too."""
        wrong = FAULTS[self.fault]

        def broken(table: dict[str, Rule]) -> dict[str, Rule]:
            return {**table, self.operation: partial(wrong, table[self.operation])}

        renamed = {"name": name} if name else {}
        if isinstance(self.method, Blockwise):
            correct = BlockRules.table
            with patch.object(BlockRules, "table", lambda rules: broken(correct(rules))):
                yield replace(self.method, **renamed, **({"expected": {}} if name else {}))
            return
        yield replace(self.method, rules=broken(dict(self.method.rules)), **renamed)


def rule_faults(method: LRP) -> list[RuleFault]:
    """Every operation of the method's table with every fault that its rule can have."""
    table = BlockRules().table() if isinstance(method, Blockwise) else method.rules
    return [
        RuleFault(method, operation, fault)
        for operation, rule in sorted(table.items())
        for fault in FAULTS
        if fault != "plain gradient" or rule_name(rule) in NO_GRADIENT
    ]


BY_CLAIMS = ("invariance", "balance")
BY_NAME = (*BY_CLAIMS, "conservation")


def red_by_claims(fault: RuleFault) -> list[str]:
    """The checks on the pairs of the operation that are red for the method under another name: by its claims alone."""
    with fault.applied(name="wrong") as wrong:
        return _red(records(wrong, fault.operation, BY_CLAIMS, Settings()))


def red_by_name(fault: RuleFault) -> list[str]:
    """The checks on the pairs of the operation that are red for the method under its own name."""
    with fault.applied() as wrong:
        return _red(records(wrong, fault.operation, BY_NAME, Settings()))


def records(lrp: LRP, operation: str, axioms: tuple[str, ...], settings: Settings) -> list[Record]:
    """The records of these axioms on the pairs of the operation."""
    return [check.run(settings) for check in checks(lrp, operation, axioms)]


def checks(lrp: LRP, operation: str, axioms: tuple[str, ...]) -> list[Check]:
    """The checks of these axioms on the pairs of the operation."""
    registered_pairs()
    pairs = PAIRS_OF_OPERATIONS.get(operation, [])
    return [check for axiom in axioms for check in plan(axiom, [lrp], pairs)]


def _red(records: list[Record]) -> list[str]:
    return [f"{record.axiom}/{record.subject}" for record in records if record.status in RED]
