"""Dropout, in eval mode."""

from typing import Any

from faithcheck.explainers.lrp.operation_call import OperationCall
from faithcheck.explainers.lrp.operations import Trait, declare


def dropout_rule(call: OperationCall) -> Any:
    """Dropout is the identity in eval mode: its operand, as torch returns it."""
    if call.argument(2, "training", True) and call.argument(1, "p", 0.5) > 0:
        raise call.unsupported("no rule for dropout in train mode: call model.eval()")
    return call.argument(0, "input")


declare("dropout", Trait.HOMOGENEOUS, rule=dropout_rule)
