"""Two savings in the first and the last layer of a Transformer, by hooks on their linear maps.

First layer: rows whose tokens were removed by the attention mask enter it alike. Its maps to queries, keys and values
run on one row, which stands for all.

Last layer: most models read one token of its output. After its attention, each operation treats a token by itself, so
the linear maps take the token that is read alone. What is added to a state of all tokens is then broadcast, which is
right at the token that is read. The other tokens become NaN, so that a model that reads one of them gives NaN, not a
wrong number.

Plain twin: the same layers without the hooks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from faithcheck.explainers.fast.fused_attention import fused_attention
from faithcheck.explainers.modules import outermost_layers


@contextmanager
def spared_outer_layers(model: nn.Module, read: Tensor | None) -> Iterator[None]:
    """Within the block, the first and the last layer compute less, and eager attention is fused.

    ``read``, ``(rows,)``, is the position of the token that is read in each row; None: it is not known.
    """
    layers = list(outermost_layers(model) or ())
    first, last = FirstLayer(), LastLayer(read)
    handles: list[Any] = []

    def attended() -> None:
        first.is_attended = last.is_attended = True

    try:
        if layers:
            handles += first.hooks(layers[0])
        if read is not None and len(layers) > 1:
            handles += last.hooks(layers[-1])
        with fused_attention(attended):
            yield
    finally:
        for handle in handles:
            handle.remove()


def linear_maps(layer: nn.Module) -> Iterator[nn.Module]:
    """The modules of a layer that map each token by itself: torch's linear map and GPT-2's, whose weight lies across.

    Not their subclasses, which may do something else.
    """
    for module in layer.modules():
        if type(module) is nn.Linear or type(module).__qualname__ == "Conv1D":
            yield module


class FirstLayer:
    """Runs the linear maps before the first layer's attention on one row, where all rows are equal."""

    def __init__(self) -> None:
        self.is_attended, self.rows = False, 1

    def hooks(self, layer: nn.Module) -> Iterator[Any]:
        """Put the hooks on the layer; yields their handles."""
        yield layer.register_forward_pre_hook(self.enter)
        for linear in linear_maps(layer):
            yield linear.register_forward_pre_hook(self.before)
            yield linear.register_forward_hook(self.after)

    def enter(self, layer: nn.Module, arguments: Any) -> None:
        """The layer begins."""
        self.is_attended = False

    def before(self, linear: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """One row in place of equal ones."""
        self.rows = 1
        if self.is_attended or not torch.equal(arguments[0], arguments[0][:1].expand_as(arguments[0])):
            return None
        self.rows = len(arguments[0])
        return (arguments[0][:1],)

    def after(self, linear: nn.Module, arguments: Any, output: Tensor) -> Tensor | None:
        """All rows again, which share memory."""
        return output.expand(self.rows, *output.shape[1:]) if self.rows > 1 else None


class LastLayer:
    """Runs the linear maps after the last layer's attention on the tokens that are read, ``(rows,)``."""

    def __init__(self, read: Tensor | None) -> None:
        self.is_attended, self.read, self.tokens = False, read, 0

    def hooks(self, layer: nn.Module) -> Iterator[Any]:
        """Put the hooks on the layer; yields their handles."""
        yield layer.register_forward_pre_hook(self.enter, with_kwargs=True)
        for linear in linear_maps(layer):
            yield linear.register_forward_pre_hook(self.before)
        yield layer.register_forward_hook(self.leave)

    def enter(self, layer: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """The layer begins."""
        states = arguments[0] if arguments else named["hidden_states"]
        self.is_attended, self.tokens = False, states.shape[1]

    def before(self, linear: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """The tokens that are read, ``(rows, 1, width)``, in place of all."""
        is_whole = arguments[0].dim() == 3 and arguments[0].shape[1] == self.tokens > 1
        return (self.chosen(arguments[0]).unsqueeze(1),) if self.is_attended and is_whole else None

    def leave(self, layer: nn.Module, arguments: Any, output: Any) -> Any:
        """The states, with NaN at the tokens that are not read."""
        states = output if isinstance(output, Tensor) else output[0]
        unread = torch.full_like(states, torch.nan)
        unread[torch.arange(len(states)), self.read] = self.chosen(states)
        return unread if isinstance(output, Tensor) else (unread, *output[1:])

    def chosen(self, states: Tensor) -> Tensor:
        """The tokens that are read, ``(rows, width)``, of all ``(rows, tokens, width)``."""
        return states[torch.arange(len(states)), self.read]
