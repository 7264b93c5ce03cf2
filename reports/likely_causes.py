"""What likely made records red, by the first rule that finds something in a record; else by the usual cause."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from faithcheck.axioms.measure.record import Record, Relation
from faithcheck.axioms.measure.statuses import Status


@dataclass(frozen=True)
class Rule:
    """One likely cause."""

    name: str  # records of causes with different names are not put together
    find: Callable[[Record, Collection[str]], bool]  # of a record, and the explainers that `changing_explainers` names
    say: Callable[[Sequence[Record]], str]  # a sentence, from the records that have the cause, the worst first


def error_of(record: Record) -> str:
    """What the record says of an error: the message, or the last line of the traceback; ``""`` without one."""
    lines = [line.strip() for line in (record.traceback or "").splitlines() if line.strip()]
    return str(record.detail.get("error") or (lines[-1] if lines else "") if record.status == "error" else "")


_ERRORS: Mapping[str, str] = {
    r"expected shape \(batch, features\).*got \w+ \(\d+, \d+, \d": (
        "The map has one number per coordinate and not per feature: the wrong shape. Sum over the coordinates, as "
        "faithcheck.explainers.protocol.per_feature does."
    ),
    r"expected shape \(batch, features\)": (
        "The map has the wrong shape: one number per example and feature is needed, (batch, features)."
    ),
    r"expected the inputs' torch\.|expected floating point|"
    r"same dtype|expected scalar type|result type \w+ can't be cast": (
        "The explainer computes in the wrong dtype: in another floating-point type than the inputs. Create its tensors "
        "with dtype=inputs.dtype, or convert with .to(inputs.dtype)."
    ),
    r"^(the model|[fg]) (returned|fails|gives \w+ \()": (
        "The model is at fault, and not the explainer: mend the model as the message says."
    ),
    r"values are NaN or infinite": (
        "The map is NaN or infinite: a division by zero. Look where it is divided by a sum, a norm, its largest value "
        "or an activation, which can be 0."
    ),
    r"the gap is (nan|inf|-inf)": "The model gives NaN or infinity here: look at the inputs of this pair.",
    r"changed case\.": "The explainer writes into its inputs in place: let it work on a copy, inputs.clone().",
    r"every forward pass of the model failed": (
        "The explainer catches the errors of the model and returns a map all the same: let the error pass."
    ),
    r"Expected all tensors to be on the same device|expected a tensor on |it needs a GPU": (
        "The explainer works on another device than the inputs: create its tensors with device=inputs.device."
    ),
    r"expected a tensor, got|expected a plain torch\.Tensor|expected a dense tensor": (
        "The explainer returns something else than a plain tensor: return a dense torch.Tensor, (batch, features)."
    ),
    r"does not require grad": (
        "The explainer needs a gradient where none is recorded: call requires_grad_() on a copy of the inputs, within "
        "torch.enable_grad()."
    ),
    r"unexpected keyword argument|required positional argument|positional arguments? but": (
        "A call does not fit the arguments of a function: compare the last line of the traceback with the signature."
    ),
    r"the explainer refused, although": (
        "The explainer has no rule for an operation of the model, and something is expected of it there: add the rule "
        "for the operation that the message names."
    ),
    r"stopped by the time limit": "The explainer takes longer than --explainer-timeout allows, or it hangs.",
    r"out of memory|can't allocate memory": "The memory is too small for this map: compute it in smaller batches.",
    r"no rule for": "The explainer has no rule for the operation that the message names: add it.",
}
"""Likely causes of errors, by what stands in the message."""

_TRACES: Mapping[str, str] = {
    "hooks": "Hooks are left on the model: remove each by its handle, handle.remove(), in a finally block.",
    "train mode": "The model is left in another mode: train() or eval() is called and not undone.",
    ".grad": "Gradients are left in .grad: use torch.autograd.grad in place of backward().",
    "requires_grad": "requires_grad of parameters is left changed: put it back, or do not change it.",
    "weights": "Weights or buffers are left changed: work on a copy of the model, copy.deepcopy(model).",
    "patched": "A function or class is left patched: undo the patch in a finally block.",
    "attributes": "Attributes are left on the model: work on a copy, or remove them in a finally block.",
    "replaced": "Parts of the model are left replaced: work on a copy of the model, copy.deepcopy(model).",
    "random state": "The global random state is left changed: draw from a torch.Generator of your own.",
    "gradient mode": "The gradient mode is left changed: use torch.no_grad() as a context manager.",
    "an attribution instead of an error": (
        "The explainer catches the errors of the model and returns a map all the same: let the error pass."
    ),
}
"""Likely causes of traces, by how the line of a trace starts."""


_RELATIONS: Mapping[str, str] = {
    "zero": (
        "{first} is 0 on every example: the map is all zeros. Look for a gradient that is cut off, by detach() or "
        "no_grad(), for numbers that are overwritten, or for the loss or the probability of a single output: "
        "cross-entropy and softmax over one output are constant."
    ),
    "mistake f(x)": (
        "{first} is f(x) on every example: the wrong baseline, one with an output of 0, is assumed. Multiply by the "
        "input minus case.baseline, or subtract f(baseline)."
    ),
    "mistake f(x) − f(0)": (
        "{first} is f(x) − f(0) on every example: the wrong baseline. The path starts at 0 and not at case.baseline."
    ),
    "place padding": (
        "The two maps differ at padding alone: the explainer reads padding. Give the model case.forward_arguments with "
        "the attention mask, and give padding 0."
    ),
    "factor -1": (
        "{first} is minus {second} on every example: the sign is wrong. Look for a loss in place of the output, or for "
        "f(baseline) − f(x)."
    ),
    "factor": (
        "{first} is {value} times {second} on every example: a constant factor. Look for a mean in place of a sum, or "
        "for something that is counted twice; the inverse of the factor is {inverse}."
    ),
    "factors": (
        "{first} is a multiple of {second}, but by a factor that differs from check to check, {value}: the map is "
        "normalised, by its largest value, its sum or its norm, or it is a mean where it should be a sum."
    ),
    "factor of the batch": (
        "{first} is a multiple of {second}, by {value}: the map is normalised by a number of the whole batch, such as "
        "its largest value, or it is a mean over the batch or over the padded length. Treat each example by itself."
    ),
    "offset": (
        "{first} and {second} differ by the same number everywhere: a constant is added or taken away, as by a bias, "
        "by f(baseline), or by centring the map."
    ),
    "absolute": "{first} has the absolute values of {second}: the signs are lost, as by abs() or by a square.",
    "positive": "{first} has the positive values of {second}, and 0 for the others: the negative ones are cut off.",
    "factor of each example": (
        "{first} is a multiple of {second}, by another factor on each example: the map is normalised example by "
        "example, by its largest value, its sum or its norm. Leave it as it is."
    ),
    "sum": "{first} is 1 on every example: the map is normalised. Leave it as it is.",
    "shifted": (
        "{first} has the numbers of {second}, one feature further: the features are in the wrong order, an index is "
        "off by one. Look for a special token that is dropped or added."
    ),
    "order": "{first} has the numbers of {second} in the wrong order: features are permuted and not put back.",
    "example": (
        "{first} is the same on every example: examples are mixed, as by a mean over the batch, the first one is used "
        "for all, or the map is a gradient that is not multiplied by the input."
    ),
    "examples": (
        "{first} has the numbers of {second}, but of other examples of the batch: examples are in the wrong order, as "
        "after sorting them by length, and not put back."
    ),
}
"""Likely causes by how the two sides that were compared are related, see `faithcheck.axioms.measure.evidence`."""

VIOLATION = "the violation"
"""The first side where an axiom compares the size of a violation with the predicted one."""
SAME_FACTOR = 1e-4
"""The relative difference up to which factors of several checks are one."""
FLOAT32 = (1e-9, 3e-6)
"""Gaps of float64 arithmetic in which something has float32's seven digits."""


def _relation(record: Record) -> str:
    """The kind of the relation in a record's evidence, with what specifies it; ``""`` without one that says a cause."""
    relation = record.evidence.relation if record.evidence else None
    if relation is None:
        return ""
    if relation.kind.startswith("factor"):
        return _factor(record, relation)
    if relation.kind == "sum" and relation.value != 1:
        return ""
    return " ".join(filter(None, (relation.kind, relation.of)))


def _factor(record: Record, relation: Relation) -> str:
    """The kind of a relation by a factor."""
    if relation.value == 0:
        return "zero"
    if record.axiom == "batching":
        return "factor of the batch"
    # On a homogeneous function, any map that misses the sum violates completeness by a multiple; under scale, a
    # normalised map, a gradient and a squared map differ by factors, too.
    if relation.first == VIOLATION or record.axiom == "scale":
        return ""
    if relation.value == -1:
        return "" if record.axiom == "antisymmetry" else "factor -1"  # there, minus is what a map without a sign gives
    return relation.kind


def _of_relation(kind: str) -> Callable[[Sequence[Record]], str]:
    def say(records: Sequence[Record]) -> str:
        relations = [record.evidence.relation for record in records if record.evidence and record.evidence.relation]
        values = [relation.value for relation in relations if relation.value is not None]
        varies = kind == "factor" and max(values) - min(values) > SAME_FACTOR * max(map(abs, values))
        words = {
            "value": _range(values) if values else "another factor on each example",
            "inverse": _range([1 / value for value in values if value]),
        }
        text = _RELATIONS["factors" if varies else kind]
        return _capital(text.format(first=relations[0].first, second=relations[0].second, **words))

    return say


def _range(values: Sequence[float]) -> str:
    """A number, or the least and the largest of different ones."""
    ends = [f"{value:.4g}" for value in (min(values, default=0), max(values, default=0))]
    return " to ".join(dict.fromkeys(ends))


def _capital(text: str) -> str:
    return text if text.startswith("f(") else text[:1].upper() + text[1:]


def _left_behind(kind: str) -> Callable[[Record, Collection[str]], bool]:
    def find(record: Record, changing: Collection[str]) -> bool:
        lines = str(record.detail.get("left behind", "")).split("; ")
        is_red_by_it = record.axiom == "trace" or record.status == Status.LEFT_BEHIND.label
        return is_red_by_it and any(line.startswith(kind) for line in lines)

    return find


def _in_float32(record: Record, changing: Collection[str]) -> bool:
    gap, tol = record.gap or 0.0, record.tol or 0.0
    return 0 < tol <= FLOAT32[0] < gap < FLOAT32[1] and record.status == "broken claim"


def _correlates_negatively(record: Record, changing: Collection[str]) -> bool:
    pearson = record.detail.get("pearson")
    return record.axiom == "loo" and isinstance(pearson, int | float) and pearson < -0.2


def _sentence(text: str) -> Callable[[Sequence[Record]], str]:
    return lambda records: text


OF_THE_BATCH = frozenset({"factor of the batch", "example", "examples"})
"""Causes by which the examples of a batch depend on one another."""

RULES: Sequence[Rule] = (
    Rule(
        "not measured",
        lambda record, _: bool(record.status == Status.NOT_MEASURED.label),
        _sentence("Every check of the claim was skipped, for the reason given: mend that, or claim less."),
    ),
    *(
        Rule(f"error {pattern}", lambda r, _, pattern=pattern: bool(re.search(pattern, error_of(r))), _sentence(text))  # type: ignore[misc]
        for pattern, text in _ERRORS.items()
    ),
    *(Rule(f"left behind {kind}", _left_behind(kind), _sentence(text)) for kind, text in _TRACES.items()),
    Rule(
        "changes from call to call",
        lambda record, changing: record.explainer in changing and record.status != "error",
        _sentence(
            "The same call gives another map each time, determinism is red: the explainer draws random numbers without "
            "a seed of its own, leaves dropout on, or keeps something from one call to the next."
        ),
    ),
    *(
        Rule(kind, lambda record, _, kind=kind: _relation(record) == kind, _of_relation(kind))  # type: ignore[misc]
        for kind in _RELATIONS
    ),
    Rule(
        "float32",
        _in_float32,
        _sentence("The gap is the round-off of float32: something is computed in the wrong dtype, float32 in float64."),
    ),
    Rule(
        "negative correlation",
        _correlates_negatively,
        _sentence("The correlation is negative: the sign of the map or the order of its features is likely wrong."),
    ),
)
"""The likely causes, the surest first."""


def rule_of(record: Record, changing: Collection[str] = ()) -> Rule | None:
    """The first rule that finds its cause in a red record; ``changing`` is from `changing_explainers`."""
    return next((rule for rule in RULES if rule.find(record, changing)), None)


def changing_explainers(reds: Sequence[Record]) -> frozenset[str]:
    """The explainers whose maps change from call to call, by the red records of a run."""
    broken = (record for record in reds if record.axiom == "determinism" and record.status == "broken claim")
    return frozenset(record.explainer for record in broken if record.explainer)


def likely_cause(records: Sequence[Record], usual_causes: Mapping[str, str], changing: Collection[str] = ()) -> str:
    """A sentence on the likely cause of records of one rule; the axiom's usual cause where no rule applies."""
    rule = rule_of(records[0], changing)
    if rule is not None:
        return rule.say(records)
    if error_of(records[0]):
        return "The explainer raised this error: the last lines of the traceback name the place."
    axiom = records[0].axiom
    if axiom not in usual_causes:
        return "The records name no single cause: compare the details of the worst one with the axiom's definition."
    return f"The records name no single cause. The usual one for {axiom}: {usual_causes[axiom]}."


def likely_cause_of_failure(message: str) -> str:
    """A sentence on the likely cause of a failed test that left no record."""
    found = (text for pattern, text in _ERRORS.items() if re.search(pattern, message))
    return next(found, "The test failed before a check could be recorded: its message names the place.")
