"""Record a forward pass for the readout gate: each layer's inputs, arguments, matrix products and output."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import is_
from typing import Any

from torch import Tensor, nn

from faithcheck.explainers.attention_observer import Place
from faithcheck.explainers.fast.linear_map import computing_linear_maps
from faithcheck.explainers.gates.attention_gates import GatedAttention
from faithcheck.explainers.gates.gate import is_long_text
from faithcheck.explainers.gates.gate_effects import rows_with_gradient
from faithcheck.explainers.lrp.operation_call import OperationCall
from faithcheck.explainers.lrp.operation_table import operations_with
from faithcheck.explainers.lrp.operations import Trait
from faithcheck.explainers.modules import module_in_words, running_module, transformer_layers
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models.case import Case

MATRIX_PRODUCTS = operations_with(Trait.MATRIX_PRODUCT)


@dataclass
class MatrixProduct:
    """A matrix product of two batches of data, and the gradients that the backward pass leaves here.

    The factors are ``(…, queries, ·)`` and ``(…, ·, keys)`` or ``(…, keys, ·)``. There are gradients for long texts'
    attention output only, and none in a first layer, below which no gradient is computed.
    """

    first: Tensor
    second: Tensor
    second_gradient: Tensor | None = None
    result_gradient: Tensor | None = None

    def detach(self, result: Tensor | None) -> None:
        """Release the graph; if the result is given, keep the gradients at it and at the second factor."""
        if result is not None and self.second.requires_grad:
            self.second.register_hook(partial(setattr, self, "second_gradient"))  # type: ignore[no-untyped-call]
            result.register_hook(partial(setattr, self, "result_gradient"))  # type: ignore[no-untyped-call]
        self.first, self.second = self.first.detach(), self.second.detach()


@dataclass
class RecordedLayer:
    """The inputs, products and output of one layer.

    Attributes:
        args: its positional arguments after the hidden states.
        hidden: the hidden states before it, ``(batch, positions, width)``.
        output: the hidden states after it.
        attention: which of the products gives the attention logits, and which the attention output.
        maps: the linear maps of the hidden states themselves, such as those to queries, keys and values where no norm
            comes before: weight, bias and result.
    """

    module: nn.Module
    place: Place
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    hidden: Tensor
    output: Tensor | None = None
    ends_in_layer_norm: bool = False
    products: list[MatrixProduct] = field(default_factory=list)
    attention: tuple[int, int] | None = None
    maps: list[tuple[Tensor, Tensor | None, Tensor]] = field(default_factory=list)

    def has_arguments_of(self, other: RecordedLayer) -> bool:
        """Whether the arguments after the hidden states are the same objects as another layer's."""
        own, others = (*self.args, *self.kwargs.values()), (*other.args, *other.kwargs.values())
        same_names = len(self.args) == len(other.args) and list(self.kwargs) == list(other.kwargs)
        return same_names and all(map(is_, own, others))


class LayerRecorder(GatedAttention):
    """Records the layers of a Transformer, with their attention, and the norm after the last layer.

    ``after_layers`` are modules after the last layer that keep the shape of the hidden states, each with its output; of
    those that call each other on the same states, the outermost.
    """

    operations = GatedAttention.operations | MATRIX_PRODUCTS

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.layers: list[RecordedLayer] = []
        self.after_layers: list[tuple[nn.Module, Tensor]] = []
        self.has_long_text = bool(is_long_text(case).any())
        self.before_layer: Tensor | None = None  # the hidden states that the running layer was called with

    @contextmanager
    def single_pass(self, model: nn.Module) -> Iterator[None]:
        """See `GateObserver.single_pass`; records the linear maps of hidden states."""
        with computing_linear_maps(model, lambda linear: setattr(self, "linear", partial(self.record_map, linear))):
            yield

    def record_map(
        self, linear: Callable[..., Tensor], input: Tensor, weight: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """A linear map, recorded if it is one of the hidden states before a layer."""
        result = linear(input, weight, bias)
        if input is self.before_layer:
            self.layers[-1].maps.append((weight, bias, result.detach()))
        return result

    def compute(self, call: OperationCall) -> Any:
        """See `AttentionObserver.compute`; records matrix products of data."""
        factors = matrix_product_of_data(call)
        result = super().compute(call)
        if self.layers and factors:
            layer, product = self.layers[-1], MatrixProduct(*factors)
            is_output = layer.attention is not None and len(layer.products) == layer.attention[1]
            at_output: Tensor | None = result if self.has_long_text and is_output else None
            product.detach(at_output)
            layer.products.append(product)
        return result

    def attend(self, logits: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        """See `AttentionObserver.attend`; the product before gave the logits, and the next one gives the output."""
        if not self.layers or self.layers[-1].attention or not self.layers[-1].products:
            raise Unsupported(
                f"softmax in {running_module()}: expected one attention in each layer, its logits a matrix product of "
                "queries and keys; take finite_mask_gate"
            )
        next_product = len(self.layers[-1].products)
        self.layers[-1].attention = (next_product - 1, next_product)
        return super().attend(logits, softmax)

    @contextmanager
    def recording(self, model: nn.Module) -> Iterator[None]:
        """Record which layer runs, by hooks that are removed at the end."""

        def before_layer(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not args:
                raise Unsupported(f"forward in {running_module()}: expected the hidden states as its first argument")
            place = partial(module_in_words, model, module)
            self.layers.append(RecordedLayer(module, place, args[1:], kwargs, args[0].detach()))
            self.before_layer, self.after_layers = args[0], []

        def after_layer(module: nn.Module, args: Any, output: Any) -> None:
            layer, states, self.before_layer = self.layers[-1], hidden_states(output), None
            layer.output = states
            layer.ends_in_layer_norm = is_from_layer_norm(states)

        def after_other_module(module: nn.Module, args: Any, output: Any) -> None:
            states = self.last_states if self.layers else None
            if states is None or not args or not self.is_after_layers(args[0]):  # asked first: a shape takes longer
                return
            if getattr(output, "shape", ()) != states.shape:
                return
            before = self.after_layers
            while before and args[0] is not states and is_within(before[-1][0], module):
                before = before[:-1]  # the module calls this one, as an adapter calls the map that it stands beside
                states = before[-1][1] if before else self.layers[-1].output
            if args[0] is states:
                self.after_layers = [*before, (module, output)]

        layers = dict.fromkeys(transformer_layers(model))
        handles: list[Any] = []
        try:
            for layer in layers:
                handles += [
                    layer.register_forward_pre_hook(before_layer, with_kwargs=True),
                    layer.register_forward_hook(after_layer),
                ]
            handles += [module.register_forward_hook(after_other_module) for module in modules_outside(model, layers)]
            with self.single_pass(model):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def is_after_layers(self, states: object) -> bool:
        """Whether these are the hidden states after the last layer, or after a module behind it."""
        return states is self.layers[-1].output or any(states is output for _, output in self.after_layers)

    @property
    def last_states(self) -> Tensor | None:
        """The last hidden states, ``(batch, positions, width)``, after a final norm; None within a layer."""
        return self.after_layers[-1][1] if self.after_layers else self.layers[-1].output


def is_within(inner: nn.Module, outer: nn.Module) -> bool:
    """Whether a module is among another one's submodules."""
    return any(module is inner for module in outer.modules())


def modules_outside(module: nn.Module, layers: Collection[nn.Module]) -> Iterator[nn.Module]:
    """The module and its submodules, without the layers and their submodules."""
    yield module
    for child in module.children():
        if child not in layers:
            yield from modules_outside(child, layers)


def is_from_layer_norm(states: Tensor) -> bool:
    """Whether a LayerNorm computed these states: at once, in chunks that were concatenated, or γ and β behind it."""
    node = states.grad_fn
    while node is not None and node.name() in ("CatBackward0", "MulBackward0", "AddBackward0"):
        operands = [operand for operand, _ in node.next_functions if not is_vector_of_weights(operand)]
        if node.name() != "CatBackward0" and len(operands) > 1:  # a residual connection, or a gate
            return False
        node = operands[0] if operands else None
    return node is not None and node.name() == "NativeLayerNormBackward0"


def is_vector_of_weights(node: Any) -> bool:
    """Whether an operand, by its node in autograd's graph, is a constant or a vector of weights, as γ and β are."""
    return node is None or (hasattr(node, "variable") and node.variable.dim() < 2)


def hidden_states(output: Any) -> Tensor:
    """The hidden states that a layer returns, alone or as the first of several values; else Unsupported."""
    states = output[0] if isinstance(output, tuple | list) and output else output
    if not isinstance(states, Tensor):
        raise Unsupported(
            f"forward in {running_module()}: it returns {type(states).__name__} and no hidden states: take "
            "finite_mask_gate"
        )
    return states


def matrix_product_of_data(call: OperationCall) -> tuple[Tensor, Tensor] | None:
    """The factors of a matrix product of two batches; None for any other operation.

    Raises Unsupported for an einsum, whose factors may be in any order.
    """
    if call.name not in MATRIX_PRODUCTS:
        return None
    if call.name == "einsum":
        raise call.unsupported(
            "attention by einsum: the readout gate knows matrix products alone; take finite_mask_gate"
        )
    second = call.argument(1, "other", call.kwargs.get("mat2"))
    return (call.argument(0, "input"), second) if second.dim() > 2 else None


def readout_position(gradient: Tensor) -> Tensor:
    """The readout row ``(batch,)``, by the gradient at the last states ``(batch, positions, width)``; 0 without one.

    Raises Unsupported if the output is read at several positions.
    """
    read = rows_with_gradient(gradient.abs().amax(-1))
    counts = read.sum(1)
    if (counts > 1).any():
        raise Unsupported(
            f"forward in the model: the output is read at {int(counts.max())} positions: the readout gate needs one; "
            "take finite_mask_gate"
        )
    return read.byte().argmax(1)
