"""Pairs of affine maps, halves and ReLU: what holds on them does so for its reason, and what should break breaks."""

import pytest
import torch
from torch import nn

from faithcheck.axioms.engine.check import Settings
from faithcheck.axioms.engine.check_explainer import check_explainer
from faithcheck.axioms.engine.plan import plan
from faithcheck.explainers import LRP, AttnLRP
from faithcheck.explainers.lrp.rules import ATTNLRP, identity_rule, modified
from faithcheck.models import registered_pairs

CPU = torch.device("cpu")
NAMES = (
    *("halves.residual", "halves.linear", "batch_norm.linear", "batch_norm.conv"),
    *("relu.sundararajan", "relu.rescaled", "maximum.absolute"),
)


def pair(name):
    return registered_pairs()[name]


def status(explainer, name, axiom="invariance"):
    (record,) = check_explainer(explainer, [axiom], [pair(name)])
    return record.status


def lrp(**rules):
    return LRP("attnlrp", {**ATTNLRP, **rules})


def scaled(factor):
    """A rule that passes on so many times the gradient."""

    def rule(call):
        (x,) = call.operands_with_relevance()
        (gradient,) = torch.autograd.grad(call.value().sum(), x)
        return modified(x, call.value(), lambda at_value: factor * at_value * gradient)

    return rule


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_on_other_seeds_too(name, seed):
    checks = [*plan("equivalence", [], [pair(name)]), *plan("invariance", [AttnLRP()], [pair(name)])]
    assert {check.run(Settings(seed=seed)).status for check in checks} == {"holds"}


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_is_stated(name):
    explainers = {"loo", "gradient_x_input", "integrated_gradients", "epsilon_lrp", "attnlrp", "cplrp"}
    stated = {explainer for axiom, explainer in pair(name).expected if axiom == "invariance"}
    assert explainers <= stated


@pytest.mark.parametrize("name", ["batch_norm.linear", "batch_norm.conv"])
def test_batch_norm_has_statistics_of_its_own(name):
    f, _ = pair(name).build(0, torch.float64, CPU)
    (norm,) = (module for module in f.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d))
    assert norm.num_batches_tracked == 1
    assert norm.running_mean.abs().min() > 1e-3
    assert (norm.running_var - 1).abs().min() > 1e-3
    assert norm.momentum is None
    assert not f.training


@pytest.mark.parametrize("name", ["batch_norm.linear", "batch_norm.conv"])
def test_batch_norm_by_the_identity_rule_breaks(name):
    """The identity rule shares the mean and β out, which the folded bias keeps."""
    assert status(lrp(batch_norm=identity_rule), name) == "broken claim"
    assert status(AttnLRP(), name) == "holds"


@pytest.mark.parametrize("name", ["halves.residual", "halves.linear"])
def test_halves_break_on_a_sum_that_modifies(name):
    def diluted(call):
        (*terms,) = call.operands_with_relevance()
        return call.stabilised(call.value(), parts=len(terms))

    assert status(lrp(add=diluted), name) == "broken claim"


def test_halves_break_on_a_multiple_that_modifies():
    assert status(lrp(div=scaled(0.9)), "halves.residual") == "broken claim"


def test_the_absolute_value_breaks_on_a_rule_that_is_no_sign():
    assert status(lrp(abs=scaled(0.9)), "maximum.absolute") == "broken claim"


def test_rescaled_neurons_break_on_a_rule_that_sees_the_scale():
    def clipped(call):
        return modified(*call.operands_with_relevance(), call.value(), lambda gradient: gradient * (call.value() > 1))

    assert status(lrp(relu=clipped), "relu.rescaled") == "broken claim"
