"""Other libraries' explainers under the axioms: the tables of docs/results/peers.md.

``pytest -m peers``. A peer that violates its own claim is a result, which the tables show, and fails no test. A test
fails if a claim of this project is wrong: that captum's attributions equal ours, or that the rules in
`tests.helpers.peer_rules` are those of autolrp.
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
from faithcheck.axioms.trace import restored
from faithcheck.check import Check
from faithcheck.explainers import AttnLRP, GradientTimesInput, IntegratedGradients
from faithcheck.explainers.adapters import AdaptedExplainer
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.operation_table import operations_with
from faithcheck.explainers.lrp.operations import Trait, operation_name
from faithcheck.explainers.peers import autolrp, captum, lxt
from faithcheck.explainers.protocol import Unsupported, attribution_of
from faithcheck.models.case import select_target
from faithcheck.models.pair import registered_pairs
from faithcheck.reports.pages.wording import number
from faithcheck.request import Settings
from faithcheck.tests.helpers import peer_rules
from faithcheck.tests.helpers.every_peer import every_peer

PEERS = [peer for peer in every_peer() if "not installed" not in peer.origin]
MISSING = sorted({peer.origin for peer in every_peer()} - {peer.origin for peer in PEERS})

pytestmark = [pytest.mark.peers, pytest.mark.skipif(not PEERS, reason="no peer is installed: make peers")]
needs_captum, needs_autolrp = (
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
"""From the simplest to whole Transformers. "First" in the tables is the first in this order."""

CLAIMS = {
    "invariance": "the same attribution for both implementations",
    "completeness": "Σ = f(x) − f(x′)",
    "sum": "Σ = f(x)",
}


# --- measuring ------------------------------------------------------------------------------------------------------


class Cached:
    """A peer that explains each model only once, for all claims."""

    def __init__(self, peer):
        self.name, self.claims, self.peer, self.results = peer.name, peer.claims, peer, {}

    def attribute(self, model, case):
        if id(model) not in self.results:
            try:
                self.results[id(model)] = attribution_of(self.peer, model, case)
            except Exception as error:
                self.results[id(model)] = error
        result = self.results[id(model)]
        if isinstance(result, Exception):
            raise result
        return result.clone()


def outcomes_on(peer, pair, settings):
    """The outcome of each claim of a peer on a pair: {claim: (one of OUTCOMES, gap or message)}."""
    models = pair.build(settings.seed, settings.dtype, settings.device)
    case = pair.case(settings.seed, settings.dtype, settings.device)
    axioms = frozenset({"invariance", "completeness"})
    fixed = replace(pair, build=lambda *_: models, case=lambda *_: case, axioms=pair.axioms | axioms)
    cached = Cached(peer)
    by_side = {}
    for axiom in sorted(axioms):
        by_side[axiom] = [
            outcome_of(Check(axiom, cached, fixed, side).run(settings)) for side in AXIOMS[axiom].sides(fixed)
        ]
    if peer.relevance:
        by_side["sum"] = [outcome_of_sum(cached, model, case) for model in models]
    # The outcome of a claim about single models is the worse of its outcomes on the two models.
    return {claim: max(outcomes, key=severity) for claim, outcomes in by_side.items()}


def severity(outcome):
    word, gap = outcome
    return OUTCOMES.index(word), gap if isinstance(gap, float) else 0


def outcome_of(record):
    if record.status == "unsupported":
        return "refused", record.detail["reason"]
    if record.gap is None:
        return "error", record.detail["error"]
    return ("held" if record.gap <= TOLERANCE else "violated"), record.gap


def outcome_of_sum(explainer, model, case):
    """The outcome of Σ = f(x); the gap is relative to the larger of the two."""
    try:
        total = explainer.attribute(model, case).sum(1)
    except Unsupported as refusal:
        return "refused", str(refusal)
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"
    output = select_target(case.run(model).detach(), case.target)
    size = torch.maximum(total.abs(), output.abs())
    gap = float(torch.where(size > 0, (total - output).abs() / size, 0).max())
    return ("held" if gap <= SUM_TOLERANCE else "violated"), gap


TOLERANCE = 1e-6
"""Larger than the suite's 1e-9, because captum rounds its quadrature weights to float32."""
SUM_TOLERANCE = 1e-3
"""Allows for what an ε of 1e-6 or 1e-9 in each denominator takes from a sum."""
OUTCOMES = ("held", "violated", "refused", "error")  # from the best to the worst


@cache
def operations(name):
    """The names of the operations with relevance in the two models of a pair."""
    settings = Settings()
    names = set()

    class Listing(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.requires_grad:
                names.add(operation_name(func))
            return result

    pair = registered_pairs()[name]
    case = pair.case(settings.seed, settings.dtype, settings.device)
    for model in pair.build(settings.seed, settings.dtype, settings.device):
        model.requires_grad_(False)
        with_gradient = replace(case, inputs=case.inputs.clone().requires_grad_())
        with Listing():
            with_gradient.run(model)
    return names - WITHOUT_VALUES


WITHOUT_VALUES = operations_with(Trait.REARRANGEMENT) - set("relu abs neg max min amax amin maximum minimum".split())


@pytest.fixture(scope="module")
def outcomes(request):
    """The outcome of every claim of every peer on every pair: {(peer, claim, pair): outcome}, measured once."""
    settings, registry = Settings(seed=request.config.option.seed), registered_pairs()
    return {
        (peer.name, claim, name): outcome
        for name in PAIRS
        for peer in PEERS
        for claim, outcome in outcomes_on(peer, registry[name], settings).items()
    }


def first_violation(outcomes, peer, claim):
    """The first pair that violates a claim, with the gap, and its operations that no pair has on which it holds."""
    held = [name for name in PAIRS if outcomes[peer.name, claim, name][0] == "held"]
    violated = [name for name in PAIRS if outcomes[peer.name, claim, name][0] == "violated"]
    if not violated:
        return "–", "–"
    first = f"{violated[0]} ({number(outcomes[peer.name, claim, violated[0]][1])})"
    if claim == "sum":
        return first, first_loss(peer)
    own = operations(violated[0]) - set().union(*map(operations, held))
    listed = ", ".join(sorted(own)) if own else f"none of its own: {', '.join(sorted(operations(violated[0])))}"
    return first, listed


def first_loss(peer):
    """The first model of one operation whose attribution does not sum to f(x), with Σ/f(x)."""
    case = peer_rules.operation_case().select(torch.tensor([0]))
    for name, model in peer_rules.OPERATIONS.items():
        if name in EXCEPTED.get(peer.distribution, ()):
            continue
        if outcome_of_sum(Cached(peer), model, case)[0] == "violated":
            output = select_target(case.run(model).detach(), case.target)
            return f"{name} (Σ/f = {share(attribution_of(peer, model, case), output)})"
    return "–"


EXCEPTED = {"lxt": ("linear, bias", "x + constant")}
"""Operations that a peer's own claim excludes: lxt claims conservation “excluding bias terms”."""


def cell(outcome):
    word, gap = outcome
    if word in ("refused", "error"):
        return {"refused": "–", "error": "!"}[word]
    return f"{'✓' if word == 'held' else '✗'} {number(gap)}"


# --- the tables -----------------------------------------------------------------------------------------------------


def test_the_claims_of_every_peer(outcomes, table):
    rows, refusals = [], {}
    for peer in PEERS:
        for claim in CLAIMS:
            if (peer.name, claim, PAIRS[0]) not in outcomes:
                continue
            counted = Counter(outcomes[peer.name, claim, name][0] for name in PAIRS)
            claimed = (claim if claim != "sum" else "conservation") in peer.claims
            counts = [counted[word] for word in OUTCOMES]
            rows.append(
                [peer.name, claim, "yes" if claimed else "no", *counts, *first_violation(outcomes, peer, claim)]
            )
        for name in PAIRS:
            word, message = outcomes[peer.name, "invariance", name]
            if word in ("refused", "error"):
                message = re.sub(r"(?<= )[-\d][-\d.e]*\d", "…", message)
                refusals.setdefault((peer.name, word, message), []).append(name)
    assert len({name for _, _, name in outcomes}) >= 20
    origins = ", ".join([*dict.fromkeys(peer.origin for peer in PEERS), *MISSING])
    table(
        {
            "title": "Peers and what they claim",
            "note": f"{origins}; {len(PAIRS)} pairs, seed 0, float64. "
            + "; ".join(f"{claim}: {meaning}" for claim, meaning in CLAIMS.items())
            + f" (tolerance {SUM_TOLERANCE:g}, for their ε; for the others {TOLERANCE:g}). The first violated pair is "
            "the first in the order of the table of pairs. The operations are those of that pair that no pair has on "
            "which the claim holds; for the sum, the first model of one operation that loses or creates relevance.",
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
            "note": "The message is the peer's own; “error” is an exception that is no refusal.",
            "columns": ["peer", "outcome", "message", "pairs", "first"],
            "rows": [[peer, word, text[:300], len(names), names[0]] for (peer, word, text), names in refusals.items()],
        }
    )


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_gap_on_every_pair(outcomes, table, library, claim):
    columns = [p for p in PEERS if p.distribution == library and (p.name, claim, PAIRS[0]) in outcomes]
    if not columns:
        pytest.skip(f"{library} does not claim that its attributions sum to the output")
    table(
        {
            "title": f"{library}: {claim}",
            "note": f"{CLAIMS[claim]}; the gap; – refused, ! an error.",
            "columns": ["pair", *(peer.name.removeprefix(f"{library}_") for peer in columns)],
            "rows": [[name, *(cell(outcomes[peer.name, claim, name]) for peer in columns)] for name in PAIRS],
        }
    )


def relative_difference(first, second):
    """The largest difference of two attributions, relative to the largest entry of either for the example."""
    size = torch.maximum(first.abs().amax(1), second.abs().amax(1))
    return float(torch.where(size > 0, (first - second).abs().amax(1) / size, 0).max())


SAME = [
    (captum.IntegratedGradients(), IntegratedGradients(steps=50)),
    (captum.LayerIntegratedGradients(), IntegratedGradients(steps=50)),
    (captum.InputXGradient(), GradientTimesInput()),
    (captum.FeatureAblation(), LeaveOneOut()),
]


@needs_captum
@pytest.mark.parametrize(("theirs", "ours"), SAME, ids=[theirs.name for theirs, _ in SAME])
@pytest.mark.filterwarnings("ignore::faithcheck.explainers.gradients.CompletenessWarning")
def test_the_attributions_of_captum_equal_ours(theirs, ours, settings, table):
    gaps = {}
    for name, pair in registered_pairs().items():
        case = pair.case(settings.seed, settings.dtype, settings.device)
        for side, model in zip("fg", pair.build(settings.seed, settings.dtype, settings.device), strict=True):
            gaps[f"{name}.{side}"] = relative_difference(
                attribution_of(theirs, model, case), attribution_of(ours, model, case)
            )
    worst = sorted(gaps, key=gaps.get, reverse=True)
    # Llama's RMSNorm computes in float32 for inputs of any dtype, so f itself has a round-off of 1e-7.
    rounded = {name: gap for name, gap in gaps.items() if "llama" in name}
    exact = {name: gap for name, gap in gaps.items() if name not in rounded}
    table(
        {
            "title": f"{theirs.name} against {ours.name}",
            "note": f"{len(gaps)} models, the whole registry; the largest difference relative to the attribution.",
            "columns": ["models", "largest", "where", "above 1e-6"],
            "rows": [
                [
                    kind,
                    number(max(of_kind.values())),
                    max(of_kind, key=of_kind.get),
                    sum(g > 1e-6 for g in of_kind.values()),
                ]
                for kind, of_kind in (("float64 throughout", exact), ("with Llama's RMSNorm", rounded))
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
            attributes = {path: set(vars(module)) for path, module in model.named_modules()}
            outcome = "explained"
            with restored(model) as differences:
                try:
                    AdaptedExplainer(peer.name, peer.explain).attribute(
                        model, case
                    )  # on the model itself, not on a copy
                except Exception as error:
                    outcome = type(error).__name__
            new = {
                key for path, module in model.named_modules() for key in set(vars(module)) - attributes.get(path, set())
            }
            left_behind = [*differences, *([f"attributes: {', '.join(sorted(new))}"] if new else [])]
            if left_behind:
                rows.append([peer.name, name, outcome, "; ".join(left_behind)])
            assert not left_behind or peer.leaves, f"{peer.name} leaves {left_behind}; its adapter does not say so"
    table(
        {
            "title": "What peers leave behind",
            "note": "On the model itself and in the process, if the peer does not get a copy of the model.",
            "columns": ["peer", "model", "outcome", "left behind"],
            "rows": rows,
        }
    )


@needs_autolrp
def test_the_rule_of_every_operation(table):
    """LRP of each peer compared with ours, and with ours with the peer's ε without a sign, operation by operation."""
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
            row += [number(relative_difference(theirs, ours)), share(theirs, output)]
            if isinstance(peer, lxt.Explicit):
                row.append(
                    number(min(relative_difference(theirs, attribution_of(lrp, model, case)) for lrp in unsigned))
                )
        rows.append(row)
        emulated = attribution_of(LRP("autolrp", peer_rules.AUTOLRP), model, case)
        assert relative_difference(emulated, attribution_of(autolrp.AttnLRP(), model, case)) < 1e-9, name
    columns = [f"{peer.name}{column}" for peer in peers for column in (" − ours", " Σ/f")]
    table(
        {
            "title": "LRP's rules, operation by operation",
            "note": "The largest difference from our AttnLRP, relative to the attribution; Σ/f of the first point. The "
            "last column compares lxt with ours with its ε (1e-6, 1e-8, or 1e-6/4 for a mean of four) without a sign.",
            "columns": ["operation", "ours Σ/f", *columns, "lxt − ours, ε unsigned"],
            "rows": rows,
        }
    )


def share(attribution, output):
    return number(float(attribution[0].sum() / output[0]), 3) if output[0] else "0/0"


def test_the_relevance_that_each_operation_keeps(table):
    """Σ/f(x) of models of one operation, or of one module: which operations lose or create relevance."""
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
            "title": "The relevance that one operation keeps",
            "note": "Σ/f(x) at one point: 1 if all relevance is kept. zennit and captum's LRP do not see an operation "
            "that is no module: they return gradient × output. – refused.",
            "columns": ["operation", *(peer.name for peer in peers)],
            "rows": rows,
        }
    )


TRANSFORMED_MODELS = """attention.fused_bert_trained attention.sdpa_bert attention.sdpa_roberta attention.sdpa_gpt2
    attention.sdpa_llama attention.sdpa_vit linear_attention.assoc product.x1x2x3""".split()


@needs_autolrp
def test_our_attnlrp_changed_step_by_step_into_that_of_autolrp(table, settings):
    """Our table of rules, changed into that of autolrp one difference at a time, on whole models."""
    rows = []
    for name in TRANSFORMED_MODELS:
        pair = registered_pairs()[name]
        model = pair.build(settings.seed, settings.dtype, settings.device)[0]
        case = pair.case(settings.seed, settings.dtype, settings.device)
        theirs = attribution_of(autolrp.AttnLRP(), model, case)
        changed, gaps = dict(ATTNLRP), []
        for change in ({}, *peer_rules.CHANGES.values()):
            changed |= change
            gaps.append(relative_difference(attribution_of(LRP("changed", changed), model, case), theirs))
        rows.append([name, *map(number, gaps)])
        assert gaps[-1] < 1e-7, name
    table(
        {
            "title": "From our AttnLRP to that of autolrp",
            "note": "The largest difference from autolrp's ATTNLRP, relative to the attribution, as our rules are "
            "changed into those of autolrp one after another; relevance starts as the target output in both.",
            "columns": ["model", "ours", *(f"+ {change}" for change in peer_rules.CHANGES)],
            "rows": rows,
        }
    )


@needs_autolrp
def test_the_agreement_of_each_rule_with_leave_one_out(prepared, table):
    """How each rule of autolrp changes the agreement with Leave-One-Out, on real sentences."""
    examples, model = prepared.examples[:SENTENCES], deepcopy(prepared.model).double()
    methods = {"ours": ATTNLRP, **{change: {**ATTNLRP, **rules} for change, rules in peer_rules.CHANGES.items()}}
    explainers = {name: LRP(name, rules) for name, rules in methods.items()}
    explainers |= {"all of them": LRP("all", peer_rules.AUTOLRP), "autolrp itself": autolrp.AttnLRP()}
    correlations = {name: [] for name in explainers}
    for example in examples:
        case = away_from_zero(prepared.model.case([example]))
        loo = attribution_of(LeaveOneOut(prepared.setup.removal), model, case)[case.non_special].numpy()
        for name, explainer in explainers.items():
            attribution = attribution_of(explainer, model, case)[case.non_special].numpy()
            correlations[name].append(np.corrcoef(attribution, loo)[0, 1])
    table(
        {
            "title": f"AttnLRP with rules of autolrp, compared with LOO: {prepared.data.name}",
            "note": f"Mean Pearson's r with attention-mask LOO over {len(examples)} texts, without special tokens; "
            "our rules, with one difference of autolrp at a time.",
            "columns": ["rules", "r with LOO"],
            "rows": [[name, f"{np.mean(values):.3f}"] for name, values in correlations.items()],
        }
    )
    assert np.allclose(correlations["all of them"], correlations["autolrp itself"], atol=1e-3)


SENTENCES = 60


def away_from_zero(case):
    """The case in float64 with noise of 1e-9: at an input of 0 autolrp can have relevance, gradient × input cannot."""
    noise = torch.randn(case.inputs.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return replace(case, inputs=case.inputs.double() + 1e-9 * noise, baseline=case.baseline.double(), replacements={})
