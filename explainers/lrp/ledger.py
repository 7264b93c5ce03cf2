"""The conservation ledger: where the relevance of one LRP attribution went, operation by operation.

Every operation on the way receives relevance at its results and passes relevance on to its operands. What it does not
pass on is named: bias, ε, softmax (Eq. 5 of arXiv 2510.18810 is not conservative), LayerNorm's β, constants that are
added (position and type embeddings, a class token), mask, an activation at 0, what a cast rounds off. So the ledger
balances to the precision of the model: relevance that starts = relevance at the inputs + Σ of named losses, for each
example.

How it is kept: every operand is lent to the rule as an alias and every result is handed on as one, so that the
gradient at an alias is that operation's own; relevance is value × gradient. The named losses are computed from their
own formulas, not as what the rule left out, so that a rule that loses relevance otherwise, an activation's plain
gradient included, leaves something unaccounted for. So does round-off, but at a cast, where it has a formula.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from faithcheck.explainers.lrp.engine import LRP, Propagation
from faithcheck.explainers.lrp.rules import (
    LINEAR,
    MATRIX_PRODUCTS,
    MULTIPLES,
    REARRANGEMENTS,
    SUMS,
    OperationCall,
    Rule,
    identity_rule,
    layer_norm_rule,
    quotient_rule,
    rms_norm_module_rule,
    rms_norm_rule,
    tensors_with_relevance,
)
from faithcheck.explainers.protocol import per_feature
from faithcheck.models.case import Case

PRODUCTS = frozenset({*MATRIX_PRODUCTS, *MULTIPLES, "rdiv"})
ADDITIVE = frozenset({*SUMS, *REARRANGEMENTS})
KEEPING = frozenset({*LINEAR, "batch_norm", "softmax"})  # affine, or Eq. 5: their own gradient keeps a named part
WRITING = frozenset({"setitem", "iadd", "isub", "imul", "itruediv"})  # and any name that ends in one underscore
NUMBERS = frozenset({"add", "sub", "rsub", "add_", "iadd", "sub_", "isub"}) | {
    *("masked_fill", "masked_fill_", "where", "pad", "setitem")
}
HELD = "held constant"
MASK = "mask"
MASKED = -1e4  # what is added to a logit, or replaces it, is a mask if it is below


@dataclass(frozen=True)
class OperationBalance:
    """What one operation received and passed on; tensors are ``(batch,)``, float64.

    Attributes:
        operation: its key in the table of rules.
        module: the module whose forward pass ran it, by the model's name for it; ``""`` is the model itself.
        rule: the name of its rule.
        received: relevance at its results.
        passed_on: relevance that its operands got from it.
        losses: the named causes of the difference.
    """

    operation: str
    module: str
    rule: str
    received: Tensor
    passed_on: Tensor
    losses: Mapping[str, Tensor]

    @property
    def lost(self) -> Tensor:
        """Received − passed on."""
        return self.received - self.passed_on

    @property
    def unaccounted(self) -> Tensor:
        """What is lost and has no name: round-off, or a rule that loses relevance by itself."""
        return self.lost - sum(self.losses.values(), torch.zeros_like(self.received))


@dataclass(frozen=True)
class Layer:
    """What a module received from outside and passed on to outside; as `OperationBalance`.

    Attributes:
        name: the module, by the model's name for it; ``""`` is the model itself.
        received: relevance at the module's results that came from operations outside.
        passed_on: relevance that operands from outside got.
        losses: what its operations lost, by cause.
    """

    name: str
    received: Tensor
    passed_on: Tensor
    losses: Mapping[str, Tensor]


@dataclass(frozen=True)
class ConservationLedger:
    """The accounts of one attribution, for each example on its own.

    Attributes:
        entries: the operations that carry relevance, in the order of the forward pass.
        flows: ``{(above, below): (batch,)}``, the relevance that entry ``above`` passed on to entry ``below``; None
            above is the explained output, None below are the inputs.
        start: ``(batch,)``, the explained output: relevance starts as it.
        attribution: ``(batch, features)``, that of the explainer.
        special: ``(batch, features)`` bool, special tokens, where the case says which.
    """

    entries: tuple[OperationBalance, ...]
    flows: Mapping[tuple[int | None, int | None], Tensor]
    start: Tensor
    attribution: Tensor
    special_tokens_mask: Tensor | None = None

    @property
    def at_features(self) -> Tensor:
        """Relevance of the features that are not special, ``(batch,)``."""
        return self.attribution.double().sum(1) - self.at_special

    @property
    def at_special(self) -> Tensor:
        """Relevance of special tokens, such as [CLS] and [SEP], ``(batch,)``."""
        if self.special_tokens_mask is None:
            return torch.zeros_like(self.start)
        return self.attribution.double().masked_fill(~self.special_tokens_mask, 0).sum(1)

    @property
    def destinations(self) -> dict[str, Tensor]:
        """Where relevance ended, ``(batch,)`` each: features, special tokens and every cause; they sum to `start`."""
        special = {} if self.special_tokens_mask is None else {"special tokens": self.at_special}
        return {"features": self.at_features, **special, **self.by_cause()}

    def by_cause(self) -> dict[str, Tensor]:
        """What was lost, by cause, ``(batch,)`` each."""
        return _summed(entry.losses for entry in self.entries)

    def by_layer(self) -> dict[str, Layer]:
        """Every module that an operation ran in, and those around it, ``""`` the model, in the order of the run."""
        names = dict.fromkeys(name for entry in self.entries for name in _around(entry.module))
        received, passed_on = ({name: torch.zeros_like(self.start) for name in names} for _ in range(2))
        for (above, below), relevance in self.flows.items():
            there, here = (() if n is None else _around(self.entries[n].module) for n in (above, below))
            for name in set(here) - set(there):
                received[name] = received[name] + relevance
            for name in set(there) - set(here):
                passed_on[name] = passed_on[name] + relevance
        return {
            name: Layer(
                name,
                received[name],
                passed_on[name],
                _summed(entry.losses for entry in self.entries if name in _around(entry.module)),
            )
            for name in names
        }

    @property
    def balance(self) -> Tensor:
        """What starts − what is at the inputs − the named losses, ``(batch,)``: 0 but for round-off."""
        return self.start - sum(self.destinations.values(), torch.zeros_like(self.start))

    @property
    def gap(self) -> float:
        """The largest of `balance` and of every entry's `unaccounted`, relative to the example's largest relevance.

        That is the largest relevance that an operation received or passed on, the start included.
        """
        sizes = [self.start, *(r for e in self.entries for r in (e.received, e.passed_on))]
        errors = torch.stack([self.balance, *(entry.unaccounted for entry in self.entries)]).abs().amax(0)
        scale = torch.stack(sizes).abs().amax(0)
        return float(torch.where(errors == 0, errors, errors / scale).max())


def conservation_ledger(lrp: LRP, model: nn.Module, case: Case) -> ConservationLedger:
    """Keep the ledger of one attribution: one forward pass, and a backward pass an example.

    Args:
        lrp: any table of rules, any ε. A rule that loses relevance otherwise than by ε, constants, Eq. 5 or a product
            that is not halved leaves what it loses unaccounted for.
        model: as for ``lrp.attribute``; nothing is left on it.
        case: its examples, each with accounts of its own.

    Raises:
        Unsupported: as ``lrp.attribute``; or an operation writes to an operand in a way that is not followed here.
    """
    books, output = lrp.propagate(model, case, Bookkeeper)
    assert isinstance(books, Bookkeeper)
    rows, pages, attribution = len(output), [], torch.zeros(case.shape, dtype=case.inputs.dtype, device=output.device)
    for row in range(rows):
        books.gradients.clear()
        (gradient,) = torch.autograd.grad(output[row], books.point, retain_graph=row + 1 < rows)
        attribution[row] = per_feature(case.inputs * gradient)[row]
        pages.append([record.account(books.gradients) for record in books.records])
    start, last = output.detach().double(), output.grad_fn
    while last not in books.producers:  # what picks the explained output
        assert last is not None
        last = last.next_functions[0][0]
    flows: dict[tuple[int | None, int | None], Tensor] = defaultdict(partial(torch.zeros_like, start))
    flows[None, books.producers[last]] += start
    entries = []
    for number, record in enumerate(books.records):
        accounts = [page[number] for page in pages]
        for row, account in enumerate(accounts):
            for operand, relevance in zip(record.operands, account.passed_on, strict=True):
                flows[number, operand.producer][row] += relevance
        entries.append(record.entry(accounts, start))
    return ConservationLedger(tuple(entries), dict(flows), start, attribution, case.special_tokens_mask)


def _summed(losses: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    total: dict[str, Tensor] = {}
    for one in losses:
        for cause, relevance in one.items():
            total[cause] = total[cause] + relevance if cause in total else relevance
    return total


def _around(module: str) -> tuple[str, ...]:
    """The module's name and those of all modules around it: ``a.b`` gives ``"", "a", "a.b"``."""
    parts = module.split(".") if module else []
    return tuple(".".join(parts[:n]) for n in range(len(parts) + 1))


# --- what the forward pass leaves behind -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Operand:
    """An operand that carries relevance: its place among the arguments, and who computed it (None: the inputs)."""

    leaf: int
    slot: int
    producer: int | None


@dataclass
class Result:
    """A result: its value, and the slots of its gradient before and after the rule's stabiliser."""

    value: Tensor
    before: int
    after: int


@dataclass(frozen=True)
class Account:
    """One operation in one example."""

    received: float
    passed_on: list[float]
    losses: dict[str, float]


Gradients = dict[int, Tensor]


@dataclass
class Record:
    """One operation as it ran: enough to run it again, and to say what its gradients mean.

    ``leaves`` are its flattened arguments, detached; ``origins`` says where constants among them come from.
    """

    call: OperationCall
    rule: Rule
    module: str
    again: Callable[..., Any]
    leaves: list[Any]
    structure: Any
    operands: list[Operand] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    origins: dict[int, str] = field(default_factory=dict)

    def account(self, gradients: Gradients) -> Account:
        """Settle this operation, given the gradients of one example's backward pass."""
        received = sum(float(relevance(r.value, gradients.get(r.before)).sum()) for r in self.results)
        passed_on = [float(relevance(self.leaves[o.leaf], gradients.get(o.slot)).sum()) for o in self.operands]
        losses: dict[str, float] = defaultdict(float)
        reached = [r for r in self.results if r.before in gradients and gradients[r.before].any()]
        if reached:
            active = [o for o in self.operands if o.slot in gradients]
            parts = len(active) if self.call.name in PRODUCTS else 1
            for result in reached:
                cause, share = self._at_stabiliser(result, gradients, parts)
                losses[cause] += share
            for cause, share in self._constants(active, gradients).items():
                losses[cause] += share
        return Account(received, passed_on, {cause: share for cause, share in losses.items() if share != 0})

    def entry(self, accounts: Sequence[Account], like: Tensor) -> OperationBalance:
        """The accounts of all examples as one entry."""
        causes = dict.fromkeys(cause for account in accounts for cause in account.losses)
        return OperationBalance(
            self.call.name,
            self.module,
            name_of(self.rule),
            like.new_tensor([account.received for account in accounts]),
            like.new_tensor([sum(account.passed_on) for account in accounts]),
            {cause: like.new_tensor([account.losses.get(cause, 0.0) for account in accounts]) for cause in causes},
        )

    def _at_stabiliser(self, result: Result, gradients: Gradients, parts: int) -> tuple[str, float]:
        """What ε keeps: R·ε/(parts·|z| + ε), |z| for z + ε·sign z, of R received; or what an unhalved product adds."""
        arrived = relevance(result.value, gradients[result.before])
        epsilon = self.call.epsilon
        if torch.equal(gradients[result.before], gradients[result.after]):
            return f"{self.call.name} not halved", (1 - parts) * float(arrived.sum())
        if epsilon == 0:
            return "ε", 0.0
        size = result.value.double()
        size = size.abs() if self.call.signed else size
        return "ε", float((arrived * (epsilon / (parts * size + epsilon))).sum())

    def _constants(self, active: list[Operand], gradients: Gradients) -> dict[str, float]:
        """What constants, or the operation's own curvature, keep of what the stabiliser lets through."""
        rule = self.rule.func if isinstance(self.rule, partial) else self.rule
        if rule in (identity_rule, rms_norm_module_rule):
            at_zero = self.leaves[active[0].leaf] == 0
            (result,) = self.results
            return {"activation at 0": float(relevance(result.value, gradients[result.after])[at_zero].sum())}
        if rule is layer_norm_rule:
            beta = self.call.argument(3, "bias")
            (result,) = self.results
            return {} if beta is None else {"LayerNorm β": float(relevance(beta, gradients[result.after]).sum())}
        if rule in (rms_norm_rule, quotient_rule) or self.call.name in PRODUCTS:
            return {}
        return self._own_gradient(active, gradients)

    def _own_gradient(self, active: list[Operand], gradients: Gradients) -> dict[str, float]:
        """What the operation's own gradient does not pass on, whatever the rule passes, by running it again."""
        name, passing = self.call.name, {operand.leaf for operand in active}
        dtypes = {value.dtype for value in (*(self.leaves[i] for i in passing), *(r.value for r in self.results))}
        others = [i for i, leaf in enumerate(self.leaves) if is_float(leaf) and i not in passing]
        numbers = added_numbers(self.call)
        if name not in KEEPING and not (name in ADDITIVE and (others or numbers or len(dtypes) > 1)):
            return {}
        if name in LINEAR:
            bias = self.leaf_of(self.call.argument(0, "input") if "addmm" in name else self.call.argument(2, "bias"))
            if bias not in passing:
                return {} if bias is None else {"bias": self.shares({bias}, gradients)[bias]}
        through = sum(float(relevance(r.value, gradients.get(r.after)).sum()) for r in self.results)
        if name in KEEPING:
            return {name: through - sum(self.shares(passing, gradients).values())}
        shares = self.shares({*passing, *others}, gradients)
        rest = through - sum(shares.values())
        losses: dict[str, float] = defaultdict(float)
        for leaf in others:
            losses[MASK if is_mask(self.leaves[leaf]) else self.origins.get(leaf, HELD)] += shares[leaf]
        if numbers:
            losses[MASK if any(number <= MASKED for number in numbers) else f"number in {name}"] += rest
        elif len(dtypes) > 1:  # a cast: its gradient is rounded to the coarser type
            coarsest = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
            losses[f"{str(coarsest).removeprefix('torch.')} round-off"] += rest
        return losses

    def leaf_of(self, argument: Any) -> int | None:
        """The place of an argument among the leaves."""
        flat = tree_leaves((self.call.args, self.call.kwargs))
        return next((i for i, leaf in enumerate(flat) if leaf is argument and isinstance(leaf, Tensor)), None)

    @torch.enable_grad()
    def shares(self, wanted: set[int], gradients: Gradients) -> dict[int, float]:
        """Value × the operation's own gradient, for these operands, constants among them, by their leaf."""
        floats = {i: self.leaves[i].detach().requires_grad_() for i in sorted(wanted)}
        args, kwargs = tree_unflatten([floats.get(i, leaf) for i, leaf in enumerate(self.leaves)], self.structure)
        if writes(self.call):  # not to a leaf
            args = (args[0].clone(), *args[1:])
        result = self.again(*args, **kwargs)
        outputs = tensors_with_relevance(args[0] if result is None else result)
        given = [gradients.get(r.after) for r in self.results]
        if [output.shape for output in outputs] != [r.value.shape for r in self.results]:
            raise self.call.unsupported("run again, it does not give what it gave: the ledger cannot follow it")
        pairs = [(o, g) for o, g in zip(outputs, given, strict=True) if g is not None]
        found = torch.autograd.grad(
            [output for output, _ in pairs], list(floats.values()), [g for _, g in pairs], allow_unused=True
        )
        return {i: float(relevance(self.leaves[i], g).sum()) for i, g in zip(floats, found, strict=True)}


def relevance(value: Tensor, gradient: Tensor | None) -> Tensor:
    """Value × gradient in float64; 0 where the gradient is 0, at a logit masked by −∞ too."""
    if gradient is None:
        return torch.zeros((), dtype=torch.float64, device=value.device)
    product = value.detach().double() * gradient.double()
    return product.masked_fill(gradient == 0, 0)


def is_float(leaf: Any) -> bool:
    """Whether this is a floating-point tensor."""
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def is_mask(constant: Tensor) -> bool:
    """Whether this constant is 0 where it lets logits through and very negative where it masks."""
    masked = constant <= MASKED
    return bool((masked | (constant == 0)).all() and masked.any())


def added_numbers(call: OperationCall) -> list[float]:
    """Python numbers other than 0 that this operation adds, or puts in a value's place."""
    if call.name not in NUMBERS:
        return []
    first = 2 if call.name == "setitem" else 1  # behind its index
    values = (*call.args[first:4], call.kwargs.get("other"), call.kwargs.get("value"))
    return [value for value in values if isinstance(value, float | int) and value != 0]


def name_of(rule: Rule) -> str:
    """A rule's name."""
    if isinstance(rule, partial):
        return name_of(rule.func)
    return getattr(rule, "__name__", type(rule).__name__)


def writes(call: OperationCall) -> bool:
    """Whether the operation writes to its first operand."""
    inplace = call.name.endswith("_") or call.name in WRITING
    return inplace or bool(call.kwargs.get("inplace"))


# --- the forward pass ------------------------------------------------------------------------------------------------


class Bookkeeper(Propagation):
    """A `Propagation` that records what every operation is given and gives. Arguments as there."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.records: list[Record] = []
        self.gradients: Gradients = {}  # of the last backward pass, by slot
        self.producers: dict[Any, int | None] = {}  # autograd node → number of the record; None: the inputs
        self._slots = 0
        self._lent: dict[int, tuple[Tensor, int]] = {}  # alias and slot by the alias's id; held, as an id may come back
        self._origins: dict[int, tuple[Tensor, frozenset[str]]] = {}  # of constants; held for the same reason
        self._names: dict[int, str] = {}  # of modules, parameters and buffers

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = super().__torch_function__(func, types, args, kwargs)
        if self.atom is None:
            self._trace(result, (args, kwargs))
        return result

    @contextmanager
    def following(self, model: nn.Module) -> Iterator[None]:
        """See `Propagation.following`; also learns what the parts of the model are called."""
        parts = (*model.named_modules(), *model.named_parameters(), *model.named_buffers())
        self._names = {id(part): name.removesuffix(".weight") for name, part in parts}
        with super().following(model):
            yield

    def lend(self, args: Any) -> Any:
        """The same arguments, an alias for each operand that carries relevance."""
        return tree_map(self._alias, args)

    def apply(self, rule: Rule, call: OperationCall) -> Any:
        """Compute a call by its rule and record it.

        Raises:
            Unsupported: from the rule; or the operation writes to an operand that is not its first.
        """
        if not torch.is_grad_enabled():  # nothing carries relevance from here
            return super().apply(rule, call)
        target = call.args[0] if self.atom is None and writes(call) else None
        if self.atom is None:  # an atom's arguments were lent when it was entered
            call = replace(call, args=self.lend(call.args), kwargs=self.lend(call.kwargs))
        leaves, structure = tree_flatten((call.args, call.kwargs))
        leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        given = call
        if target is not None:  # computed on a copy, which then overwrites it
            self._keep(target)
            leaves[0] = leaves[0].clone()
            given = replace(call, args=(call.args[0].clone(), *call.args[1:]))
        versions = [alias._version for alias in call.operands_with_relevance()]
        result = rule(given)
        if callable(result):
            return self.written_out(result)
        if versions != [alias._version for alias in call.operands_with_relevance()]:
            raise call.unsupported("the ledger cannot follow a write to its operands: return a new tensor")
        module = self._names.get(id(self.modules[-1]), "") if self.modules else ""
        record = Record(call, rule, module, call.operation if self.atom is None else self.atom, leaves, structure)
        for place, leaf in enumerate(tree_leaves((call.args, call.kwargs))):
            if id(leaf) in self._lent:
                record.operands.append(Operand(place, self._lent[id(leaf)][1], self.producers[leaf.grad_fn]))
            elif is_float(leaf):
                record.origins[place] = " + ".join(sorted(self._origin(leaf))) or f"constant of {self.where()}"
        self.records.append(record)
        handed_on = tree_map(partial(self._hand_on, record), given.args[0] if result is None else result)
        if target is None:
            return handed_on
        target.copy_(handed_on)
        self.producers[target.grad_fn] = len(self.records) - 1
        return None if result is None else target

    def _alias(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.requires_grad:
            return value
        alias = value.view_as(value)
        self._lent[id(alias)] = (alias, self._watch(alias))
        self.producers[alias.grad_fn] = None if value is self.point else self.producers[value.grad_fn]
        self.seen.add(alias.grad_fn)
        return alias

    def _hand_on(self, record: Record, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.requires_grad:
            return value
        alias = value.view_as(value)
        # In this order: a hook that the rule has set on the value runs between the two.
        record.results.append(Result(value.detach(), self._watch(alias), self._watch(value)))
        self.producers[alias.grad_fn] = len(self.records) - 1
        return alias

    def _watch(self, tensor: Tensor) -> int:
        slot, gradients = self._slots, self.gradients
        self._slots += 1
        # The hook holds no tensor of the graph, which would hold itself then.
        tensor.register_hook(lambda gradient: gradients.__setitem__(slot, gradient))  # type: ignore[no-untyped-call]
        return slot

    def _keep(self, target: Tensor) -> None:
        """Copy what the records have of a tensor that is about to be overwritten."""
        memory = target.untyped_storage().data_ptr()

        def kept(leaf: Any) -> Any:
            shared = isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() == memory
            return leaf.clone() if shared else leaf

        for record in self.records:
            record.leaves = [kept(leaf) for leaf in record.leaves]
            for result in record.results:
                result.value = kept(result.value)

    # --- where constants come from ---

    def _without_parameters(self, values: Any) -> Any:
        result = super()._without_parameters(values)
        if isinstance(values, Tensor) and result is not values:
            self._origins[id(result)] = (result, self._origin(values))
        return result

    def _trace(self, result: Any, given: Any) -> None:
        """Constants come from the parameters and buffers that they are made of, or from the module that made them."""
        made = [x for x in tree_leaves(result) if is_float(x) and not x.requires_grad]
        if made:
            names = frozenset[str]().union(*(self._origin(x) for x in tree_leaves(given) if is_float(x)))
            for x in made:
                self._origins[id(x)] = (x, names or frozenset({f"constant of {self.where()}"}))

    def _origin(self, x: Tensor) -> frozenset[str]:
        if id(x) in self._origins:
            return self._origins[id(x)][1]
        if id(x) in self._names:
            return frozenset({self._names[id(x)]})
        return frozenset({HELD} if x is self.point or not x.is_leaf else ())
