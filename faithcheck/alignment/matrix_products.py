"""The floating-point operations of matrix products: a cost that does not depend on the machine or the moment."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class MatrixProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of torch
    """Counts the ``operations`` of torch's matrix products and convolutions, backward too: 2·n·k·m for n×k by k×m."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: int = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Compute the operation, and count it."""
        result = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        if (own := _FURTHER.get(str(packet))) is not None:
            self.operations += own(*args)
        elif (count := flop_registry.get(packet)) is not None:
            self.operations += int(count(*args, **(kwargs or {}), out_val=result))
        return result


def _linear(inputs: Tensor, weight: Tensor, *_: Any) -> int:
    return 2 * inputs.numel() * weight.shape[0]


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> int:
    """Both products, ``(…, queries, width)`` with the keys and the weights with the values."""
    rows = prod(query.shape[:-1])
    return 2 * rows * key.shape[-2] * (query.shape[-1] + value.shape[-1])


# Fused operations on the CPU, which torch's own table does not have.
_FURTHER: dict[str, Callable[..., int]] = {
    "mkldnn._linear_pointwise": _linear,
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention,
}
