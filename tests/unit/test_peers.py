"""Adapters to other libraries' explainers: what they hand over, what they refuse, what they leave.

Fast; the peers' verdicts are measured by ``pytest -m peers``.
"""

import re
import subprocess
import sys
from importlib import metadata

import pytest
import torch
from torch import nn

from faithcheck.axioms.trace import trace
from faithcheck.explainers import AttnLRP, GradientTimesInput, IntegratedGradients
from faithcheck.explainers import peers as adapters
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.peers import autolrp, captum, every_peer, lxt, shap, zennit
from faithcheck.explainers.protocol import InvalidAttribution, Unsupported, attribution_of
from faithcheck.models.case import Case, select_target
from faithcheck.models.pair import registered_pairs
from faithcheck.tests.helpers import peer_rules

PEERS = every_peer()


def installed(*peers):
    """Skip a test of peers that are not there."""
    missing = sorted({peer.origin for peer in peers if "not installed" in peer.origin})
    if missing:
        pytest.skip(f"{', '.join(missing)}: pip install 'faithcheck[peers]'")


def built(name, side=0, dtype=torch.float64):
    pair, device = registered_pairs()[name], torch.device("cpu")
    return pair.build(0, dtype, device)[side], pair.case(0, dtype, device)


def relative(one, other):
    return float((one - other).abs().max() / torch.maximum(one.abs().max(), other.abs().max()))


# --- captum's figures are ours --------------------------------------------------------------------------------------

PAIRS = ["product.x1x2x3", "norm.layer_norm", "linear_attention.assoc", "attention.sdpa_bert", "probe.padded"]
SAME = [
    (captum.IntegratedGradients(), IntegratedGradients(steps=50)),
    (captum.LayerIntegratedGradients(), IntegratedGradients(steps=50)),
    (captum.InputXGradient(), GradientTimesInput()),
    (captum.FeatureAblation(), LeaveOneOut()),
    (zennit.GradientTimesInput(), GradientTimesInput()),
]


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize(("theirs", "ours"), SAME, ids=[theirs.name for theirs, _ in SAME])
def test_they_give_the_same_figures_as_ours(theirs, ours, name):
    installed(theirs)
    model, case = built(name)
    expected = attribution_of(ours, model, case)
    found = attribution_of(theirs, model, case)
    # Captum rounds its quadrature weights to float32, whatever it is given; the others agree to the last bits.
    assert relative(found, expected) <= (1e-6 if "integrated" in theirs.name else 1e-12)
    assert expected.abs().max() > 1e-3


def test_another_quadrature_gives_other_figures():
    # The zero baseline is where an RMSNorm's slope is steepest: 32 nodes and captum's 50 are both too few there.
    installed(captum.IntegratedGradients())
    model, case = built("attention.sdpa_llama")
    default, ours = captum.IntegratedGradients(), IntegratedGradients(steps=32)
    with pytest.warns(UserWarning, match="misses completeness"):
        assert relative(attribution_of(default, model, case), attribution_of(ours, model, case)) > 0.01


def test_shapley_values_of_a_product_are_equal_shares():
    installed(shap.Exact())
    model, case = built("product.x1x2x3")
    share = select_target(case.run(model), case.target).detach() / 3
    exact, drawn = attribution_of(shap.Exact(), model, case), attribution_of(shap.Permutation(), model, case)
    assert torch.allclose(exact, share.unsqueeze(1).expand(case.shape), rtol=1e-12)
    assert torch.allclose(drawn.sum(1), 3 * share, rtol=1e-12)  # drawn, so not equal, but complete
    assert relative(drawn, exact) > 0.01


# --- LRP: the oracles decide ----------------------------------------------------------------------------------------


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
        # In proportion to magnitudes: 24 · 6/(6 + 4) goes to x₁x₂, of which x₁ gets 2/5; 24 · 2/(2 + 12) to x₁.
        (autolrp.AttnLRP(), (5.76, 8.64, 9.6), (24 / 7, 24 * 6 / 7 * 3 / 7, 24 * 6 / 7 * 4 / 7)),
    ],
    ids=["attnlrp", "lxt", "autolrp"],
)
def test_three_factors(explainer, left, right):
    if explainer != AttnLRP():
        installed(explainer)
    for right_first, expected in ((False, left), (True, right)):
        found = attribution_of(explainer, Product(right_first), POINT)
        assert torch.allclose(found, torch.tensor([expected], dtype=torch.float64), rtol=1e-9)


@pytest.mark.parametrize("name", peer_rules.OPERATIONS)
def test_autolrps_rules_are_known(name):
    installed(autolrp.AttnLRP())
    model, case = peer_rules.OPERATIONS[name], peer_rules.operation_case()
    theirs = attribution_of(autolrp.AttnLRP(), model, case)
    assert torch.allclose(attribution_of(LRP("theirs", peer_rules.AUTOLRP), model, case), theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["attention.sdpa_bert", "attention.sdpa_gpt2", "attention.sdpa_llama"])
def test_our_rules_become_autolrps_row_by_row(name):
    installed(autolrp.AttnLRP())
    model, case = built(name)
    theirs = attribution_of(autolrp.AttnLRP(), model, case)
    assert relative(attribution_of(AttnLRP(), model, case), theirs) > 0.1
    assert relative(attribution_of(LRP("theirs", peer_rules.AUTOLRP), model, case), theirs) < 1e-7


def test_autolrp_starts_with_one_where_its_readme_says_the_logit():
    installed(autolrp.Base())
    import autolrp as peer

    model = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    x = -model.weight.detach()  # the logit is negative
    case = Case(x, torch.tensor([0]), torch.zeros_like(x))
    lent = peer.tensor(x)
    output = model(lent)
    output[0, 0].lrp()
    assert output[0, 0] < 0
    assert lent.relevance.sum().item() == pytest.approx(1)
    adapted = attribution_of(autolrp.Base(), model, case)
    assert adapted.sum().item() == pytest.approx(output[0, 0].item())


EXACT = ["x · constant", "x · y", "x / y", "softmax", "gelu", "tanh", "relu", "silu"]  # no stabiliser in lxt


@pytest.mark.parametrize("name", [name for name in peer_rules.OPERATIONS if name != "X C, constant"])
def test_lxts_rules_are_ours_but_for_the_sign_of_the_stabiliser(name):
    installed(lxt.Explicit())
    model, case = peer_rules.OPERATIONS[name], peer_rules.operation_case()
    theirs = attribution_of(lxt.Explicit(), model, case)
    epsilons = (0.0,) if name in EXACT else (1e-6, 1e-8, 1e-6 / 4)  # a mean of 4 has its ε in a sum of 4
    ours = [attribution_of(LRP("ours", ATTNLRP, epsilon, signed=False), model, case) for epsilon in epsilons]
    assert min((theirs - one).abs().max() for one in ours) < 1e-11


def test_lxts_matmul_loses_half_where_one_operand_is_a_constant():
    installed(lxt.Explicit())
    model, case = peer_rules.OPERATIONS["X C, constant"], peer_rules.operation_case()
    assert torch.allclose(
        attribution_of(lxt.Explicit(), model, case), attribution_of(AttnLRP(), model, case) / 2, rtol=1e-5
    )


def test_lxts_stabiliser_has_a_pole():
    installed(lxt.Explicit())
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


def normed():
    return nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 1))


REFUSALS = [
    (captum.LRP(), normed, r"LayerNorm'> has no rule defined.*attribute `rule`"),
    (captum.DeepLift(), Twice, r"ReLU\(\) was detected that does not contain.*module of its own"),
    (shap.Deep(), normed, r"unrecognized nn.Module: LayerNorm – use shap_exact"),
    (shap.Gradient(), normed, r"the same dtype.* in float32"),
    (autolrp.AttnLRP(), Cumulative, r"no installer matched 'CumprodBackward0'.*register_installer or register_rewrite"),
    (lxt.Explicit(), Cumulative, r"cumprod in the model \(Cumulative\): no rule for this operation"),
]


@pytest.mark.parametrize(("peer", "make", "words"), REFUSALS, ids=[peer.name for peer, _, _ in REFUSALS])
def test_refusals_are_in_the_peers_own_words(peer, make, words):
    installed(peer)
    torch.manual_seed(0)
    model = make().double().eval()
    x = torch.randn(2, 3, dtype=torch.float64)
    with pytest.raises(Unsupported, match=words) as refusal:
        peer.attribute(model, Case(x, torch.zeros(2, dtype=torch.int64), torch.zeros_like(x)))
    assert peer.origin in str(refusal.value) or isinstance(peer, lxt.Explicit)


def test_shap_exact_refuses_many_features_and_names_another():
    installed(shap.Exact())
    model, case = built("linear_attention.assoc")
    with pytest.raises(Unsupported, match=r"masked evaluations.*shap_permutation"):
        shap.Exact().attribute(model, case)


def test_an_error_that_is_no_refusal_is_an_error():
    installed(captum.LRP())

    class Broken(nn.Module):
        def forward(self, x):
            raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        captum.LRP().attribute(Broken(), POINT)


# --- what they are, what they leave ---------------------------------------------------------------------------------


@pytest.mark.parametrize("peer", PEERS, ids=[peer.name for peer in PEERS])
def test_each_says_its_version(peer):
    installed(peer)
    assert peer.origin == f"{peer.distribution} {metadata.version(peer.distribution)}"
    assert re.fullmatch(r"[a-z]+ \d+\.\d+(\.\d+)?", peer.origin)
    assert peer.name.startswith(f"{peer.distribution}_")


@pytest.mark.parametrize("name", ["control.mlp", "probe.padded"])
@pytest.mark.parametrize("peer", PEERS, ids=[peer.name for peer in PEERS])
def test_none_leaves_a_trace(peer, name):
    installed(peer)
    model, case = built(name)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    attributes = {where: set(vars(module)) for where, module in model.named_modules()}
    try:
        measurement = trace(peer, model, case)
    except Unsupported as refusal:
        pytest.skip(str(refusal)[:200])
    assert measurement.gap == 0, measurement.detail
    assert attributes == {where: set(vars(module)) for where, module in model.named_modules()}


def test_every_kind_of_explainer_is_there():
    assert len(PEERS) == len({peer.name for peer in PEERS}) == 18
    assert {peer.distribution for peer in PEERS} == {"captum", "autolrp", "shap", "zennit", "lxt"}


def test_a_peer_that_is_not_installed_names_the_extra(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setitem(sys.modules, "captum.attr", None)
    monkeypatch.setattr(adapters.metadata, "version", missing)
    model, case = built("control.mlp")
    assert captum.InputXGradient().origin == "captum, not installed"
    with pytest.raises(ImportError, match=r"faithcheck\[peers\]"):
        captum.InputXGradient().attribute(model, case)


LAZY = """
import sys
from faithcheck.explainers.peers import every_peer
origins = [peer.origin for peer in every_peer()]
found = {"captum", "autolrp", "shap", "zennit", "lxt"} & set(sys.modules)
assert not found, found
"""


def test_no_peer_is_imported_before_it_explains():
    subprocess.run([sys.executable, "-c", LAZY], check=True, timeout=120)


def test_zennit_without_torchvision_is_no_package_for_others():
    installed(zennit.Epsilon())
    zennit.parts()
    assert "zennit" not in sys.modules or "torchvision" in sys.modules
