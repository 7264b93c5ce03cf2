"""Implementation invariance of gates in the attention, on every pair with softmax attention over its features.

In the suite only `probe.padded` removes features by the attention mask, so this module does it on every other pair.
Which explainer refuses which pair, and with which words, is derived from the models of the pair: a pair that becomes
unsupported for another reason is red.

A gate depends on the attention weights A, the gradients at them, and the rows that the output is read at. So it is the
same for two models with the same softmaxes, in any order and from any logits, if the rest is one function of A. It does
not depend on the function alone. On two models that are equal, and equal under every attention mask, it differs:

* A model that takes a softmax of a softmax's logarithm gets twice the gate: the gate enters twice, and m² has the
  derivative 2 at 1, while 0² is 0. The grouped gate goes half way in each of the two softmaxes, which is not half way.
* If the last layer's attention has no effect, the row that is read gets less: the last layer shows which row is read.
* If layers without effect are added, the readout gate divides direct and indirect effects differently: the direct
  effect is exact in the upper layers, and their number depends on the number of all layers.
* If a softmax is computed in parts or not as a softmax, the gate does not find it, and refuses a model without another.

Leave-One-Out by the attention mask has the same limit: for two models that are one function with different attention,
it differs, as the mask acts on different weights.
"""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from faithcheck.axioms.dummy import dummy
from faithcheck.axioms.invariance import invariance
from faithcheck.axioms.measure.measurement import relative_gap
from faithcheck.axioms.symmetry import symmetry
from faithcheck.explainers.gates import gate, gate_effects, readout_copies
from faithcheck.explainers.gates.attention_gates import output_without
from faithcheck.explainers.gates.finite_mask_gate import FiniteMaskGate
from faithcheck.explainers.gates.grouped_mask_gate import GroupedMaskGate
from faithcheck.explainers.gates.mask_gate import MaskGate
from faithcheck.explainers.gates.readout_gate import ReadoutGate
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models.architectures.base_models import ARCHITECTURES, BASE_MODELS, layers
from faithcheck.models.architectures.embedding_model import KeepFloat64
from faithcheck.models.case import Case, select_target
from faithcheck.models.pair import Pair, registered_pairs
from faithcheck.models.pairs import probes
from faithcheck.tests.helpers.fixtures import double  # noqa: F401

pytestmark = pytest.mark.meta
WHERE = 0, torch.float64, torch.device("cpu")


class MaskedOut:
    """Leave-One-Out by the attention mask, also in models whose forward takes no mask."""

    name = "loo"

    @torch.no_grad()
    def attribute(self, model: nn.Module, case: Case) -> torch.Tensor:
        batch, n = case.shape
        rows = case.select(torch.arange(batch).repeat_interleave(n))
        without = output_without(model, rows, torch.eye(n, dtype=torch.bool).repeat(batch, 1)).view(batch, n)
        return (select_target(case.run(model), case.target).unsqueeze(1) - without) * case.unpadded


LOO, MASK, FINITE = MaskedOut(), MaskGate("attention_mask"), FiniteMaskGate("attention_mask")
READOUT, GROUPED = ReadoutGate("attention_mask"), GroupedMaskGate(removal="attention_mask")
ALL_EXPLAINERS = LOO, MASK, FINITE, GROUPED, READOUT

# Transforms change the results by round-off alone, and a gate divides by no less than 1 − A: 1e-14 here. 1e-9, the
# suite's own tolerance, leaves room for other machines. The least violation on the broken pairs below is 0.037.
TOLERANCE = 1e-9

# --- which pairs are refused -----------------------------------------------------------------------------------------

NO_ATTENTION = "no softmax attention over the features|removes features in a way that has no gate|hides its attention"
EINSUM = "attention by einsum"  # the readout gate refuses it before it knows whether it is attention
UNATTENDED = "features that no row attends to"
OTHER_KEYS = "beside their attention"
MORE_ATTENTIONS = "expected one attention in each layer"  # the readout gate meets it first
OTHER_ROWS = r"attention of \d+ rows for \d+"
NO_LAYERS = "no nn.ModuleList of layers"


class SoftmaxRecorder(TorchFunctionMode):
    """Records the weights of every softmax and of every quotient exp u / Σ exp u; of SDPA, the shape of its weights.

    It is independent of the attention observer, whose refusals it predicts.
    """

    def __init__(self):
        super().__init__()
        self.weights = []
        self.exponentials = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name == "softmax":
            self.weights.append(result)
        elif name == "exp":
            self.exponentials.append(result)
        elif name in ("div", "__truediv__") and any(args[0] is exponential for exponential in self.exponentials):
            self.weights.append(result)
        elif name == "scaled_dot_product_attention":
            self.weights.append(torch.ones(*args[0].shape[:-1], args[1].shape[-2]))
        return result


@torch.no_grad()
def attention_weights(model: nn.Module, case: Case) -> list[torch.Tensor]:
    """The weights of every softmax over at least as many positions as there are features."""
    with SoftmaxRecorder() as recorder:
        case.run(model)
    n = case.shape[1]
    return [w for w in recorder.weights if w.dim() >= 3 and w.shape[-2] == w.shape[-1] >= n]


@torch.no_grad()
def has_other_keys(model: nn.Module, case: Case) -> bool:
    """Whether a softmax is over the features, but not of their queries, as in cross-attention."""
    with SoftmaxRecorder() as recorder:
        case.run(model)
    return any(w.shape[-1] == case.shape[1] != w.shape[-2] for w in recorder.weights)


def unattended(weights: torch.Tensor, case: Case) -> bool:
    """Whether there are more positions than features, and one of the last, which the features take, has no weight."""
    n = case.shape[1]
    return weights.shape[-1] > n and bool((weights[..., -n:].flatten(1, -2).amax(1) == 0).any())


def expected_refusal(models, case: Case, explainer: str) -> str | None:
    """The message with which an explainer refuses a pair, derived from the pair's models; None if it must not."""
    if explainer == "readout_gate" and not all(any(isinstance(m, nn.ModuleList) for m in f.modules()) for f in models):
        return NO_LAYERS
    by_model = [attention_weights(model, case) for model in models]
    if not all(by_model):
        return f"{NO_ATTENTION}|{EINSUM}" if explainer == "readout_gate" else NO_ATTENTION
    if any(has_other_keys(model, case) for model in models):
        return f"{OTHER_KEYS}|{MORE_ATTENTIONS}" if explainer == "readout_gate" else OTHER_KEYS
    every = [weights for of_model in by_model for weights in of_model]
    if any(len(weights) != len(case.inputs) for weights in every):
        return OTHER_ROWS
    return UNATTENDED if any(unattended(weights, case) for weights in every) else None


def check(explainer, pair: Pair, models=None) -> str | None:
    """Check invariance of one explainer on a pair, or that it refuses the pair as expected; the expected message."""
    f, g = models or pair.build(*WHERE)
    case = pair.case(*WHERE)
    with KeepFloat64():  # explainers that run a single layer compute in float64 too
        message = expected_refusal((f, g), case, explainer.name)
        if message:
            with pytest.raises(Unsupported, match=message):
                invariance(explainer, f, g, case)
        else:
            measured = invariance(explainer, f, g, case)
            assert measured.gap <= TOLERANCE, f"{explainer.name} on {pair.name}: {measured.gap:.1e}"
            assert measured.scale.abs().amax(1).min() > 1e-6, "two attributions of zero are always equal"
    return message


def parameter(name: str):
    """A pair's name as a parameter; RoBERTa and the trained BERT repeat the small BERT, and take most of the time."""
    return pytest.param(name, marks=pytest.mark.slow if name.endswith(("_trained", "_roberta")) else ())


OTHER_ORDER = "rollout.reversed_tokens"
"""The pair whose g reverses the tokens before its attention: position i of its weights is not feature i."""
KNOWN_ANSWERS = "known_answer."
"""Models beside their copies, on some of which a gate is 0, as theory says: `ground_truth` checks what it is."""
FLEX = "execution.flex"
"""The pair whose g has flex attention, which nothing sees into, whatever the weights of f are."""
LEARNED_SINK = "sinks.learned"
"""The pair whose softmax is not over the features alone: MaskGate has it all the same, see test_sinks.py."""
ELSEWHERE = OTHER_ORDER, FLEX, LEARNED_SINK
NAMES = [name for name in registered_pairs() if name not in ELSEWHERE and not name.startswith(KNOWN_ANSWERS)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::faithcheck.explainers.protocol.SinkWarning")
@pytest.mark.parametrize("name", [parameter(name) for name in NAMES])
def test_gates_in_the_attention_are_invariant(name):
    pair = registered_pairs()[name]
    models = pair.build(*WHERE)
    for explainer in ALL_EXPLAINERS:
        check(explainer, pair, models)


@pytest.mark.slow
def test_gates_in_the_attention_refuse_flex_attention():
    pair = registered_pairs()[FLEX]
    _, g = pair.build(*WHERE)
    for explainer in ALL_EXPLAINERS:
        with pytest.raises(Unsupported, match=r"attention \(FlexAttention\) computes flex attention"):
            explainer.attribute(g, pair.case(*WHERE))


def test_gates_in_the_attention_take_the_other_token_where_a_model_reverses_them():
    for explainer in (LOO, MASK, FINITE, GROUPED):
        with pytest.raises(AssertionError, match=explainer.name):
            check(explainer, registered_pairs()[OTHER_ORDER])


@pytest.mark.slow
@pytest.mark.parametrize("name", [parameter(name) for name in registered_pairs() if "bert" in name])
def test_the_readout_gate_of_long_texts_is_invariant(name, monkeypatch):
    monkeypatch.setattr(gate, "LONG_TEXT", 1)  # the registry's texts are short
    monkeypatch.setattr(readout_copies, "COPIED_SHARE", 1.0)
    check(READOUT, registered_pairs()[name])


@pytest.mark.parametrize("base_model", [parameter(name) for name in BASE_MODELS])
def test_every_base_model_has_attention(base_model):
    """So no pair of an architecture is refused for want of attention; padding and single examples alone are refused."""
    model, case = (make(*WHERE) for make in (BASE_MODELS[base_model].model, BASE_MODELS[base_model].case))
    for explainer in ALL_EXPLAINERS:
        assert expected_refusal((model, model), case, explainer.name) is None


@pytest.mark.parametrize(
    ("pair", "messages"),
    [
        ("activation.gelu_tanh", {NO_ATTENTION, NO_LAYERS}),
        ("linear_attention.assoc", {NO_ATTENTION, NO_LAYERS}),
        ("softmax.mixture", {NO_ATTENTION, NO_LAYERS}),
        ("softmax.exp_divide", {NO_LAYERS, None}),
        ("batching.padded_bert", {UNATTENDED}),
        ("batching.single_gpt2", {OTHER_ROWS}),
        ("attention.sdpa_bert", {None}),
        ("folding.norm_vit", {None}),
    ],
)
def test_the_expected_refusals_are_these(pair, messages):
    models, case = registered_pairs()[pair].build(*WHERE), registered_pairs()[pair].case(*WHERE)
    assert {expected_refusal(models, case, explainer.name) for explainer in ALL_EXPLAINERS} == messages


# --- a broken pair is red --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("explainer", ALL_EXPLAINERS, ids=lambda explainer: explainer.name)
@pytest.mark.parametrize("base_model", ARCHITECTURES)
def test_a_pair_with_one_heads_logits_scaled_is_red(base_model, explainer):
    pair = registered_pairs()[f"basis.query_key_{base_model}"]
    f, g = pair.build(*WHERE)
    last = list(layers(g))[-1]
    with torch.no_grad():
        size = len(last.query.weight) // last.heads
        last.query.weight[:size] *= 1.5
    with pytest.raises(AssertionError, match=rf"{explainer.name} on basis"):
        check(explainer, pair, (f, g))


def test_a_gate_that_sees_one_head_is_red(monkeypatch):
    monkeypatch.setattr(gate_effects, "sum_over_heads", lambda values: values[..., 0, :, :])
    pairs = registered_pairs()
    check(FINITE, pairs["basis.value_output_bert"])
    with pytest.raises(AssertionError, match=r"finite_mask_gate on permutation\.heads"):
        check(FINITE, pairs["permutation.heads_bert"])


def test_a_pair_that_becomes_unsupported_is_red():
    pair = registered_pairs()["attention.sdpa_bert"]
    f, g = pair.build(*WHERE)

    class Hidden(nn.Module):
        def forward(self, inputs):
            nn.functional.log_softmax(inputs @ inputs.mT, -1)
            return g(inputs)

    with pytest.raises(Unsupported, match="hides its attention weights"):
        check(MASK, pair, (f, Hidden()))


# --- equal functions of other attention ------------------------------------------------------------------------------


class Heads(nn.Module):
    """Layers of attention with a residual, each of so many heads, read at the first token."""

    def __init__(self, width=6, depth=1, heads=1):
        super().__init__()
        self.heads = heads
        self.layers = nn.ModuleList(nn.ModuleList(nn.Linear(width, width) for _ in range(4)) for _ in range(depth))
        self.head = nn.Linear(width, 2)

    def softmax(self, logits):
        return torch.softmax(logits, -1)

    def attend(self, layer, tokens):
        query, key, value = (part(tokens).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in layer[:3])
        return layer[3]((self.softmax(query @ key.transpose(-1, -2)) @ value).transpose(1, 2).flatten(2))

    def read(self, tokens):
        return tokens[:, 0]

    def forward(self, tokens):
        for layer in self.layers:
            tokens = tokens + self.attend(layer, tokens)
        return self.head(self.read(tokens))


class Merged(Heads):
    """Of heads with equal logits, one for all values."""

    def attend(self, layer, tokens):
        query, key = (part(tokens)[..., : len(part.weight) // self.heads] for part in layer[:2])
        return layer[3](self.softmax(query @ key.transpose(-1, -2)) @ layer[2](tokens))


class Chained(Heads):
    """Two attentions in a row, B(AV) or (BA)V."""

    values_first = True

    def forward(self, tokens):
        a, b = (self.softmax(layer[0](tokens) @ layer[1](tokens).transpose(-1, -2)) for layer in self.layers)
        values = self.layers[0][2](tokens)
        return self.head(self.read(b @ (a @ values) if self.values_first else (b @ a) @ values))


class Associated(Chained):
    values_first = False


class Rotated(Heads):
    """Read at the first token once all were rotated into one another, and back."""

    def read(self, tokens):
        turn = torch.linalg.qr(
            torch.randn(tokens.shape[1], tokens.shape[1], generator=torch.Generator().manual_seed(0))
        )[0]
        return (turn.T @ (turn @ tokens))[:, 0]


class Twice(Heads):
    def softmax(self, logits):
        return torch.softmax(torch.softmax(logits, -1).log(), -1)


class Parted(Heads):
    """The first two keys and the others, each with a softmax of its own, weighted by their shares."""

    def softmax(self, logits):
        parts = logits[..., :2], logits[..., 2:]
        shares = torch.softmax(torch.stack([part.logsumexp(-1) for part in parts], -1), -1)
        return torch.cat([torch.softmax(part, -1) * shares[..., i : i + 1] for i, part in enumerate(parts)], -1)


class ByLogarithm(Heads):
    def softmax(self, logits):
        return (logits - logits.logsumexp(-1, keepdim=True)).exp()


def alike(kind, of=Heads, **sizes):
    """A model, and one of another kind with its weights."""
    f, g = of(**sizes), kind(**sizes)
    if kind is Merged:
        for layer in f.layers:
            for part in layer[:2]:
                first, *others = part.weight.data.chunk(f.heads)
                part.bias.data.zero_()
                for other in others:
                    other.copy_(first)
    g.load_state_dict(f.state_dict())
    return f.eval(), g.eval()


def tokens(n=5, width=6):
    inputs = torch.randn(3, n, width)
    return Case(inputs, torch.tensor([0, 1, 0]), torch.zeros_like(inputs))


def maps(explainer, f, g, case):
    """Both attributions, of two models that are one function."""
    with torch.no_grad():
        outputs = f(case.inputs)
        assert relative_gap(outputs - g(case.inputs), outputs) < TOLERANCE
    return [explainer.attribute(model, case) for model in (f, g)]


def gap(explainer, f, g, case):
    a, b = maps(explainer, f, g, case)
    return relative_gap(a - b, a, b)


SEEN = LOO, MASK, FINITE, GROUPED  # these models have no layers that can be run on their own


@pytest.mark.parametrize("explainer", SEEN, ids=lambda explainer: explainer.name)
@pytest.mark.parametrize(
    ("kind", "of", "sizes"),
    [(Merged, Heads, {"heads": 2}), (Associated, Chained, {"depth": 2}), (Rotated, Heads, {"depth": 2})],
    ids=["merged", "associated", "rotated"],
)
def test_the_same_softmaxes_have_the_same_gates(kind, of, sizes, explainer):
    assert gap(explainer, *alike(kind, of, **sizes), tokens()) < TOLERANCE


def test_a_softmax_of_a_softmax_counts_twice():
    (f, g), case = alike(Twice), tokens()
    assert gap(LOO, f, g, case) < TOLERANCE
    for explainer in (MASK, FINITE):
        once, twice = maps(explainer, f, g, case)
        assert relative_gap(twice - 2 * once, twice) < TOLERANCE
    assert gap(GROUPED, f, g, case) > 0.1


def test_a_last_layer_of_no_output_hides_which_row_is_read():
    """Its attention has a gradient of 0: the row that is read loses what its own token gives it, and nothing else."""
    f, g = Heads(depth=1), Heads(depth=2)
    nn.init.zeros_(g.layers[1][3].weight)
    nn.init.zeros_(g.layers[1][3].bias)
    g.load_state_dict(f.state_dict(), strict=False)
    case = tokens()
    assert max(gap(LOO, f, g, case), gap(MASK, f, g, case)) < TOLERANCE
    a, b = maps(FINITE, f, g, case)
    assert relative_gap((a - b)[:, 1:], a) < TOLERANCE < relative_gap((a - b)[:, :1], a)
    assert torch.equal(b[:, 0], torch.zeros(3))


def test_layers_of_no_output_below_move_no_gate():
    """The direct way is exact in every layer here; had it been so in a share of them, idle ones would count."""
    pair = registered_pairs()["basis.query_key_gpt2"]
    f, case = pair.build(*WHERE)[0], pair.case(*WHERE)
    g = deepcopy(f)
    idle = deepcopy(g.model.transformer.h[0])
    for part in (idle.attn.c_proj, idle.mlp.c_proj):
        for weight in part.parameters():
            nn.init.zeros_(weight)
    for _ in range(2):
        g.model.transformer.h.insert(0, deepcopy(idle))
    assert max(gap(explainer, f, g, case) for explainer in (*SEEN, READOUT)) < TOLERANCE


@pytest.mark.parametrize(
    ("kind", "words"),
    [(Parted, "no softmax attention over the features"), (ByLogarithm, "exponentials over the features")],
    ids=["parted", "by_logarithm"],
)
def test_a_softmax_that_is_not_seen_is_refused(kind, words):
    for explainer in SEEN:
        with pytest.raises(Unsupported, match=words):
            explainer.attribute(alike(kind)[1], tokens())


def test_padding_on_the_right_without_a_mask_in_the_case_is_refused(monkeypatch):
    pair = registered_pairs()["batching.padded_bert"]
    f, g = pair.build(*WHERE)
    assert check(MASK, pair, (f, g)) == UNATTENDED
    assert check(MASK, pair, (f, f)) is None
    monkeypatch.setitem(globals(), "expected_refusal", lambda *of_pair: UNATTENDED)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        check(MASK, pair, (f, f))


# --- claims that are those of the baseline alone ---------------------------------------------------------------------


def test_in_the_attention_a_feature_of_no_value_takes_weight_from_the_others():
    """Without it f is f/(1 − A₁₄): Leave-One-Out by the mask is −A₁₄/(1 − A₁₄)·f, the derivative at 1 is −A₁₄·f."""
    pair = registered_pairs()["probe.attention"]
    model, case = pair.build(*WHERE)[0], pair.case(*WHERE)
    with torch.no_grad():
        output, weight = select_target(model(case.inputs), case.target), model.weights(1)[0, 0, 3]
    lost = -weight / (1 - weight) * output
    for explainer in (LOO, FINITE, GROUPED):
        torch.testing.assert_close(dummy(explainer, model, case).values[:, 3], lost)
    torch.testing.assert_close(dummy(MASK, model, case).values[:, 3], -weight * output)
    assert dummy(FiniteMaskGate(), model, case).gap == 0


def test_in_the_attention_tokens_that_swap_may_have_unlike_weights():
    """With A₁v₁ = A₂v₂ the function lets 1 and 2 swap. Without i it is (f − A_i v_i x)/(1 − A_i)."""
    model, case = probes.PositionalAttention().eval(), probes.points(4)(*WHERE)
    weights = model.weights(1)[0, 0].detach()
    model.values.data[1] = model.values[0].data * weights[0] / weights[1]
    with torch.no_grad():
        inputs = case.inputs[:, [0, 0, 2, 3]]
        output, share = select_target(model(inputs), case.target), weights[0] * (model.values[0] * inputs[:, :1])
    share = share.gather(1, case.target.unsqueeze(1)).squeeze(1).detach()
    first, second = (share - weights[i] * output for i in (0, 1))
    expected = second / (1 - weights[1]) - first / (1 - weights[0])
    for explainer in (LOO, FINITE, GROUPED):
        torch.testing.assert_close(symmetry(explainer, model, case).values[:, 1], expected)
    torch.testing.assert_close(symmetry(MASK, model, case).values[:, 1], second - first)
    assert symmetry(FiniteMaskGate(), model, case).gap < TOLERANCE


def test_a_row_that_attends_to_one_key_alone_leaves_no_nan():
    """A causal model's first row, its first token being no special one."""
    pair = registered_pairs()["sharing.embeddings_gpt2"]
    for explainer in ALL_EXPLAINERS:
        assert explainer.attribute(pair.build(*WHERE)[0], pair.case(*WHERE)).isfinite().all()


def test_features_that_share_a_group_are_not_those_alone_in_one():
    """x₁x₂x₃ at equal values, groups {1, 3} and {2}: half way y/2 for 1 and 3, y for 2; before y/2 and y/4."""
    model, case = registered_pairs()["control.product"].build(*WHERE)[0], probes.points(3)(*WHERE)
    measured = symmetry(GroupedMaskGate(groups=2), model, case)
    y = case.inputs[:, 0] ** 3
    torch.testing.assert_close(measured.values, torch.stack([0 * y, (7 / 10 - 1 / 2) * y, 0 * y], 1))
    assert measured.gap == pytest.approx(2 / 7)
