"""torch's further names of operations have the rules of the originals, for every method, DeepLIFT and the ledger."""

import pytest
import torch
from torch import nn
from torch.overrides import get_testing_overrides

from faithcheck.explainers import AttnLRP
from faithcheck.explainers.deeplift import DeepLiftRescale
from faithcheck.explainers.lrp.blockwise import BlockwiseLRP
from faithcheck.explainers.lrp.ledger import conservation_ledger
from faithcheck.explainers.lrp.operation_table import operations
from faithcheck.explainers.lrp.operations import aliases, name_of
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models.case import Case

OTHER = torch.tensor([[1.5, -2.0], [0.5, 3.0]], dtype=torch.float64)
ARGUMENTS = {
    "abs": (),
    "clamp": (-0.5, 0.5),
    "diagonal": (),
    "div": (OTHER,),
    "erf": (),
    "expm1": (),
    "log1p": (),
    "logsumexp": (-1,),
    "matmul": (OTHER,),
    "movedim": (0, 1),
    "mul": (OTHER,),
    "neg": (),
    "outer": (OTHER[0],),
    "sigmoid": (),
    "sub": (OTHER,),
    "transpose": (0, 1),
}
JOINING = ("cat", "vstack")
FUNCTIONS = [
    (function, aliases()[name_of(function)])
    for function in get_testing_overrides()
    if aliases().get(name_of(function)) in operations()
]


class Model(nn.Module):
    """An operation on two rows, summed up with weights."""

    def __init__(self, operation, name):
        super().__init__()
        self.operation, self.name = operation, name

    def forward(self, x):
        rows = x.view(2, 2) * 0.7
        if self.name in JOINING:
            result = self.operation([rows, rows])
        else:
            rows = rows[0] if self.name == "outer" else rows
            # Linear algebra counts the last axes, which are all axes of two rows.
            result = self.operation(rows, *ARGUMENTS[self.name.removesuffix("_")])
        weights = torch.arange(1, 1 + result.numel(), dtype=x.dtype)
        return (result.flatten() * weights).sum().view(1, 1)


def case():
    x = torch.tensor([[0.9, -1.3, 0.4, 2.1]], dtype=torch.float64)
    return Case(x, torch.tensor([0]), torch.full_like(x, 0.1))


def outcome(explainer, model):
    try:
        return explainer.attribute(model, case())
    except Unsupported as error:
        return str(error)


@pytest.mark.parametrize(("function", "original"), FUNCTIONS, ids=lambda one: getattr(one, "__qualname__", one))
def test_an_alias_has_the_map_of_its_original(function, original):
    known = getattr(torch, original, None) or getattr(torch.Tensor, original)
    alias, model = Model(function, original), Model(known, original)
    assert torch.equal(alias(case().inputs), model(case().inputs))
    for explainer in (AttnLRP(), AttnLRP(0.1), BlockwiseLRP(), DeepLiftRescale()):
        found, expected = outcome(explainer, alias), outcome(explainer, model)
        assert found == expected if isinstance(expected, str) else torch.equal(found, expected)
    found, expected = (conservation_ledger(AttnLRP(), one, case()) for one in (alias, model))
    assert [one.operation for one in found.operations] == [one.operation for one in expected.operations]
    assert found.by_cause() == expected.by_cause()
    assert found.gap < 1e-12


def test_the_aliases_that_users_write_are_among_them():
    names = {name_of(function) for function, _ in FUNCTIONS}
    written = (
        "swapdims swapaxes clip concat concatenate absolute divide multiply subtract true_divide negative special_expit"
    )
    assert names >= {*written.split(), "multiply_", "divide_", "true_divide_", "subtract_"}
