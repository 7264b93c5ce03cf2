"""Names the constants of a forward pass: what parameters and buffers they are made of, or which module made them."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from faithcheck.explainers.lrp.propagation import Propagation
from faithcheck.explainers.modules import running_module, running_modules
from faithcheck.models.offloaded_weights import offloading_hooks, weights_of

POSITIONS = re.compile(r"position|pos_emb|\bwpe\b")
"""The names of parameters and buffers that are position embeddings, as transformers' models have them."""
HELD = "held constant"
"""The name of what is computed from the inputs, and held constant."""


class NamingConstants(Propagation):
    """A `Propagation` that knows the names of constants, tensors that carry no relevance."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # It holds the tensor beside its names: an id may be given to another tensor once the first is freed.
        self._constants: dict[int, tuple[Tensor, frozenset[str]]] = {}  # id of a constant → the constant, its names
        self.names: dict[int, str] = {}  # id of a module, parameter or buffer → its name
        self._parts: tuple[object, ...] = ()  # these, held: of one that is freed, another tensor may get the id
        self._offloaded: dict[nn.Module, tuple[str, Any]] = {}  # module → its name, and accelerate's hook

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = super().__torch_function__(func, types, args, kwargs)
        if self.module_operation is None:
            self._trace_constants(result, (args, kwargs))
        return result

    @contextmanager
    def treating_modules_as_operations(self, model: nn.Module) -> Iterator[None]:
        """As `Propagation` does; also learns the names of the model's modules, parameters and buffers."""
        parts = (*model.named_modules(), *model.named_parameters(), *model.named_buffers())
        self.names = {id(part): name.removesuffix(".weight") for name, part in parts}
        self._parts = tuple(part for _, part in parts)
        self._offloaded = {module: (name, hook) for name, module, hook in offloading_hooks(model)}
        with super().treating_modules_as_operations(model):
            yield

    def detach_parameter(self, parameter: Tensor) -> Tensor:
        """See `Propagation.detach_parameter`; the constant keeps the parameter's name."""
        constant = super().detach_parameter(parameter)
        self._constants[id(constant)] = (constant, self.constant_names(parameter))
        return constant

    def _trace_constants(self, result: Any, arguments: Any) -> None:
        """Name new constants after the parameters and buffers they are made of, or after the module that made them."""
        constants = [x for x in tree_leaves(result) if is_float(x) and not x.requires_grad]
        if constants:
            names = frozenset[str]().union(*(self.constant_names(x) for x in tree_leaves(arguments) if is_float(x)))
            for x in constants:
                self._constants[id(x)] = (x, names or frozenset({f"constant of {running_module()}"}))

    def constant_names(self, x: Tensor) -> frozenset[str]:
        """The names of what a constant is made of; none if it was made before the forward pass."""
        if self._offloaded and (name := self._name_while_running(x)):
            return frozenset({name})
        if id(x) in self._constants:
            return self._constants[id(x)][1]
        if id(x) in self.names:
            return frozenset({self.names[id(x)]})
        return frozenset({HELD} if x is self.point or not x.is_leaf else ())

    def _name_while_running(self, x: Tensor) -> str | None:
        """The name of a weight that is offloaded: another tensor whenever its module runs, as accelerate brings it."""
        for module in running_modules():
            if module in self._offloaded:
                name, hook = self._offloaded[module]
                for key, weight in weights_of(module, hook):
                    if weight is x:
                        return f"{name}.{key}".removeprefix(".").removesuffix(".weight")
        return None


def is_float(leaf: Any) -> bool:
    """Whether this is a floating-point tensor."""
    return isinstance(leaf, Tensor) and leaf.is_floating_point()
