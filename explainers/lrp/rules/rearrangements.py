"""Operations that move or select values, or change their sign: relevance goes where the gradient goes; dropout."""

from typing import Any

from faithcheck.explainers.lrp.operation_call import OperationCall, RuleTrait, has
from faithcheck.explainers.lrp.operations import Trait, declare


@has(RuleTrait.PLAIN_GRADIENT)
def gradient_rule(call: OperationCall) -> Any:
    """The plain gradient: for rearrangements and selections, and multiples by a constant."""
    return call.value()


def dropout_rule(call: OperationCall) -> Any:
    """Dropout is the identity in eval mode: its operand, as torch returns it."""
    if call.argument(2, "training", True) and call.argument(1, "p", 0.5) > 0:
        raise call.unsupported("no rule for dropout in train mode: call model.eval()")
    return call.argument(0, "input")


MOVED = (
    *("T", "mT", "H", "mH", "t", "adjoint", "view", "view_as", "reshape", "reshape_as", "transpose", "permute"),
    *("flatten", "unflatten", "ravel", "squeeze", "unsqueeze", "expand", "expand_as", "broadcast_to", "repeat", "tile"),
    *("repeat_interleave", "contiguous", "clone", "to", "type", "type_as", "float", "double", "getitem"),
    *("select", "narrow", "index_select", "gather", "take_along_dim", "split", "chunk", "unbind", "tensor_split"),
    *("cat", "stack", "hstack", "vstack", "roll", "flip", "movedim", "tril", "triu", "diagonal"),
    *("unfold", "view_as_complex", "view_as_real", "real", "imag", "as_strided"),
)
declare(" ".join(MOVED), Trait.REARRANGEMENT, rule=gradient_rule)
declare("pad masked_fill where scatter", Trait.REARRANGEMENT, Trait.FILLS, rule=gradient_rule)
declare("setitem masked_fill_ scatter_", Trait.REARRANGEMENT, Trait.FILLS, Trait.IN_PLACE, rule=gradient_rule)
declare("copy_", Trait.REARRANGEMENT, Trait.IN_PLACE, rule=gradient_rule)
# top-k routing: the values that are chosen carry relevance, and their indices are constants.
CHOICES = "max min amax amin maximum minimum max_pool1d max_pool2d topk"
declare(CHOICES, Trait.REARRANGEMENT, Trait.CHOICE, rule=gradient_rule)
declare("neg positive", Trait.REARRANGEMENT, Trait.ELEMENTWISE_AFFINE, rule=gradient_rule)
declare("relu abs", Trait.REARRANGEMENT, Trait.ONE_VALUE, rule=gradient_rule)
declare("dropout", Trait.HOMOGENEOUS, rule=dropout_rule)
