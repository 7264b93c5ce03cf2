"""Dropout, in eval mode."""

from __future__ import annotations

from typing import Any

from faithcheck.explainers.lrp.operation_call import OperationCall
from faithcheck.explainers.lrp.operations import Trait, declare
from faithcheck.explainers.lrp.rules.rearrangements import gradient_rule


def dropout_rule(call: OperationCall) -> Any:
    """Dropout is the identity in eval mode."""
    if call.argument(2, "training", True) and call.argument(1, "p", 0.5) > 0:
        raise call.unsupported("no rule for dropout in train mode: call model.eval()")
    return gradient_rule(call)


declare("dropout", Trait.HOMOGENEOUS, rule=dropout_rule)
