"""The conservation ledger: it balances, it names causes by their closed forms, and it sees what goes missing."""

import gc
import re
import weakref
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as hooks

from faithcheck.axioms.conservation import conservation
from faithcheck.explainers import CPLRP, AttnLRP, EpsilonLRP, GradientTimesInput, Unsupported
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.ledger import Bookkeeper, conservation_ledger
from faithcheck.explainers.lrp.rule_ablation import every_switch, switched
from faithcheck.explainers.lrp.rules import ATTNLRP, modified, stabilised
from faithcheck.explainers.lrp.softmax_bypass import attnlrp_with_bypassed_softmax
from faithcheck.models import Case
from faithcheck.models.data.images import load_images
from faithcheck.models.pair import registered_pairs
from faithcheck.models.pairs import control
from faithcheck.models.pretrained.images import ImageClassifier
from faithcheck.models.pretrained.text import NextToken, load
from faithcheck.tests.helpers import oracles
from faithcheck.tests.helpers.fixtures import double as double  # for every test here
from faithcheck.tests.helpers.small_models import ARCHITECTURES, TEXTS, load_widest, save

# Sums of at most 1e5 products in float64 leave 1e-15 of the largest relevance; the issue asks for 1e-9.
BALANCE = 1e-9
# Llama's relevance at the inputs is itself float32: seven digits, summed over 11 tokens of 16 coordinates. They are
# digits of single relevances, which cancel in the ledger's sums: see `cancelled`.
SINGLE = 1e-6
CLOSE = {"rtol": 1e-12, "atol": 1e-14}
UNSIGNED = LRP("unsigned", ATTNLRP, 1e-2, signed=False)
EMBEDDINGS = ("token_type", "position")
METHODS = [AttnLRP(), CPLRP(), AttnLRP(1e-2), CPLRP(1e-2), UNSIGNED]
IDS = ["attnlrp", "cplrp", "attnlrp coarse", "cplrp coarse", "unsigned"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: save(name, tmp_path_factory.mktemp(name)) for name in ARCHITECTURES}


@pytest.fixture(scope="module")
def embedding_models(folders):
    return {name: load_widest(folder) for name, folder in folders.items()}


def case_of(embedding_model):
    return embedding_model.case(
        embedding_model.encode(
            load_images("digits", 3).images if isinstance(embedding_model, ImageClassifier) else TEXTS
        )
    )


class Function(nn.Module):
    """A model that is one function, ``(batch, features)`` to ``(batch, outputs)``; ``weights`` are its parameters."""

    def __init__(self, function, **weights):
        super().__init__()
        self.function = function
        for name, weight in weights.items():
            self.register_parameter(name, nn.Parameter(weight))

    def forward(self, x):
        return self.function(self, x)


def ledger_of(function, x, lrp=None, **weights):
    """The ledger of the function's first output."""
    case = Case(x, torch.zeros(len(x), dtype=torch.int64), torch.zeros_like(x))
    return conservation_ledger(lrp or AttnLRP(), Function(function, **weights), case)


def only(ledger, operation):
    (entry,) = (entry for entry in ledger.entries if entry.operation == operation)
    return entry


def assert_consistent(ledger, tolerance=BALANCE):
    """Balanced in all, in each operation and in each layer."""
    assert ledger.entries
    assert ledger.gap <= tolerance
    layers = ledger.by_layer()
    scale = max(float(entry.received.abs().max()) for entry in ledger.entries)
    torch.testing.assert_close(layers[""].received, ledger.start, rtol=0, atol=tolerance * scale)
    inputs = ledger.at_features + ledger.at_special
    torch.testing.assert_close(layers[""].passed_on, inputs, rtol=0, atol=tolerance * scale)
    for layer in layers.values():
        lost = sum(layer.losses.values(), torch.zeros_like(ledger.start))
        torch.testing.assert_close(layer.received - layer.passed_on, lost, rtol=0, atol=tolerance * scale)


def cancelled(ledger):
    """How much larger relevances are than the ledger's sums, at least 1: their size at the features over `gap`'s scale.

    1 to 3 where ε has the sign of what it is added to. Without, denominators near 0 make large relevances of both
    signs, here 7 times the sums, whose round-off depends on the processor's kernels: 5.8e-7 of the sums by AVX2,
    1.15e-6 by AVX-512.
    """
    scale = torch.stack([entry.received for entry in ledger.entries]).abs().amax(0)
    return float((ledger.attribution.abs().sum(1) / scale).clamp_min(1).max())


def unaccounted(ledger, tolerance=BALANCE):
    """The operations that lose what has no name."""
    scale = max(float(entry.received.abs().max()) for entry in ledger.entries)
    return {entry.operation for entry in ledger.entries if entry.unaccounted.abs().max() > tolerance * scale}


# --- whole models ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lrp", METHODS, ids=IDS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_it_balances_and_leaves_no_trace(embedding_models, name, lrp):
    embedding_model = embedding_models[name]
    case = case_of(embedding_model)
    before = case.run(embedding_model)
    ledger = conservation_ledger(lrp, embedding_model, case)
    single = SINGLE if lrp.signed else SINGLE * cancelled(ledger)
    assert_consistent(ledger, single if embedding_model.model.dtype == torch.float32 else BALANCE)
    assert torch.equal(ledger.attribution, lrp.attribute(embedding_model, case))
    causes = set(ledger.by_cause())
    assert ("softmax" in causes) == (lrp.rules is ATTNLRP)
    assert ("ε" in causes) == (lrp.epsilon > 0)
    biases = [weight for weight, _ in embedding_model.named_parameters() if weight.endswith("bias")]
    assert ("bias" in causes) == ("LayerNorm β" in causes) == bool(biases)
    assert torch.equal(case.run(embedding_model), before)
    assert not hooks._global_forward_hooks
    assert not hooks._global_forward_pre_hooks
    assert all(weight.grad is None and not weight._backward_hooks for weight in embedding_model.parameters())
    assert all(not part._forward_hooks and not part._forward_pre_hooks for part in embedding_model.modules())


def test_constants_are_named_after_what_they_come_from(embedding_models):
    """What is added to the inputs: position and type embeddings, and a class token."""
    added = {
        "bert": {"model.bert.embeddings.token_type_embeddings", "model.bert.embeddings.position_embeddings"},
        "roberta": {"model.roberta.embeddings.token_type_embeddings", "model.roberta.embeddings.position_embeddings"},
        "gpt2": {"model.transformer.wpe"},
        "llama": set(),
        "vit": {"model.vit.embeddings.cls_token", "model.vit.embeddings.position_embeddings"},
    }
    named = {"bias", "LayerNorm β", "softmax", "float32 round-off"}
    for name, expected in added.items():
        ledger = conservation_ledger(AttnLRP(), embedding_models[name], case_of(embedding_models[name]))
        assert set(ledger.by_cause()) - named == expected


def test_llama_in_float64_balances_but_for_its_softmax_in_float32(folders):
    """`load` refuses it, as a mask there can make NaN; here no token is removed, and texts go one by one."""
    single = load(folders["llama"], dtype=torch.float32)
    embedding_model = NextToken(single.model.double(), single.tokenizer).eval()
    case = embedding_model.case(embedding_model.encode(TEXTS[:1]))
    for lrp in (AttnLRP(), CPLRP(), AttnLRP(1e-2)):
        ledger = conservation_ledger(lrp, embedding_model, case)
        assert_consistent(ledger)
        rounding = ledger.by_cause().pop("float32 round-off", torch.zeros(1))
        assert float(rounding.abs().max()) <= 1e-6 * float(ledger.start.abs().max())
    assert set(conservation_ledger(CPLRP(), embedding_model, case).by_cause()) <= {"float32 round-off"}


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit"])
def test_sdpa_attention_is_kept_account_of_step_by_step(folders, embedding_models, name):
    eager = embedding_models[name]
    model = type(eager.model).from_pretrained(folders[name], attn_implementation="sdpa", dtype=torch.float64).eval()
    embedding_model = type(eager)(model, eager.preparation if name == "vit" else eager.tokenizer)
    case = case_of(eager)
    for lrp in (AttnLRP(), CPLRP()):
        ledger = conservation_ledger(lrp, embedding_model, case)
        assert_consistent(ledger)
        assert sum(entry.operation == "softmax" for entry in ledger.entries) == 2
        expected = conservation_ledger(lrp, eager, case).by_cause()
        for cause, lost in ledger.by_cause().items():
            if not cause.endswith("round-off"):
                # ViT's eager softmax runs in float32
                torch.testing.assert_close(lost, expected[cause], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("epsilon", [0.0, 1e-2])
def test_any_table_of_rules(embedding_models, epsilon):
    """Every part of AttnLRP replaced by what parts.py has, and the softmax bypassed in one layer.

    It balances but for activations by their gradient, whose remainder stands at the activations and has no name.
    """
    embedding_model = embedding_models["bert"]
    case = case_of(embedding_model)
    for parts in every_switch():
        ledger = conservation_ledger(switched(parts, epsilon), embedding_model, case)
        by_gradient = "activations by their gradient" in parts
        if not by_gradient:
            assert_consistent(ledger)
        assert unaccounted(ledger) == ({"GELUActivation", "tanh"} if by_gradient else set())
        assert ("softmax" in ledger.by_cause()) == ("softmax bypassed" not in parts)
    ledger = conservation_ledger(attnlrp_with_bypassed_softmax([0], epsilon), embedding_model, case)
    assert_consistent(ledger)
    first, second = (e for e in ledger.entries if e.operation == "softmax")
    assert first.received.abs().max() == 0
    assert second.losses["softmax"].abs().min() > 0


def test_one_pair_of_every_family_balances():
    """Models that write attention, norms and activations out, or compute in other ways; in float32 some of them."""
    torch.set_default_dtype(torch.float32)  # as pairs are built elsewhere
    families = {name.split(".")[0]: pair for name, pair in registered_pairs().items()}
    settings = (0, torch.float64, torch.device("cpu"))
    kept = []
    for family, pair in families.items():
        case = pair.case(*settings)
        for model in pair.build(*settings):
            try:
                attribution = AttnLRP().attribute(model, case)
            except Unsupported as refusal:
                with pytest.raises(Unsupported, match=re.escape(str(refusal))):
                    conservation_ledger(AttnLRP(), model, case)
                continue
            ledger = conservation_ledger(AttnLRP(), model, case)
            assert_consistent(ledger, SINGLE if case.inputs.dtype == torch.float32 else BALANCE)
            assert torch.equal(ledger.attribution, attribution), family
            kept.append(family)
    assert len(set(kept)) >= 8


# --- causes, by hand -------------------------------------------------------------------------------------------------


def test_the_bias_of_a_linear_map():
    """z = 2·3 + 4 = 10, all of it relevance: 6 goes on, the bias keeps 4."""
    ledger = ledger_of(
        lambda f, x: F.linear(x, f.w, f.b), torch.tensor([[3.0]]), w=torch.tensor([[2.0]]), b=torch.ones(1) * 4
    )
    entry = only(ledger, "linear")
    assert (float(entry.received), float(entry.passed_on)) == (10, 6)
    assert {cause: float(lost) for cause, lost in entry.losses.items()} == {"bias": 4}


@pytest.mark.parametrize(
    ("lrp", "kept", "bias"),
    [(AttnLRP(10.0), 10 * 10 / 20, 4 / 2), (LRP("unsigned", ATTNLRP, 10.0, signed=False), 10 * 10 / 20, 4 / 2)],
    ids=["signed", "unsigned"],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_epsilon(lrp, kept, bias, sign):
    """ε = 10 beside z = ±10: half of the relevance is kept by the signed one; unsigned, z = −10 divides by 0."""
    x, weights = torch.tensor([[3.0 * sign]]), {"w": torch.tensor([[2.0]]), "b": torch.ones(1) * 4 * sign}

    def run():
        return only(ledger_of(lambda f, x: F.linear(x, f.w, f.b), x, lrp, **weights), "linear").losses

    if not lrp.signed and sign < 0:
        with pytest.raises(ZeroDivisionError, match="linear"):
            run()
    else:
        assert {cause: float(lost) for cause, lost in run().items()} == {"ε": kept * sign, "bias": bias * sign}


def test_the_softmax_is_eq_5():
    """Eq. 5 passes Σ_i z_i (R_i − A_i Σ R) on; FACTS §2 has −0.333 become −0.128 for one random head."""
    z, v = torch.randn(1, 6), torch.randn(6)
    entry = only(ledger_of(lambda f, x: (torch.softmax(x, -1) * f.v).sum(-1, keepdim=True), z, v=v), "softmax")
    arrived = torch.softmax(z[0], -1) * v
    torch.testing.assert_close(entry.received[0], arrived.sum(), **CLOSE)
    torch.testing.assert_close(entry.passed_on[0], oracles.softmax(z[0], arrived).sum(), **CLOSE)
    assert set(entry.losses) == {"softmax"}
    assert float(entry.lost.abs()) > 0.01 * float(entry.received.abs())


def test_a_cast_rounds_what_it_passes_on():
    """The gradient of a cast from float32 to float64 is rounded to float32: ⅓ at a value of 3 loses 1 − 3·fl(⅓)."""

    def cast(f, x):
        return x.float().double() / 3

    ledger = ledger_of(cast, torch.tensor([[3.0]]))
    third = torch.tensor(1 / 3, dtype=torch.float32).double()
    assert {cause: float(lost) for cause, lost in ledger.by_cause().items()} == {
        "float32 round-off": float(3 * (torch.tensor(1.0) / 3) - 3 * third)
    }
    assert_consistent(ledger)


def test_layer_norm_beta():
    """Where the output is the sum of a LayerNorm's entries, β keeps Σ β."""
    x, gamma, beta = torch.randn(3, 6), torch.randn(6), torch.randn(6)
    ledger = ledger_of(
        lambda f, x: F.layer_norm(x, (6,), f.gamma, f.beta).sum(-1, keepdim=True), x, gamma=gamma, beta=beta
    )
    assert_consistent(ledger)
    entry = only(ledger, "layer_norm")
    torch.testing.assert_close(entry.losses["LayerNorm β"], beta.sum().expand(3), **CLOSE)


def test_a_masked_logit_holds_nothing_and_an_unmasked_constant_does():
    """−∞, or the lowest number, added to a logit gets no gradient; a mask that is not quite one keeps its share."""

    def attention(mask):
        return lambda f, x: (torch.softmax(x + mask, -1) * f.v).sum(-1, keepdim=True)

    x, v = torch.randn(2, 4), torch.randn(4)
    for masked in (-torch.inf, torch.finfo(torch.float64).min):
        ledger = ledger_of(attention(torch.tensor([0, 0, masked, 0])), x, v=v)
        assert_consistent(ledger)
        assert set(ledger.by_cause()) == {"softmax"}
        filled = ledger_of(
            lambda f, x, masked=masked: (
                torch.softmax(x.masked_fill(torch.tensor([0, 0, 1, 0]).bool(), masked), -1) * f.v
            ).sum(-1, keepdim=True),
            x,
            v=v,
        )
        assert_consistent(filled)
        assert set(filled.by_cause()) == {"softmax"}
    plain = ledger_of(lambda f, x: x.masked_fill(torch.tensor([1, 0, 0, 0]).bool(), -2e4).sum(-1, keepdim=True), x)
    assert {cause: lost.tolist() for cause, lost in plain.by_cause().items()} == {"mask": [-2e4, -2e4]}


def test_an_activation_at_zero():
    """σ(0) = ½ arrives at x = 0, and 0 · anything passes nothing on."""
    ledger = ledger_of(lambda f, x: torch.sigmoid(x), torch.zeros(1, 1))
    assert {cause: float(lost) for cause, lost in ledger.by_cause().items()} == {"activation at 0": 0.5}
    assert_consistent(ledger)


def test_added_constants_and_numbers_and_what_is_held_constant():
    weight = torch.tensor([5.0])
    x = torch.tensor([[2.0]])
    assert causes(lambda f, x: x + f.position, x, position=weight) == {"position": 5}
    assert causes(lambda f, x: x - f.position * 2, x, position=weight) == {"position": -10}
    assert causes(lambda f, x: f.first + f.second + x, x, first=weight, second=weight * 2) == {"first + second": 15}
    assert causes(lambda f, x: 3 - x, x) == {"number in rsub": 3}
    assert causes(lambda f, x: torch.cat([f.token.expand(1, 1), x], 1).sum(1, keepdim=True), x, token=weight) == {
        "token": 5
    }
    assert causes(lambda f, x: x + (x * 3).detach(), x) == {"held constant": 6}
    assert causes(lambda f, x: x + torch.ones(1), x) == {"constant of the model (Function)": 1}
    assert causes(lambda f, x: torch.addmm(x, f.position[None], f.position[None]), x, position=weight) == {"addmm": 25}
    assert causes(lambda f, x: F.rms_norm(x, (1,), f.position), x, position=weight) == {}
    assert causes(lambda f, x: torch.maximum(x, f.bound), torch.tensor([[2.0]]), bound=weight) == {"bound": 5}
    assert causes(lambda f, x: torch.where(x > 9, x, 7.0), x) == {"number in where": 7}


def causes(function, x, lrp=None, **weights):
    ledger = ledger_of(function, x, lrp, **weights)
    assert_consistent(ledger)
    return {cause: float(lost) for cause, lost in ledger.by_cause().items()}


def test_products_pass_all_on_unless_they_are_not_halved():
    x = torch.randn(1, 3)
    assert causes(lambda f, x: (x[:, :1] * x[:, 1:2]) / x[:, 2:], x) == {}
    unhalved = LRP("unhalved", {**ATTNLRP, "mul": lambda call: call.value()})
    y = float(x[0, 0] * x[0, 1])
    assert causes(lambda f, x: x[:, :1] * x[:, 1:2], x, unhalved) == pytest.approx({"mul not halved": -y})


def test_epsilon_lrp_on_a_convolution_and_batch_norm():
    model = nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten())
    model[2].running_mean.copy_(torch.randn(2))
    model[2].bias.data.copy_(torch.randn(2))
    x = torch.randn(3, 16)
    case = Case(x, torch.tensor([0, 5, 7]), torch.zeros_like(x))
    for lrp in (EpsilonLRP(), EpsilonLRP(1e-2)):
        ledger = conservation_ledger(lrp, model.eval(), case)
        assert_consistent(ledger)
        assert set(ledger.by_cause()) - {"ε"} == {"bias", "batch_norm"}


# --- how models compute ----------------------------------------------------------------------------------------------


def overwriting(f, x):
    """In place, on views, with several results."""
    y = F.linear(x, f.w)
    y += x
    y.mul_(3).sub_(x).div_(2)
    y.masked_fill_(x > 1, 0.5)
    y = F.relu(y, inplace=True)
    z = torch.zeros_like(y)
    z[:, :1] = y[:, 2:]
    z[:, 1:] = y[:, :2]
    first, second, third = z.unbind(1)
    best = y.max(1, keepdim=True)
    rows = torch.stack(list(z)) + best.values
    return rows.sum(1, keepdim=True) + torch.stack([first * second, third], 1).sum(1, keepdim=True)


def plainly(f, x):
    """The same, nothing overwritten."""
    y = F.linear(x, f.w) + x
    y = (y * 3 - x) / 2
    y = torch.where(x > 1, 0.5, y).relu()
    z = torch.cat([y[:, 2:], y[:, :2]], 1)
    rows = z + y.amax(1, keepdim=True)
    return rows.sum(1, keepdim=True) + z[:, :1] * z[:, 1:2] + z[:, 2:]


@pytest.mark.parametrize("epsilon", [0.0, 1e-2])
def test_what_a_model_overwrites(epsilon):
    x, w = torch.randn(4, 3), torch.randn(3, 3)
    lrp = AttnLRP(epsilon)
    case = Case(x, torch.zeros(4, dtype=torch.int64), torch.zeros_like(x))
    written, plain = (ledger_of(function, x, lrp, w=w) for function in (overwriting, plainly))
    for ledger in (written, plain):
        assert_consistent(ledger)
    assert torch.equal(written.attribution, lrp.attribute(Function(overwriting, w=w), case))
    if epsilon == 0:  # else the halves of a sum in steps are stabilised twice
        torch.testing.assert_close(written.attribution, plain.attribution, **CLOSE)
        (masked,) = (entry for entry in written.entries if entry.operation == "masked_fill_")
        assert masked.losses["number in masked_fill_"].abs().max() > 0


def test_a_rule_that_writes_to_its_operand_is_refused_by_name():
    writing = LRP("writing", {**ATTNLRP, "neg": lambda call: call.args[0].neg_()})
    with pytest.raises(Unsupported, match=r"neg in the model.*write"):
        ledger_of(lambda f, x: -x, torch.randn(2, 3), writing)


def test_the_examples_have_accounts_of_their_own():
    """Also where the batch is not the first axis: there each is what it is alone."""
    x, w, b = torch.randn(3, 4), torch.randn(2, 4), torch.randn(2)

    def transposed(f, x):
        return (f.w @ x.transpose(0, 1) + f.b.unsqueeze(1)).relu().sum(0).unsqueeze(1)

    together = ledger_of(transposed, x, w=w, b=b)
    for i in range(3):
        alone = ledger_of(transposed, x[i : i + 1], w=w, b=b)
        for one, other in zip(together.entries, alone.entries, strict=True):
            torch.testing.assert_close(one.received[i], other.received[0], **CLOSE)
            torch.testing.assert_close(one.passed_on[i], other.passed_on[0], **CLOSE)
            for cause, lost in one.losses.items():
                torch.testing.assert_close(lost[i], other.losses.get(cause, torch.zeros(1))[0], **CLOSE)


def test_the_forward_pass_is_not_kept():
    x = torch.randn(2, 3)
    case = Case(x, torch.zeros(2, dtype=torch.int64), torch.zeros_like(x))
    books, output = AttnLRP().propagate(Function(lambda f, x: x * x), case, Bookkeeper)
    kept = weakref.ref(books.records[-1].results[0].value)
    torch.autograd.grad(output.sum(), books.point)
    del books, output
    gc.collect()
    assert kept() is None


# --- what is broken shows --------------------------------------------------------------------------------------------


def scaled(call):
    """A linear map that passes nine tenths on."""
    value = call.value()
    value.register_hook(lambda gradient: gradient * 0.9)
    return value


def leaking(call):
    """A linear map whose gradient is nine tenths of its own."""
    (x,) = call.operands_with_relevance()
    weight = call.argument(1, "weight")
    return modified(x, call.value(), lambda gradient: 0.9 * gradient @ weight)


def unnamed(call):
    """A stabiliser five times as large as it should be."""
    return stabilised(call.value(), 5 * call.epsilon)


@pytest.mark.parametrize(("rule", "epsilon"), [(scaled, 0.0), (leaking, 0.0), (leaking, 1e-2), (unnamed, 1e-2)])
def test_a_broken_rule_shows_where_it_is(embedding_models, rule, epsilon):
    embedding_model = embedding_models["bert"]
    case = case_of(embedding_model)

    def broken(call):
        return rule(call) if "layer.1.intermediate" in call.where() else ATTNLRP["linear"](call)

    lrp = LRP("broken", {**ATTNLRP, "linear": broken}, epsilon)
    ledger = conservation_ledger(lrp, embedding_model, case)
    assert ledger.gap > 1e-4
    scale = max(float(entry.received.abs().max()) for entry in ledger.entries)
    found = {entry.module for entry in ledger.entries if float(entry.unaccounted.abs().max()) > BALANCE * scale}
    assert found == {"model.bert.encoder.layer.1.intermediate.dense"}
    (module,) = found
    with pytest.raises(ValueError, match=rf"does not balance.* at linear in {module} \(by broken\)$"):
        conservation(lrp, embedding_model, case)


@pytest.mark.parametrize("seed", range(3))
def test_float32_hides_no_rule_that_is_off_by_its_tolerance(seed):
    """Round-off has no name: it leaves 3e-6 at most, and every linear map scaled by 1 − 1e-4 leaves 2e-4 and more."""
    torch.set_default_dtype(torch.float32)
    settings = (seed, torch.float32, torch.device("cpu"))
    model, case = control.bert(*settings)[0], control.sentences(*settings)

    def off(call):
        value = ATTNLRP["linear"](call)
        value.register_hook(lambda gradient: gradient * (1 - 1e-4))
        return value

    whole = conservation_ledger(AttnLRP(), model, case)
    assert whole.gap <= 1e-5
    assert set(whole.by_cause()) <= {"softmax", *(f"model.bert.embeddings.{e}_embeddings" for e in EMBEDDINGS)}
    conservation(AttnLRP(), model, case)
    with pytest.raises(ValueError, match="does not balance"):
        conservation(LRP("off", {**ATTNLRP, "linear": off}), model, case)


def by_its_gradient(call):
    """What an activation's rule is not."""
    return call.value()


def test_an_activation_by_its_gradient_leaves_what_it_loses():
    """Of f(x) it passes x·f′(x) on; the rest has no name."""
    x = torch.randn(3, 1)
    ledger = ledger_of(lambda f, x: F.gelu(x), x, LRP("wrong", {**ATTNLRP, "gelu": by_its_gradient}))
    point = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(F.gelu(point).sum(), point)
    torch.testing.assert_close(only(ledger, "gelu").unaccounted, (F.gelu(x) - x * slope)[:, 0], **CLOSE)
    assert ledger.by_cause() == {}
    assert ledger.gap > 0.1


def test_a_softmax_that_is_not_eq_5_leaves_the_difference():
    """Eq. 5 less a tenth: the tenth of what Eq. 5 passes on has no name, and what Eq. 5 loses keeps its own."""

    def nine_tenths(call):
        value = call.value()
        return modified(
            *call.operands_with_relevance(), value, lambda g: 0.9 * value * (g - (value * g).sum(-1, keepdim=True))
        )

    pair = registered_pairs()["probe.softmax"]
    model, case = (make(0, torch.float64, torch.device("cpu")) for make in (pair.build, pair.case))
    right, wrong = (
        only(conservation_ledger(LRP("softmax", {**ATTNLRP, "softmax": rule}), model[0], case), "softmax")
        for rule in (ATTNLRP["softmax"], nine_tenths)
    )
    torch.testing.assert_close(wrong.losses["softmax"], right.losses["softmax"], **CLOSE)
    torch.testing.assert_close(wrong.unaccounted, right.passed_on / 10, **CLOSE)


def test_what_a_hook_of_the_model_takes_shows():
    """It halves the gradient at the result of a linear map, which is where the remainder stands."""

    def halved(f, x):
        y = F.linear(x, f.w)
        y.register_hook(lambda gradient: gradient / 2)
        return y.sum(1, keepdim=True)

    x, weights = torch.randn(2, 3), {"w": torch.randn(3, 3)}
    assert ledger_of(halved, x, **weights).gap > 0.1
    case = Case(x, torch.zeros(2, dtype=torch.int64), torch.zeros_like(x))
    with pytest.raises(ValueError, match="at linear in the model"):
        conservation(AttnLRP(), Function(halved, **weights), case)


def test_who_keeps_no_ledger_says_so():
    x = torch.randn(2, 3)
    case = Case(x, torch.zeros(2, dtype=torch.int64), torch.zeros_like(x))
    with pytest.raises(Unsupported, match=r"gradient_x_input.*only LRP keeps a ledger"):
        conservation(GradientTimesInput(), Function(lambda f, x: x), case)


def test_special_tokens_are_told_apart(embedding_models):
    embedding_model = embedding_models["bert"]
    case = case_of(embedding_model)
    ledger = conservation_ledger(AttnLRP(), embedding_model, case)
    attribution = AttnLRP().attribute(embedding_model, case)
    torch.testing.assert_close(ledger.at_special, (attribution * case.special_tokens_mask).sum(1), **CLOSE)
    torch.testing.assert_close(ledger.at_features, (attribution * ~case.special_tokens_mask).sum(1), **CLOSE)
    without = conservation_ledger(AttnLRP(), embedding_model, replace(case, special_tokens_mask=None))
    assert without.at_special.tolist() == [0, 0, 0]
