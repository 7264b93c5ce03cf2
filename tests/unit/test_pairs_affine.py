"""Pairs of BatchNorm, halves, ReLU and maximum: invariance holds for other seeds, and breaks with a broken rule."""

import pytest
import torch
from torch import nn

from faithcheck import check_explainer
from faithcheck.explainers import LRP, AttnLRP
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.modified_gradient import modified
from faithcheck.explainers.lrp.rules.activations import identity_rule
from faithcheck.models import registered_pairs

CPU = torch.device("cpu")


def pair(name):
    return registered_pairs()[name]


def status(explainer, name, axiom="invariance"):
    (record,) = check_explainer(explainer, [axiom], [pair(name)])
    return record.status


def lrp(**rules):
    return LRP("attnlrp", {**ATTNLRP, **rules})


def scaled(factor):
    """A broken rule: the gradient times a factor."""

    def rule(call):
        (x,) = call.operands_with_relevance()
        (gradient,) = torch.autograd.grad(call.value().sum(), x)
        return modified(x, call.value(), lambda at_value: factor * at_value * gradient)

    return rule


@pytest.mark.parametrize("name", ["batch_norm.linear", "batch_norm.conv"])
def test_batch_norm_has_running_statistics_other_than_its_defaults(name):
    f, _ = pair(name).build(0, torch.float64, CPU)
    (norm,) = (module for module in f.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d))
    assert norm.num_batches_tracked == 1
    assert norm.running_mean.abs().min() > 1e-3
    assert (norm.running_var - 1).abs().min() > 1e-3
    assert norm.momentum is None
    assert not f.training


@pytest.mark.parametrize("name", ["batch_norm.linear", "batch_norm.conv"])
def test_batch_norm_by_the_identity_rule_breaks(name):
    """The identity rule distributes the shares of the mean and of β, which the folded bias keeps."""
    assert status(lrp(batch_norm=identity_rule), name) == "broken claim"
    assert status(AttnLRP(), name) == "holds"


@pytest.mark.parametrize("name", ["halves.residual", "halves.linear"])
def test_halves_break_if_the_sum_rule_is_not_the_gradient(name):
    def diluted(call):
        (*terms,) = call.operands_with_relevance()
        return call.stabilised(call.value(), parts=len(terms))

    assert status(lrp(add=diluted), name) == "broken claim"


def test_halves_break_if_the_rule_of_division_is_not_the_gradient():
    assert status(lrp(div=scaled(0.9)), "halves.residual") == "broken claim"


def test_the_maximum_breaks_if_the_rule_of_the_absolute_value_is_not_the_sign():
    assert status(lrp(abs=scaled(0.9)), "maximum.absolute") == "broken claim"


def test_rescaled_neurons_break_if_the_rule_depends_on_the_scale():
    def clipped(call):
        return modified(*call.operands_with_relevance(), call.value(), lambda gradient: gradient * (call.value() > 1))

    assert status(lrp(relu=clipped), "relu.rescaled") == "broken claim"
