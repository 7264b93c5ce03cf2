"""How two equal terms are compared: at which points, on which scale, and by which attributions."""

import warnings
from collections import OrderedDict
from collections.abc import Hashable, Mapping

import torch
from torch import Tensor

from faithcheck.axioms.counterexamples.rewrite import Rewrite, case_at
from faithcheck.axioms.equivalence_tests.forward_and_gradient import forward_and_gradient
from faithcheck.axioms.measure.measurement import relative_gap
from faithcheck.axioms.measure.roundoff import tolerance
from faithcheck.explainers.gradients import CompletenessWarning
from faithcheck.explainers.protocol import Explainer, Unsupported, attribution_of
from faithcheck.models.case import Case
from faithcheck.models.networks import expressions
from faithcheck.models.networks.expressions import UNARY, Apply, Constant, Expression, Term, intermediates

# A rule may divide by a value, a kink has no gradient, and exp overflows: at such points round-off would make two maps
# differ, not the explainer. So a point is left out
# * if a part of a term is nearer to 0 than LEAST or larger than MOST,
# * if the operands of a maximum are nearer to each other than LEAST,
# * if the operand of an activation is 0. Other parts may be exactly 0, as a ReLU that is off is: 0 has no round-off;
# * if a kink is that near where one feature is halfway to its baseline 0: some explainers take gradients there;
# * if the operands of a maximum are equal, or that of an activation 0, on a part of the way to the baseline: there is
#   no gradient there, and Integrated Gradients has no value;
# * if float32 has other values or gradients than float64.
# LEAST is also the least scale of a gap: if all attributions cancel, only their round-off remains.
LEAST, MOST = 1 / 16, 64.0
WAY = (torch.arange(32) + 1 / torch.pi) / 32  # points at which no kink lies by chance


def regular(term: Term, inputs: Tensor) -> Tensor:
    """The rows where no part of the term is large or nearly 0 and no operand is at 0 or a kink: ``(batch,)`` bool."""
    is_regular = torch.ones(len(inputs), dtype=torch.bool, device=inputs.device)
    values = intermediates(term, inputs)
    for part, value in values.items():
        if not isinstance(part, Constant):
            is_regular &= ((value.abs() >= LEAST) | (value == 0)) & (value.abs() <= MOST)
    halfway = 1 - torch.eye(inputs.shape[1]).to(inputs) / 2
    halved = (halfway.unsqueeze(1) * inputs).flatten(0, 1)
    on_the_way = (WAY.to(inputs)[:, None, None] * inputs).flatten(0, 1)
    places = (
        (inputs, values, LEAST),
        (halved, intermediates(term, halved), LEAST),
        (on_the_way, intermediates(term, on_the_way), 16 * torch.finfo(inputs.dtype).eps),
    )
    for points, parts, least in places:
        for distance in distances_to_kinks(parts):
            is_regular &= (distance.abs() >= least).expand(len(points)).view(-1, len(inputs)).all(0)
    return is_regular


def accurate(term: Term, inputs: Tensor) -> Tensor:
    """The rows where value and gradient are those in float64, but for a tenth of the tolerance: ``(batch,)`` bool.

    An activation that is saturated has a gradient near 0, of which float32 keeps few digits.
    """
    is_accurate = torch.ones(len(inputs), dtype=torch.bool, device=inputs.device)
    if inputs.dtype == torch.float64:
        return is_accurate
    runs = (forward_and_gradient("the term", Expression(term), case_at(points)) for points in (inputs, inputs.double()))
    for single, double in zip(*runs, strict=True):
        largest = double.abs().amax(1).clamp_min(LEAST)
        is_accurate &= (single - double).abs().amax(1) <= tolerance(inputs) / 10 * largest
    return is_accurate


_regular_rows: OrderedDict[Hashable, Tensor] = OrderedDict()
_ROWS_KEPT = 2048


def regular_case(rewrite: Rewrite, case: Case) -> Case:
    """The case at the rows where both terms are regular and accurate; raises `ValueError` if they are not equal there.

    The searches of all explainers with one seed draw much the same rewrites, so that the rows are kept.
    """
    inputs = case.inputs
    operations = tuple(expressions.OPERATIONS.values())  # with other ones the terms have other values
    key = rewrite, operations, inputs.dtype, inputs.device, inputs.cpu().numpy().tobytes()
    if key not in _regular_rows:
        terms = (rewrite.f, rewrite.g)
        keep = [function(term, inputs) for term in terms for function in (regular, accurate)]
        rows = torch.stack(keep).all(0).nonzero().squeeze(1)
        if len(rows):
            refuse_unequal(rewrite, case.select(rows))
        _regular_rows[key] = rows
        if len(_regular_rows) > _ROWS_KEPT:
            _regular_rows.popitem(last=False)
    return case.select(_regular_rows[key])


def distances_to_kinks(values: Mapping[Term, Tensor]) -> list[Tensor]:
    """How far operands of activations are from 0, and those of maxima from each other; shaped like their values."""
    operands = [
        [values[operand] for operand in part.operands]
        for part in values
        if isinstance(part, Apply) and (part.operation == "max" or part.operation in UNARY)
    ]
    return [first - second[0] if second else first for first, *second in operands]


def gap_between(left: Tensor, right: Tensor) -> float:
    """The largest difference of two maps relative to the example's largest entry, but at least to `LEAST`."""
    return relative_gap(left - right, left, right, torch.full_like(left[:, :1], LEAST))


def refuse_unequal(rewrite: Rewrite, case: Case) -> None:
    """Raise `ValueError`, which names the identity and the terms, if the two terms differ in value or gradient."""
    terms = (("f", rewrite.f), ("g", rewrite.g))
    sides = (forward_and_gradient(name, Expression(term), case) for name, term in terms)
    for quantity, left, right in zip(("values", "gradients"), *sides, strict=True):
        gap = gap_between(left, right)
        if not gap <= tolerance(case.inputs):
            raise ValueError(f"{rewrite.identity}: the {quantity} of {rewrite} differ by {gap:.3g}: no identity")


def attributions(
    explainer: Explainer, rewrite: Rewrite, case: Case, known: dict[Hashable, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """The explainer's maps of the two terms, each ``(batch, features)``.

    ``known`` maps of this explainer are used again, and new ones added. An error gets a note that names the rewrite.
    """

    def attribution(term: Term) -> Tensor:
        if known is None:
            return attribution_of(explainer, Expression(term).eval(), case)
        key = term, case.inputs.cpu().numpy().tobytes()
        if key not in known:
            known[key] = attribution_of(explainer, Expression(term).eval(), case)
        return known[key]

    with warnings.catch_warnings():
        # A quadrature that is too coarse at a kink is so for both terms: they are evaluated at the same points.
        warnings.simplefilter("ignore", CompletenessWarning)
        try:
            return attribution(rewrite.f), attribution(rewrite.g)
        except Unsupported:
            raise
        except Exception as error:
            error.add_note(f"on {rewrite}; to refuse a model, raise faithcheck.explainers.Unsupported")
            raise
