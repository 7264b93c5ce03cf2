"""Other libraries' explainers under the axioms: the figures of docs/peers.md.

``pytest -m peers``. A peer that leaves its own claim is a finding, told in the tables; what fails a test here is what
this project says of itself: that captum's figures are ours, that our rules become autolrp's when told to.
"""

import re
from collections import Counter
from copy import deepcopy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from faithcheck.axioms import AXIOMS
from faithcheck.axioms.engine.check import Check, Settings
from faithcheck.axioms.engine.left_behind import restored
from faithcheck.explainers import AttnLRP, GradientTimesInput, IntegratedGradients
from faithcheck.explainers.adapters import Adapted
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.lrp.engine import LRP, operation_name
from faithcheck.explainers.lrp.rules import ATTNLRP, REARRANGEMENTS
from faithcheck.explainers.peers import autolrp, captum, every_peer, lxt
from faithcheck.explainers.protocol import Unsupported, attribution_of
from faithcheck.models.case import select_target
from faithcheck.models.pair import registered_pairs
from faithcheck.reports.pages.wording import number
from faithcheck.tests.helpers import peer_rules

PEERS = [peer for peer in every_peer() if "not installed" not in peer.origin]
MISSING = sorted({peer.origin for peer in every_peer()} - {peer.origin for peer in PEERS})

pytestmark = [pytest.mark.peers, pytest.mark.skipif(not PEERS, reason="no peer is installed: make peers")]
of_captum, of_autolrp = (
    pytest.mark.skipif(f"{name}, not installed" in MISSING, reason=f"{name} is not installed: make peers")
    for name in ("captum", "autolrp")
)

LIBRARIES = list(dict.fromkeys(peer.distribution for peer in PEERS))
PAIRS = """
    product.x1x2x3 product.n4_depths_2222 product.n5_depths_12344 gated.unit gated.silu gated.swiglu
    gated.swiglu_reassociated activation.gelu_erf activation.gelu_new_class activation.sigmoid_tanh maximum.absolute
    relu.sundararajan relu.rescaled halves.linear halves.residual batch_norm.linear batch_norm.conv norm.layer_norm
    norm.rms_norm norm.llama_rms_norm softmax.mixture softmax.exp_divide softmax.stable linear_attention.symbolic
    linear_attention.assoc control.mlp sharing.activations_bert attention.sdpa_bert basis.query_key_bert
    permutation.heads_bert folding.norm_bert folding.value_bias_bert attention.sdpa_gpt2 attention.sdpa_llama
    attention.sdpa_vit attention.fused_bert_trained
""".split()
"""From the simplest to whole Transformers: "first" in the tables is the first in this order."""

CLAIMS = {"invariance": "one map for two implementations", "completeness": "Σ = f(x) − f(x′)", "sum": "Σ = f(x)"}


# --- measuring ------------------------------------------------------------------------------------------------------


class Remembered:
    """A peer that explains each model once, whichever claim is measured."""

    def __init__(self, peer):
        self.name, self.claims, self.peer, self.found = peer.name, peer.claims, peer, {}

    def attribute(self, model, case):
        if id(model) not in self.found:
            try:
                self.found[id(model)] = attribution_of(self.peer, model, case)
            except Exception as error:
                self.found[id(model)] = error
        found = self.found[id(model)]
        if isinstance(found, Exception):
            raise found
        return found.clone()


def measured(peer, pair, settings):
    """How each claim of a peer fares on a pair: {claim: ("held", "violated", "refused" or "error", gap or words)}."""
    models = pair.build(settings.seed, settings.dtype, settings.device)
    case = pair.case(settings.seed, settings.dtype, settings.device)
    axioms = frozenset({"invariance", "completeness"})
    fixed = replace(pair, build=lambda *_: models, case=lambda *_: case, axioms=pair.axioms | axioms)
    who = Remembered(peer)
    cells = {}
    for axiom in sorted(axioms):
        cells[axiom] = [settled(Check(axiom, who, fixed, side).run(settings)) for side in AXIOMS[axiom].sides(fixed)]
    if peer.relevance:
        cells["sum"] = [summed(who, model, case) for model in models]
    # A claim about each model is as good as on the worse of the two.
    return {
        claim: max(both, key=lambda cell: (WORDS.index(cell[0]), cell[1] if isinstance(cell[1], float) else 0))
        for claim, both in cells.items()
    }


def settled(record):
    if record.status == "unsupported":
        return "refused", record.detail["reason"]
    if record.gap is None:
        return "error", record.detail["error"]
    return ("held" if record.gap <= ROUNDED else "violated"), record.gap


def summed(who, model, case):
    """Whether a map sums to f(x), relative to the larger of the two."""
    try:
        total = who.attribute(model, case).sum(1)
    except Unsupported as refusal:
        return "refused", str(refusal)
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"
    output = select_target(case.run(model).detach(), case.target)
    size = torch.maximum(total.abs(), output.abs())
    gap = float(torch.where(size > 0, (total - output).abs() / size, 0).max())
    return ("held" if gap <= STABILISED else "violated"), gap


ROUNDED = 1e-6
"""What a peer may round: captum's quadrature weights are float32 whatever it is given. The suite's own is 1e-9."""
WORDS = ("held", "violated", "refused", "error")
STABILISED = 1e-3
"""What an ε of 1e-6 or 1e-9 in each denominator may cost a sum."""


@cache
def operations(name):
    """The operations that carry relevance in the two models of a pair."""
    settings = Settings()
    found = set()

    class Listing(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.requires_grad:
                found.add(operation_name(func))
            return result

    pair = registered_pairs()[name]
    case = pair.case(settings.seed, settings.dtype, settings.device)
    for model in pair.build(settings.seed, settings.dtype, settings.device):
        model.requires_grad_(False)
        lent = replace(case, inputs=case.inputs.clone().requires_grad_())
        with Listing():
            lent.run(model)
    return found - MOVED


MOVED = set(REARRANGEMENTS) - set("relu abs neg max min amax amin maximum minimum".split())


@pytest.fixture(scope="module")
def cells(request):
    """Every peer's every claim on every pair, measured once."""
    settings, registry = Settings(seed=request.config.option.seed), registered_pairs()
    found = {}
    for name in PAIRS:
        for peer in PEERS:
            found |= {
                (peer.name, claim, name): cell for claim, cell in measured(peer, registry[name], settings).items()
            }
    return found


def first_violation(cells, peer, claim):
    """The first pair that breaks it, with its gap, and the operations of it that no pair on which it holds has."""
    held = [name for name in PAIRS if cells[peer.name, claim, name][0] == "held"]
    broken = [name for name in PAIRS if cells[peer.name, claim, name][0] == "violated"]
    if not broken:
        return "–", "–"
    first = f"{broken[0]} ({number(cells[peer.name, claim, broken[0]][1])})"
    if claim == "sum":
        return first, first_loss(peer)
    seen = set().union(*map(operations, held))
    own = operations(broken[0]) - seen
    said = ", ".join(sorted(own)) if own else f"none of its own: {', '.join(sorted(operations(broken[0])))}"
    return first, said


def first_loss(peer):
    """Of models of one operation, the first whose map does not sum to f(x), with Σ/f(x)."""
    case = peer_rules.operation_case().select(torch.tensor([0]))
    for name, model in peer_rules.OPERATIONS.items():
        if name in EXCEPTED.get(peer.distribution, ()):
            continue
        if summed(Remembered(peer), model, case)[0] == "violated":
            output = select_target(case.run(model).detach(), case.target)
            return f"{name} (Σ/f = {share(attribution_of(peer, model, case), output)})"
    return "–"


EXCEPTED = {"lxt": ("linear, bias", "x + constant")}
"""What a peer's own claim leaves out: lxt's conservation is one “excluding bias terms”."""


def shown(cell):
    word, what = cell
    return {"held": f"✓ {number(what)}", "violated": f"✗ {number(what)}", "refused": "–", "error": "!"}[word]


# --- the tables -----------------------------------------------------------------------------------------------------


def test_the_claims_of_every_peer(cells, table):
    rows, refusals = [], {}
    for peer in PEERS:
        for claim in CLAIMS:
            if (peer.name, claim, PAIRS[0]) not in cells:
                continue
            counted = Counter(cells[peer.name, claim, name][0] for name in PAIRS)
            claimed = (claim if claim != "sum" else "conservation") in peer.claims
            counts = [counted[word] for word in WORDS]
            rows.append([peer.name, claim, "yes" if claimed else "no", *counts, *first_violation(cells, peer, claim)])
        for name in PAIRS:
            word, what = cells[peer.name, "invariance", name]
            if word in ("refused", "error"):
                what = re.sub(r"(?<= )[-\d][-\d.e]*\d", "…", what)
                refusals.setdefault((peer.name, word, what), []).append(name)
    assert len({name for _, _, name in cells}) >= 20
    origins = ", ".join([*dict.fromkeys(peer.origin for peer in PEERS), *MISSING])
    table(
        {
            "title": "Peers and what they claim",
            "note": f"{origins}; {len(PAIRS)} pairs, seed 0, float64. "
            + "; ".join(f"{claim}: {what}" for claim, what in CLAIMS.items())
            + f" (to {STABILISED:g}, for their ε; the others to {ROUNDED:g}). First: in the order of the table of "
            "pairs; with the operations of that pair that no pair on which the claim holds has; for the sum, with the "
            "first model of one operation that loses or makes relevance.",
            "columns": [
                "peer",
                "claim",
                "its own",
                "held",
                "violated",
                "refused",
                "error",
                "first violated",
                "operation",
            ],
            "rows": rows,
        }
    )
    table(
        {
            "title": "What peers refuse",
            "note": "In the peer's own words; “error” is one that is no refusal.",
            "columns": ["peer", "how", "what it says", "pairs", "first"],
            "rows": [[who, how, said[:300], len(names), names[0]] for (who, how, said), names in refusals.items()],
        }
    )


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_pair(cells, table, library, claim):
    columns = [p for p in PEERS if p.distribution == library and (p.name, claim, PAIRS[0]) in cells]
    if not columns:
        pytest.skip(f"{library} does not claim that its maps sum to the output")
    table(
        {
            "title": f"{library}: {claim}",
            "note": f"{CLAIMS[claim]}; the gap; – refused, ! an error.",
            "columns": ["pair", *(peer.name.removeprefix(f"{library}_") for peer in columns)],
            "rows": [[name, *(shown(cells[peer.name, claim, name]) for peer in columns)] for name in PAIRS],
        }
    )


def relative(one, other):
    """The largest difference of two maps, relative to the larger map of the example."""
    size = torch.maximum(one.abs().amax(1), other.abs().amax(1))
    return float(torch.where(size > 0, (one - other).abs().amax(1) / size, 0).max())


SAME = [
    (captum.IntegratedGradients(), IntegratedGradients(steps=50)),
    (captum.LayerIntegratedGradients(), IntegratedGradients(steps=50)),
    (captum.InputXGradient(), GradientTimesInput()),
    (captum.FeatureAblation(), LeaveOneOut()),
]


@of_captum
@pytest.mark.parametrize(("theirs", "ours"), SAME, ids=[theirs.name for theirs, _ in SAME])
@pytest.mark.filterwarnings("ignore::faithcheck.explainers.gradients.CompletenessWarning")
def test_captums_figures_are_ours(theirs, ours, settings, table):
    gaps = {}
    for name, pair in registered_pairs().items():
        case = pair.case(settings.seed, settings.dtype, settings.device)
        for side, model in zip("fg", pair.build(settings.seed, settings.dtype, settings.device), strict=True):
            gaps[f"{name}.{side}"] = relative(attribution_of(theirs, model, case), attribution_of(ours, model, case))
    worst = sorted(gaps, key=gaps.get, reverse=True)
    # Llama's RMSNorm computes in float32 whatever it is given: there f itself has 1e-7 of round-off.
    rounded = {name: gap for name, gap in gaps.items() if "llama" in name}
    exact = {name: gap for name, gap in gaps.items() if name not in rounded}
    table(
        {
            "title": f"{theirs.name} against {ours.name}",
            "note": f"{len(gaps)} models, all of the registry; the largest difference, relative to an example's map.",
            "columns": ["models", "largest", "where", "above 1e-6"],
            "rows": [
                [kind, number(max(some.values())), max(some, key=some.get), sum(gap > 1e-6 for gap in some.values())]
                for kind, some in (("float64 throughout", exact), ("with Llama's RMSNorm", rounded))
            ],
        }
    )
    assert max(exact.values()) <= 1e-6, worst[:5]
    assert max(rounded.values()) <= 1e-5, worst[:5]


def test_what_peers_leave_behind(table, settings):
    rows = []
    registry = registered_pairs()
    for peer in PEERS:
        for name in ("control.mlp", "batch_norm.conv", "attention.sdpa_bert"):
            model = registry[name].build(settings.seed, settings.dtype, settings.device)[0]
            case = registry[name].case(settings.seed, settings.dtype, settings.device)
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            attributes = {n: set(vars(module)) for n, module in model.named_modules()}
            outcome = "explained"
            with restored(model) as left:
                try:
                    Adapted(peer.name, peer.explain).attribute(model, case)  # not the copy that it is given else
                except Exception as error:
                    outcome = type(error).__name__
            new = {key for n, module in model.named_modules() for key in set(vars(module)) - attributes.get(n, set())}
            left = [*left, *([f"attributes: {', '.join(sorted(new))}"] if new else [])]
            if left:
                rows.append([peer.name, name, outcome, "; ".join(left)])
            assert not left or peer.leaves, f"{peer.name} leaves {left}, which its adapter does not say"
    table(
        {
            "title": "What peers leave behind",
            "note": "On the model itself and in the process, where it is not a copy that they are given.",
            "columns": ["peer", "model", "it", "left behind"],
            "rows": rows,
        }
    )


@of_autolrp
def test_every_rule(table):
    """Operation by operation: LRP by a peer against ours, and against ours with the peer's ε and without its sign."""
    case = peer_rules.operation_case()
    peers = [peer for peer in PEERS if peer.distribution in ("autolrp", "lxt")]
    unsigned = [LRP("unsigned", ATTNLRP, epsilon, signed=False) for epsilon in (1e-6, 1e-8, 1e-6 / 4)]
    rows = []
    for name, model in peer_rules.OPERATIONS.items():
        ours = attribution_of(AttnLRP(), model, case)
        output = select_target(case.run(model).detach(), case.target)
        row = [name, share(ours, output)]
        for peer in peers:
            theirs = attribution_of(peer, model, case)
            row += [number(relative(theirs, ours)), share(theirs, output)]
            if isinstance(peer, lxt.Explicit):
                row.append(number(min(relative(theirs, attribution_of(one, model, case)) for one in unsigned)))
        rows.append(row)
        emulated = attribution_of(LRP("autolrp", peer_rules.AUTOLRP), model, case)
        assert relative(emulated, attribution_of(autolrp.AttnLRP(), model, case)) < 1e-9, name
    columns = [f"{peer.name}{what}" for peer in peers for what in (" − ours", " Σ/f")]
    table(
        {
            "title": "LRP's rules, operation by operation",
            "note": "The largest difference from our AttnLRP, relative to the map; Σ/f of the first point. Last: lxt "
            "against ours with its ε (1e-6, 1e-8, or of a mean of four 1e-6/4) and no sign.",
            "columns": ["operation", "ours Σ/f", *columns, "lxt − ours, ε unsigned"],
            "rows": rows,
        }
    )


def share(attribution, output):
    return number(float(attribution[0].sum() / output[0]), 3) if output[0] else "0/0"


def test_what_each_operation_keeps(table):
    """Σ/f(x) of models of one operation, or of one module: where relevance is lost or made."""
    case = peer_rules.operation_case()
    case = case.select(torch.tensor([0]))
    peers = [AttnLRP(), *(peer for peer in PEERS if peer.relevance)]
    rows = []
    for name, model in (peer_rules.OPERATIONS | peer_rules.modules()).items():
        output = select_target(case.run(model).detach(), case.target)
        row = [name]
        for peer in peers:
            try:
                row.append(share(attribution_of(peer, model, case), output))
            except Unsupported:
                row.append("–")
        rows.append(row)
    table(
        {
            "title": "What one operation keeps",
            "note": "Σ/f(x) at one point: 1 where relevance is kept. An operation that is no module is one that zennit "
            "and captum's LRP do not see: there the figure is that of gradient × output. – refused.",
            "columns": ["operation", *(peer.name for peer in peers)],
            "rows": rows,
        }
    )


ROW_MODELS = """attention.fused_bert_trained attention.sdpa_bert attention.sdpa_roberta attention.sdpa_gpt2
    attention.sdpa_llama attention.sdpa_vit linear_attention.assoc product.x1x2x3""".split()


@of_autolrp
def test_from_our_attnlrp_to_autolrps(table, settings):
    """Our table, changed row by row into autolrp's, on whole models."""
    rows = []
    for name in ROW_MODELS:
        pair = registered_pairs()[name]
        model = pair.build(settings.seed, settings.dtype, settings.device)[0]
        case = pair.case(settings.seed, settings.dtype, settings.device)
        theirs = attribution_of(autolrp.AttnLRP(), model, case)
        changed, gaps = dict(ATTNLRP), []
        for row in ({}, *peer_rules.ROWS.values()):
            changed |= row
            gaps.append(relative(attribution_of(LRP("changed", changed), model, case), theirs))
        rows.append([name, *map(number, gaps)])
        assert gaps[-1] < 1e-7, name
    table(
        {
            "title": "From our AttnLRP to autolrp's, row by row",
            "note": "The largest difference from autolrp's ATTNLRP, relative to the map, as our rules are changed one "
            "after another into autolrp's; relevance starts as the explained output in both.",
            "columns": ["model", "ours", *(f"+ {row}" for row in peer_rules.ROWS)],
            "rows": rows,
        }
    )


@of_autolrp
def test_which_rule_tracks_leave_one_out(prepared, table):
    """What each of the rows does to the agreement with Leave-One-Out, on real sentences."""
    examples, model = prepared.examples[:SENTENCES], deepcopy(prepared.model).double()
    methods = {"ours": ATTNLRP, **{row: {**ATTNLRP, **rules} for row, rules in peer_rules.ROWS.items()}}
    explainers = {name: LRP(name, rules) for name, rules in methods.items()}
    explainers |= {"all of them": LRP("all", peer_rules.AUTOLRP), "autolrp itself": autolrp.AttnLRP()}
    found = {name: [] for name in explainers}
    for example in examples:
        case = off_zero(prepared.model.case([example]))
        loo = attribution_of(LeaveOneOut(prepared.setup.removal), model, case)[case.non_special].numpy()
        for name, explainer in explainers.items():
            attribution = attribution_of(explainer, model, case)[case.non_special].numpy()
            found[name].append(np.corrcoef(attribution, loo)[0, 1])
    table(
        {
            "title": f"AttnLRP with autolrp's rules, against LOO: {prepared.data.name}",
            "note": f"Mean Pearson's r with attention-mask LOO over {len(examples)} texts, special tokens left out; "
            "our rules with one of autolrp's at a time.",
            "columns": ["rules", "r with LOO"],
            "rows": [[name, f"{np.mean(values):.3f}"] for name, values in found.items()],
        }
    )
    assert np.allclose(found["all of them"], found["autolrp itself"], atol=1e-3)


SENTENCES = 60


def off_zero(case):
    """In float64, and 1e-9 off: an embedding of exactly 0 can hold relevance in autolrp, as a gradient it cannot."""
    noise = torch.randn(case.inputs.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return replace(case, inputs=case.inputs.double() + 1e-9 * noise, baseline=case.baseline.double(), replacements={})
