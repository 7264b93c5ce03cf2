"""Adapters to other libraries' explainers: their attributions, their refusals, and what they leave on a model.

These tests are fast; ``pytest -m peers`` measures the peers' verdicts.
"""

import re
import subprocess
import sys
from importlib import metadata

import pytest
import torch
from torch import nn

from faithcheck.axioms.measure.roundoff import tolerance
from faithcheck.axioms.trace import trace
from faithcheck.explainers import AttnLRP, GradientTimesInput, IntegratedGradients
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.loo.removal import Replacement
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.peers import autolrp, captum, lxt, own_environment, shap, zennit
from faithcheck.explainers.peers.own_environment import TOLERANCE, OwnEnvironment
from faithcheck.explainers.protocol import InvalidAttribution, Unsupported, attribution_of
from faithcheck.models.case import Case, select_target
from faithcheck.models.pair import registered_pairs
from faithcheck.tests.helpers import peer_rules
from faithcheck.tests.helpers.every_peer import every_peer

PEERS = every_peer()


def skip_unless_installed(peer):
    """Skip the test of a peer that is not installed."""
    if "not installed" in peer.origin:
        pytest.skip(f"{peer.origin}: pip install 'faithcheck[peers]'")


def model_and_case(name, side=0, dtype=torch.float64):
    pair, device = registered_pairs()[name], torch.device("cpu")
    return pair.build(0, dtype, device)[side], pair.case(0, dtype, device)


def relative_difference(first, second):
    return float((first - second).abs().max() / torch.maximum(first.abs().max(), second.abs().max()))


# --- the same attributions as ours ----------------------------------------------------------------------------------

PAIRS = ["product.x1x2x3", "norm.layer_norm", "linear_attention.assoc", "attention.sdpa_bert", "probe.padded"]
SAME = [
    (captum.IntegratedGradients(), IntegratedGradients(steps=50)),
    (captum.LayerIntegratedGradients(), IntegratedGradients(steps=50)),
    (captum.InputXGradient(), GradientTimesInput()),
    (captum.FeatureAblation(), LeaveOneOut(removal=Replacement())),
    (zennit.GradientTimesInput(), GradientTimesInput()),
]


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize(("theirs", "ours"), SAME, ids=[theirs.name for theirs, _ in SAME])
def test_the_attributions_equal_ours(theirs, ours, name):
    skip_unless_installed(theirs)
    model, case = model_and_case(name)
    expected = attribution_of(ours, model, case)
    attribution = attribution_of(theirs, model, case)
    # captum rounds its quadrature weights to float32 for inputs of any dtype; the others agree to the last bits.
    assert relative_difference(attribution, expected) <= (1e-6 if "integrated" in theirs.name else 1e-12)
    assert expected.abs().max() > 1e-3


def test_another_number_of_quadrature_nodes_gives_another_attribution():
    # The gradient of an RMSNorm is largest at the zero baseline: 32 nodes and captum's 50 are both too few.
    skip_unless_installed(captum.IntegratedGradients())
    model, case = model_and_case("attention.sdpa_llama")
    default, ours = captum.IntegratedGradients(), IntegratedGradients(steps=32)
    with pytest.warns(UserWarning, match="misses completeness"):
        assert relative_difference(attribution_of(default, model, case), attribution_of(ours, model, case)) > 0.01


def test_shapley_values_of_a_product_are_equal_shares():
    skip_unless_installed(shap.Exact())
    model, case = model_and_case("product.x1x2x3")
    share = select_target(case.run(model), case.target).detach() / 3
    exact, sampled = attribution_of(shap.Exact(), model, case), attribution_of(shap.Permutation(), model, case)
    assert torch.allclose(exact, share.unsqueeze(1).expand(case.shape), rtol=1e-12)
    assert torch.allclose(sampled.sum(1), 3 * share, rtol=1e-12)  # not equal shares, but complete
    assert relative_difference(sampled, exact) > 0.01


# --- LRP: rules compared with ours ----------------------------------------------------------------------------------


class Product(nn.Module):
    def __init__(self, right_first):
        super().__init__()
        self.right_first = right_first

    def forward(self, x):
        a, b, c = x[:, 0:1], x[:, 1:2], x[:, 2:3]
        return a * (b * c) if self.right_first else (a * b) * c


POINT = Case(torch.tensor([[2.0, 3.0, 4.0]], dtype=torch.float64), torch.tensor([0]), torch.zeros(1, 3).double())


@pytest.mark.parametrize(
    ("explainer", "left", "right"),
    [
        (AttnLRP(), (6, 6, 12), (12, 6, 6)),
        (lxt.Explicit(), (6, 6, 12), (12, 6, 6)),
        # By magnitude. Left: x₁x₂ gets 24 · 6/(6 + 4), and x₁ gets 2/5 of it. Right: x₁ gets 24 · 2/(2 + 12).
        (autolrp.AttnLRP(), (5.76, 8.64, 9.6), (24 / 7, 24 * 6 / 7 * 3 / 7, 24 * 6 / 7 * 4 / 7)),
    ],
    ids=["attnlrp", "lxt", "autolrp"],
)
def test_the_product_of_three_factors(explainer, left, right):
    if explainer != AttnLRP():
        skip_unless_installed(explainer)
    for right_first, expected in ((False, left), (True, right)):
        attribution = attribution_of(explainer, Product(right_first), POINT)
        assert torch.allclose(attribution, torch.tensor([expected], dtype=torch.float64), rtol=1e-9)


@pytest.mark.parametrize("name", peer_rules.OPERATIONS)
def test_the_rules_of_autolrp_written_out_here_give_its_attributions(name):
    skip_unless_installed(autolrp.AttnLRP())
    model, case = peer_rules.OPERATIONS[name], peer_rules.operation_case()
    theirs = attribution_of(autolrp.AttnLRP(), model, case)
    assert torch.allclose(attribution_of(LRP("theirs", peer_rules.AUTOLRP), model, case), theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["attention.sdpa_bert", "attention.sdpa_gpt2", "attention.sdpa_llama"])
def test_our_rules_with_all_changes_become_those_of_autolrp(name):
    skip_unless_installed(autolrp.AttnLRP())
    model, case = model_and_case(name)
    theirs = attribution_of(autolrp.AttnLRP(), model, case)
    assert relative_difference(attribution_of(AttnLRP(), model, case), theirs) > 0.1
    assert relative_difference(attribution_of(LRP("theirs", peer_rules.AUTOLRP), model, case), theirs) < 1e-7


def test_relevance_of_autolrp_starts_at_1_and_that_of_the_adapter_at_the_logit():
    skip_unless_installed(autolrp.Base())
    import autolrp as peer

    model = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    x = -model.weight.detach()  # the logit is negative
    case = Case(x, torch.tensor([0]), torch.zeros_like(x))
    point = peer.tensor(x)
    output = model(point)
    output[0, 0].lrp()
    assert output[0, 0] < 0
    assert point.relevance.sum().item() == pytest.approx(1)
    attribution = attribution_of(autolrp.Base(), model, case)
    assert attribution.sum().item() == pytest.approx(output[0, 0].item())


EXACT = ["x · constant", "x · y", "x / y", "softmax", "gelu", "tanh", "relu", "silu"]  # lxt has no stabiliser here


@pytest.mark.parametrize("name", [name for name in peer_rules.OPERATIONS if name != "X C, constant"])
def test_the_rules_of_lxt_equal_ours_up_to_the_sign_of_the_stabiliser(name):
    skip_unless_installed(lxt.Explicit())
    model, case = peer_rules.OPERATIONS[name], peer_rules.operation_case()
    theirs = attribution_of(lxt.Explicit(), model, case)
    epsilons = (0.0,) if name in EXACT else (1e-6, 1e-8, 1e-6 / 4)  # lxt adds the ε of a mean of 4 to the sum of 4
    ours = [attribution_of(LRP("ours", ATTNLRP, epsilon, signed=False), model, case) for epsilon in epsilons]
    assert min((theirs - attribution).abs().max() for attribution in ours) < 1e-11


def test_the_matmul_of_lxt_loses_half_of_the_relevance_if_one_operand_is_a_constant():
    skip_unless_installed(lxt.Explicit())
    model, case = peer_rules.OPERATIONS["X C, constant"], peer_rules.operation_case()
    assert torch.allclose(
        attribution_of(lxt.Explicit(), model, case), attribution_of(AttnLRP(), model, case) / 2, rtol=1e-5
    )


def test_the_stabiliser_of_lxt_has_a_pole():
    skip_unless_installed(lxt.Explicit())
    model = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    nn.init.ones_(model.weight)
    x = torch.tensor([[-1e-6, 0.0]], dtype=torch.float64)
    case = Case(x, torch.tensor([0]), torch.zeros_like(x))
    assert case.run(model).item() == -1e-6
    with pytest.raises(InvalidAttribution, match="NaN or infinite"):
        attribution_of(lxt.Explicit(), model, case)


# --- refusals -------------------------------------------------------------------------------------------------------


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)

    def forward(self, x):
        return self.last(self.act(self.first(self.act(x))))


class Cumulative(nn.Module):
    def forward(self, x):
        return torch.cumprod(x, 1)


def model_with_layer_norm():
    return nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 1))


REFUSALS = [
    (captum.LRP(), model_with_layer_norm, r"LayerNorm'> has no rule defined.*attribute `rule`"),
    (captum.DeepLift(), Twice, r"ReLU\(\) was detected that does not contain.*separate module for every activation"),
    (shap.Deep(), model_with_layer_norm, r"unrecognized nn.Module: LayerNorm – use shap_exact"),
    (shap.Gradient(), model_with_layer_norm, r"the same dtype.* in float32"),
    (autolrp.AttnLRP(), Cumulative, r"no installer matched 'CumprodBackward0'.*register_installer or register_rewrite"),
    (lxt.Explicit(), Cumulative, r"cumprod in the model \(Cumulative\): no rule for this operation"),
]


@pytest.mark.parametrize(("peer", "make", "message"), REFUSALS, ids=[peer.name for peer, _, _ in REFUSALS])
def test_a_refusal_has_the_message_of_the_peer(peer, make, message):
    skip_unless_installed(peer)
    torch.manual_seed(0)
    model = make().double().eval()
    x = torch.randn(2, 3, dtype=torch.float64)
    with pytest.raises(Unsupported, match=message) as refusal:
        peer.attribute(model, Case(x, torch.zeros(2, dtype=torch.int64), torch.zeros_like(x)))
    assert peer.origin in str(refusal.value) or isinstance(peer, lxt.Explicit)


def test_shap_exact_refuses_many_features_and_names_an_alternative():
    skip_unless_installed(shap.Exact())
    model, case = model_and_case("linear_attention.assoc")
    with pytest.raises(Unsupported, match=r"masked evaluations.*shap_permutation"):
        shap.Exact().attribute(model, case)


def test_an_error_that_is_no_refusal_is_an_error():
    skip_unless_installed(captum.LRP())

    class Broken(nn.Module):
        def forward(self, x):
            raise TypeError("of the model")

    with pytest.raises(TypeError, match="of the model"):
        captum.LRP().attribute(Broken(), POINT)


# --- how they describe themselves, and what they leave on a model ---------------------------------------------------


@pytest.mark.parametrize("peer", PEERS, ids=[peer.name for peer in PEERS])
def test_the_origin_is_the_library_and_its_version(peer):
    skip_unless_installed(peer)
    assert peer.origin == f"{peer.distribution} {metadata.version(peer.distribution)}"
    assert re.fullmatch(r"[a-z]+ \d+\.\d+(\.\d+)?", peer.origin)
    assert peer.name.startswith(f"{peer.distribution}_")


@pytest.mark.parametrize("name", ["control.mlp", "probe.padded"])
@pytest.mark.parametrize("peer", PEERS, ids=[peer.name for peer in PEERS])
def test_a_peer_leaves_the_model_unchanged(peer, name):
    skip_unless_installed(peer)
    model, case = model_and_case(name)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    attributes = {path: set(vars(module)) for path, module in model.named_modules()}
    try:
        measurement = trace(peer, model, case)
    except Unsupported as refusal:
        pytest.skip(str(refusal)[:200])
    assert measurement.gap == 0, measurement.detail
    assert attributes == {path: set(vars(module)) for path, module in model.named_modules()}


def test_every_peer_is_listed_and_describes_itself():
    assert len(PEERS) == len({peer.name for peer in PEERS}) == 18
    assert {peer.distribution for peer in PEERS} == {"captum", "autolrp", "shap", "zennit", "lxt"}
    described = [*PEERS, *(one for one in vars(own_environment).values() if isinstance(one, OwnEnvironment))]
    assert all(peer.label and peer.summary and "\n" not in peer.summary for peer in described)
    assert len({peer.label for peer in described}) == len(described)


def test_the_error_of_a_peer_that_is_not_installed_names_the_extra(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setitem(sys.modules, "captum.attr", None)
    monkeypatch.setattr(metadata, "version", missing)
    model, case = model_and_case("control.mlp")
    assert captum.InputXGradient().origin == "captum, not installed"
    with pytest.raises(ImportError, match=r"faithcheck\[peers\]"):
        captum.InputXGradient().attribute(model, case)


IMPORT_THE_ADAPTERS = """
import sys
from faithcheck.tests.helpers.every_peer import every_peer
origins = [peer.origin for peer in every_peer()]
imported = {"captum", "autolrp", "shap", "zennit", "lxt"} & set(sys.modules)
assert not imported, imported
"""


def test_no_peer_is_imported_before_it_explains():
    subprocess.run([sys.executable, "-c", IMPORT_THE_ADAPTERS], check=True, timeout=120)


def test_zennit_without_its_init_does_not_stay_in_sys_modules():
    skip_unless_installed(zennit.Epsilon())
    zennit.zennit_modules()
    assert "zennit" not in sys.modules or "torchvision" in sys.modules


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_workers_model_has_the_tolerance_of_the_axioms(dtype):
    assert TOLERANCE[dtype] == tolerance(torch.ones(1, dtype=dtype))
