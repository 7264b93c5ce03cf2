"""Records a forward pass for the conservation ledger.

1. Every operand of an operation is replaced by an alias, and so is every result.
2. So the gradient at an alias belongs to one operation alone, and relevance there is value × gradient.
3. A hook on each alias keeps that gradient in a numbered slot during the backward pass.
4. Constants are traced to the parameters that they are made of, so that the ledger can name what they lose.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from faithcheck.explainers.lrp.constant_names import NamingConstants, is_float
from faithcheck.explainers.lrp.operation_call import OperationCall, Rule, tensors_with_relevance
from faithcheck.explainers.lrp.recorded_operation import (
    ExampleBalance,
    Gradients,
    Operand,
    RecordedOperation,
    Result,
    writes_in_place,
)
from faithcheck.explainers.modules import running_module, running_modules


class LedgerRecorder(NamingConstants):
    """A `Propagation` that records the operands and results of every operation."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.operations: list[RecordedOperation] = []  # in the order of the forward pass
        self.gradients: Gradients = {}  # of the last backward pass, by slot
        self._producers: dict[Any, int | None] = {}  # autograd node → number of the operation; None: the inputs
        self._slots = 0
        # It holds the tensor beside its slot: an id may be given to another tensor once the first is freed.
        self._aliases: dict[int, tuple[Tensor, int]] = {}  # id of an alias → the alias, its slot

    def wrap_inputs(self, args: Any) -> Any:
        """The same arguments, with an alias for each operand that carries relevance."""
        return tree_map(self._operand_alias, args)

    def apply_rule(self, rule: Rule, call: OperationCall) -> Any:
        """Compute a call by its rule and record it; refuse a write to an operand other than the first."""
        if not torch.is_grad_enabled():  # the results carry no relevance
            return super().apply_rule(rule, call)
        target = call.args[0] if self.module_operation is None and writes_in_place(call) else None
        if self.module_operation is None:  # the inputs of a module were wrapped when it was entered
            args, kwargs = self.wrap_inputs(call.args), self.wrap_inputs(call.kwargs)
            call = replace(call, args=args, kwargs=kwargs)
        recorded, computed = self._recorded(rule, call), call
        if target is not None:  # the rule writes to a copy, which then overwrites the target
            self._copy_recorded_views_of(target)
            recorded.leaves[0] = recorded.leaves[0].clone()
            computed = replace(call, args=(call.args[0].clone(), *call.args[1:]))
        versions = [alias._version for alias in call.operands_with_relevance()]
        result = rule(computed)
        if callable(result):
            return self.apply_steps(result)
        if versions != [alias._version for alias in call.operands_with_relevance()]:
            raise call.unsupported("the ledger cannot follow a write to its operands: return a new tensor")
        self._refuse_detours(call, result)
        self._record_operands(recorded)
        self.operations.append(recorded)
        aliases = tree_map(partial(self._result_alias, recorded), computed.args[0] if result is None else result)
        if target is None:
            return aliases
        target.copy_(aliases)
        self._producers[target.grad_fn] = len(self.operations) - 1
        return None if result is None else target

    def backward(self, output: Tensor) -> Tensor:
        """One backward pass from a number, which fills `gradients`; the gradient at the inputs, shaped like them."""
        self.gradients.clear()
        (gradient,) = torch.autograd.grad(output, self.point, retain_graph=True)
        return gradient

    def balances(self) -> list[ExampleBalance]:
        """The balance of every operation, in the order of the forward pass, after one backward pass."""
        return [operation.balance(self.gradients) for operation in self.operations]

    def producer_of(self, output: Tensor) -> int | None:
        """The number of the operation that made the explained output; None: it is the inputs."""
        node = output.grad_fn
        while node not in self._producers:  # the selection of the target comes after the forward pass
            assert node is not None
            node = node.next_functions[0][0]
        return self._producers[node]

    def _recorded(self, rule: Rule, call: OperationCall) -> RecordedOperation:
        leaves, structure = tree_flatten((call.args, call.kwargs))
        detached = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        module = self.names.get(id(next(running_modules(), None)), "")
        own = call.operation if self.module_operation is None else self.module_operation
        return RecordedOperation(call, rule, module, own, detached, structure)

    def _record_operands(self, recorded: RecordedOperation) -> None:
        for place, leaf in enumerate(tree_leaves((recorded.call.args, recorded.call.kwargs))):
            if id(leaf) in self._aliases:
                _, slot = self._aliases[id(leaf)]
                recorded.operands.append(Operand(place, slot, self._producers[leaf.grad_fn]))
            elif is_float(leaf):
                names = " + ".join(sorted(self.constant_names(leaf)))
                recorded.constants[place] = names or f"constant of {running_module()}"

    def _operand_alias(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.requires_grad:
            return value
        alias = value.view_as(value)
        self._aliases[id(alias)] = (alias, self._keep_gradient(alias))
        made = value if value is self.point or value.grad_fn in self._producers else value._base
        assert made is not None  # a view of what was overwritten, see `refuse_hidden`
        self._producers[alias.grad_fn] = None if made is self.point else self._producers[made.grad_fn]
        self.visible.add(alias.grad_fn)
        return alias

    def _refuse_detours(self, call: OperationCall, result: Any) -> None:
        """Refuse a rule that takes several operations as one, as block-wise LRP does with chains of functions."""
        operands = {x.grad_fn for x in call.operands_with_relevance()}
        pending, seen = [x.grad_fn for x in tensors_with_relevance(result)], set(operands)
        while pending:
            node = pending.pop()
            if node is None or node in seen:
                continue
            if node in self._producers:
                raise call.unsupported(
                    "its rule takes several operations as one: the ledger follows each operation by itself"
                )
            seen.add(node)
            pending += [following for following, _ in node.next_functions]

    def _result_alias(self, recorded: RecordedOperation, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.requires_grad:
            return value
        # A view stays a view of what the model may write to; a new tensor stays one that is no view.
        alias = value.view_as(value) if value._is_view() else torch.ops.aten._unsafe_view(value, value.shape)
        # The slots are in this order: a hook that the rule has set on the value (the stabiliser) runs between the two.
        recorded.results.append(Result(value.detach(), self._keep_gradient(alias), self._keep_gradient(value)))
        self._producers[alias.grad_fn] = len(self.operations) - 1
        return alias

    def _keep_gradient(self, tensor: Tensor) -> int:
        """Keep the tensor's gradient in the next slot during each backward pass."""
        slot, gradients = self._slots, self.gradients
        self._slots += 1
        # The hook holds no tensor of the graph: the graph holds the hook, and neither would be freed.
        tensor.register_hook(lambda gradient: gradients.__setitem__(slot, gradient))  # type: ignore[no-untyped-call]
        return slot

    def _copy_recorded_views_of(self, target: Tensor) -> None:
        """Copy the recorded tensors that share the memory of a tensor which is about to be overwritten."""
        memory = target.untyped_storage().data_ptr()

        def copied(leaf: Any) -> Any:
            shared = isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() == memory
            return leaf.clone() if shared else leaf

        for operation in self.operations:
            operation.leaves = [copied(leaf) for leaf in operation.leaves]
            for result in operation.results:
                result.value = copied(result.value)
