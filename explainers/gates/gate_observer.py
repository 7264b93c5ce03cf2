"""What all gates in the attention share: an observer of attention that follows the mask and computes linear maps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from faithcheck.explainers.attention_observer import AttentionObserver
from faithcheck.explainers.fast.linear_map import computing_linear_maps
from faithcheck.explainers.gates.followed_mask import FollowedMask
from faithcheck.explainers.lrp.operation_call import OperationCall
from faithcheck.explainers.lrp.operations import operation_name
from faithcheck.explainers.lrp.rules.rearrangements import dropout_rule
from faithcheck.explainers.modules import running_module
from faithcheck.models.case import Case


class GateObserver(AttentionObserver):
    """An `AttentionObserver` of a model in eval mode.

    It follows the ``mask``, if one is given: a mode of its own would see every operation a second time.
    """

    operations = AttentionObserver.operations | {"dropout"}

    def __init__(self, case: Case, mask: FollowedMask | None = None) -> None:
        super().__init__(case)
        self.mask = mask
        self.linear: Callable[..., Tensor] | None = None  # in place of torch's, see `single_pass`

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = operation_name(func)
        if self.mask is not None and self.mask.is_among(args):
            func = partial(self.mask.compute, func)
        elif name == "linear" and self.linear is not None:
            func = self.linear
        if name not in self.operations:
            return func(*args, **(kwargs or {}))
        return self.compute(OperationCall(name, func, args, kwargs or {}, 0.0, running_module))

    def compute(self, call: OperationCall) -> Any:
        """See `AttentionObserver.compute`; refuses dropout in train mode, which is random."""
        return dropout_rule(call) if call.name == "dropout" else super().compute(call)

    @contextmanager
    def single_pass(self, model: nn.Module) -> Iterator[None]:
        """Within the block, linear maps are those of `computing_linear_maps`, for one backward pass."""
        with computing_linear_maps(model, partial(setattr, self, "linear")):
            yield
