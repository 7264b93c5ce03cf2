"""The explainers on small unmodified models of every architecture, with random weights.

All models are in float64, except those that `load` refuses in float64, such as Llama: these are in float32.
"""

import math
from dataclasses import replace
from inspect import signature

import pytest
import torch
import transformers
from torch import nn
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode

from faithcheck.alignment.perturbation_curves import curves
from faithcheck.explainers import (
    CPLRP,
    AttentionRollout,
    AttnLRP,
    GradientTimesInput,
    IntegratedGradients,
    LeaveOneOut,
    Unsupported,
)
from faithcheck.explainers.loo.removal import AttentionMask, Deletion
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.models.case import select_target
from faithcheck.models.data import handwritten_digits
from faithcheck.models.data.images import load_images
from faithcheck.models.pretrained.folder import ModelError
from faithcheck.models.pretrained.image_classifier import ImageClassifier
from faithcheck.models.pretrained.loading import load
from faithcheck.models.pretrained.text_model import TextClassifier
from faithcheck.tests.helpers.small_models import (
    ARCHITECTURES,
    DECODERS,
    IMAGE_CLASSIFIERS,
    TEXTS,
    WORDS,
    load_widest,
    save,
    tokenizer,
)

# Relative to the largest value, for sums in another order. ViT's softmax runs in float32, and so does all of Llama.
FLOAT64, FLOAT32 = 1e-10, 1e-5
LRPS = pytest.mark.parametrize("lrp", [AttnLRP(), CPLRP(), AttnLRP(1e-6)], ids=["attnlrp", "cplrp", "epsilon"])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: save(name, tmp_path_factory.mktemp(name)) for name in ARCHITECTURES}


@pytest.fixture(scope="module")
def embedding_models(folders):
    return {name: load_widest(folder) for name, folder in folders.items()}


@pytest.fixture(scope="module")
def tolerances(embedding_models):
    return {name: tolerance(embedding_model) for name, embedding_model in embedding_models.items()}


class Dtypes(TorchFunctionMode):
    """Records the dtypes of all floating-point results."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_floating_point():
            self.seen.add(result.dtype)
        return result


def tolerance(embedding_model):
    """The tolerance of the narrowest dtype that a forward pass uses."""
    case = case_of(embedding_model)
    with torch.no_grad(), Dtypes() as dtypes:
        case.run(embedding_model)
    return FLOAT64 if dtypes.seen == {torch.float64} else FLOAT32


def case_of(embedding_model, items=None):
    if isinstance(embedding_model, ImageClassifier):
        return embedding_model.case(embedding_model.encode(load_images("digits", 3).images if items is None else items))
    return embedding_model.case(embedding_model.encode(TEXTS if items is None else items))


def same(left, right, tolerance):
    """Equal to a tolerance relative to the largest value."""
    return float((left - right).detach().abs().max()) <= tolerance * float(right.detach().abs().max())


@LRPS
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_lrp_runs_and_leaves_no_trace(embedding_models, name, lrp):
    embedding_model = embedding_models[name]
    case = case_of(embedding_model)
    before = case.run(embedding_model)
    relevance = lrp.attribute(embedding_model, case)
    assert relevance.shape == case.shape
    assert relevance.isfinite().all()
    assert (relevance[case.unpadded] != 0).all()
    assert (relevance[~case.unpadded] == 0).all()
    assert torch.equal(case.run(embedding_model), before)
    assert_no_trace(embedding_model)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_refusal_leaves_no_trace(embedding_models, name):
    embedding_model = embedding_models[name]
    without = LRP("without softmax", {key: rule for key, rule in ATTNLRP.items() if key != "softmax"})
    with pytest.raises(Unsupported, match=r"softmax in .*Attention"):
        without.attribute(embedding_model, case_of(embedding_model))
    assert_no_trace(embedding_model)


def assert_no_trace(embedding_model):
    assert not hooks._global_forward_hooks
    assert not hooks._global_forward_pre_hooks
    for part in embedding_model.modules():
        assert not part._forward_hooks
        assert not part._forward_pre_hooks
    assert all(weight.grad is None for weight in embedding_model.parameters())


# --- modules treated as one operation --------------------------------------------------------------------------------


class TanhGELU(nn.Module):
    """NewGELUActivation as one torch operation."""

    def forward(self, x):
        return nn.functional.gelu(x, approximate="tanh")


class RootMeanSquare(nn.Module):
    """LlamaRMSNorm as one torch operation, under a name that no rule has."""

    def __init__(self, norm):
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, x):
        return nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


ONE_OPERATION = {
    "gpt2": ("NewGELUActivation", lambda module: TanhGELU(), 1e-12),
    "llama": ("*RMSNorm", RootMeanSquare, FLOAT32),
}


@pytest.mark.parametrize("name", ONE_OPERATION)
def test_a_module_treated_as_one_operation_has_the_relevance_of_that_operation(folders, embedding_models, name):
    key, one_operation, tolerance = ONE_OPERATION[name]
    other = load_widest(folders[name])
    written_out = [part for part in other.modules() if type(part).__name__.endswith(key.strip("*"))]
    assert written_out
    for parent in list(other.modules()):
        for child, part in list(parent.named_children()):
            if any(part is module for module in written_out):
                setattr(parent, child, one_operation(part))
    case = case_of(embedding_models[name])
    assert same(case.run(other), case.run(embedding_models[name]), tolerance)
    relevance = AttnLRP().attribute(embedding_models[name], case)
    assert same(AttnLRP().attribute(other, case), relevance, tolerance)
    as_operations = LRP("operations", {row: rule for row, rule in ATTNLRP.items() if row != key})
    assert not same(as_operations.attribute(embedding_models[name], case), relevance, 1e-2)


# --- oracles ---------------------------------------------------------------------------------------------------------


def halved(z):
    """Z with its gradient halved: one operand of a product, Eqs. 3–4."""
    return z / 2 + (z / 2).detach()


def gpt2_attnlrp(model, embeddings, target):
    """AttnLRP at ε = 0 on a GPT-2 of one layer and one text ``(tokens, width)``, by autograd with detached factors."""
    block, body = model.transformer.h[0], model.transformer
    x = embeddings.detach().requires_grad_()
    n, width = x.shape
    heads = block.attn.num_heads

    def norm(layer, z):
        deviation = (z.var(-1, unbiased=False, keepdim=True) + layer.eps).sqrt().detach()
        return (z - z.mean(-1, keepdim=True)) / deviation * layer.weight + layer.bias

    def by_head(z):
        return z.view(n, heads, -1).transpose(0, 1)

    hidden = x + body.wpe.weight[:n]
    mixed = norm(block.ln_1, hidden) @ block.attn.c_attn.weight + block.attn.c_attn.bias
    q, k, v = (by_head(z) for z in mixed.split(width, 1))
    logits = halved(q @ k.transpose(1, 2)) / math.sqrt(width / heads)
    ahead = torch.ones(n, n, dtype=torch.bool).triu(1)
    weights = logits.masked_fill(ahead, -math.inf).softmax(-1)
    attended = halved(weights @ v).transpose(0, 1).reshape(n, width)
    hidden = hidden + attended @ block.attn.c_proj.weight + block.attn.c_proj.bias
    inner = norm(block.ln_2, hidden) @ block.mlp.c_fc.weight + block.mlp.c_fc.bias
    active = inner * (nn.functional.gelu(inner, approximate="tanh") / inner).detach()
    hidden = hidden + active @ block.mlp.c_proj.weight + block.mlp.c_proj.bias
    output = norm(body.ln_f, hidden)[-1] @ model.lm_head.weight.T
    (gradient,) = torch.autograd.grad(output[target], x)
    return (x * gradient).sum(1).detach(), output.detach()


def test_attnlrp_on_gpt2_is_the_hand_written_one(tmp_path):
    transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            **{"vocab_size": len(WORDS), "n_embd": 16, "n_layer": 1, "n_head": 4, "n_positions": 32},
            **{"bos_token_id": 2, "eos_token_id": 3, "initializer_range": 0.4},
        )
    ).double().save_pretrained(tmp_path)
    tokenizer(special=False).save_pretrained(tmp_path)
    embedding_model = load(tmp_path, dtype=torch.float64)
    case = case_of(embedding_model, TEXTS[:1])
    expected, output = gpt2_attnlrp(embedding_model.model, case.inputs[0], case.target[0])
    assert same(case.run(embedding_model)[0], output, 1e-12)
    assert same(AttnLRP().attribute(embedding_model, case)[0], expected, 1e-10)


def test_cp_lrp_conserves_on_llama_and_attnlrp_does_not(embedding_models):
    """Llama has no biases and no position embeddings; its RoPE rotates only queries and keys.

    In CP-LRP queries and keys have no relevance, so that the word embeddings get all of it. AttnLRP's softmax rule
    (Eq. 5) is not conservative.
    """
    case = case_of(embedding_models["llama"])
    output = select_target(case.run(embedding_models["llama"]), case.target)
    assert same(CPLRP().attribute(embedding_models["llama"], case).sum(1), output, FLOAT32)
    assert not same(AttnLRP().attribute(embedding_models["llama"], case).sum(1), output, 1e-2)


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_rollout_is_the_product_of_the_attentions_that_the_model_returns(embedding_models, tolerances, name, residual):
    embedding_model = embedding_models[name]
    (example,) = examples = embedding_model.encode(
        [load_images("digits", 1).images[0] if name in IMAGE_CLASSIFIERS else TEXTS[0]]
    )
    case = embedding_model.case(examples)
    how = (
        {"pixel_values": embedding_model.assembled(case.inputs)}
        if name in IMAGE_CLASSIFIERS
        else {"input_ids": example.features[None]}
    )
    layers = [weights[0].mean(0) for weights in embedding_model.model(**how, output_attentions=True).attentions]
    if residual:
        layers = [(layer + torch.eye(len(layer)).to(layer)) / 2 for layer in layers]
    expected = torch.linalg.multi_dot(layers[::-1])
    row = expected[-1] if name in DECODERS else expected[0]
    attribution = AttentionRollout(residual).attribute(embedding_model, case)[0]
    assert same(
        attribution, row[1:] if name in IMAGE_CLASSIFIERS else row, tolerances[name]
    )  # the patches follow the class token


# --- batches and padding ---------------------------------------------------------------------------------------------

EXPLAINERS = [
    LeaveOneOut(AttentionMask()),
    LeaveOneOut(Deletion()),
    IntegratedGradients(4, name="ig"),
    AttentionRollout(),
    GradientTimesInput(),
    AttnLRP(),
    CPLRP(),
]


# --- decoders --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_is_read_at_the_last_token(embedding_models, tolerances, name):
    embedding_model = embedding_models[name]
    case = case_of(embedding_model)
    output = case.run(embedding_model)
    for i, example in enumerate(embedding_model.encode(TEXTS)):
        logits = embedding_model.model(input_ids=example.features.unsqueeze(0)).logits
        assert same(output[i], logits[0, -1], tolerances[name])
        assert case.target[i] == logits[0, -1].argmax()


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_without_logits_to_keep_is_read_at_the_same_token(embedding_models, tolerances, name, monkeypatch):
    embedding_model = embedding_models[name]
    case = case_of(embedding_model)
    expected, forward = case.run(embedding_model), embedding_model.model.forward
    assert "logits_to_keep" in signature(forward).parameters
    monkeypatch.setattr(embedding_model.model, "forward", lambda **how: forward(**how))
    assert "logits_to_keep" not in signature(embedding_model.model.forward).parameters
    assert same(case.run(embedding_model), expected, tolerances[name])


@pytest.mark.parametrize("name", DECODERS)
def test_the_token_that_a_decoder_is_read_at_is_special(embedding_models, name):
    """These tokenizers add no special token: without it a perturbation curve would end with no token to attend to."""
    embedding_model = embedding_models[name]
    examples = embedding_model.encode(TEXTS)
    assert [example.special_tokens_mask.tolist() for example in examples] == [
        [False] * (len(e) - 1) + [True] for e in examples
    ]
    case = embedding_model.case(examples)
    output = curves(embedding_model, case, AttnLRP().attribute(embedding_model, case), AttentionMask())
    assert [len(curve) for curve in output.morf] == [len(example) for example in examples]
    assert all(curve.isfinite().all() for curve in (*output.morf, *output.lerf))


@pytest.mark.filterwarnings("ignore::faithcheck.explainers.gradients.CompletenessWarning")  # 4 nodes
@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("explainer", [e for e in EXPLAINERS if e != LeaveOneOut(Deletion())], ids=lambda e: e.name)
def test_tokens_after_the_position_read_get_nothing(embedding_models, name, explainer):
    case = case_of(embedding_models[name], TEXTS[:1])
    earlier = replace(case, forward_arguments={**case.forward_arguments, "last": torch.tensor([1])})
    attribution = explainer.attribute(embedding_models[name], earlier)[0]
    with torch.no_grad():
        output = embedding_models[name](earlier.inputs, **earlier.forward_arguments).abs().max()
    # Some processors' matrix products round a row otherwise where other rows stand beside it: LOO subtracts two rows.
    roundoff = 16 * torch.finfo(output.dtype).eps * output if isinstance(explainer, LeaveOneOut) else 0
    assert (attribution[2:].abs() <= roundoff).all()
    assert (attribution[:2].abs() > roundoff).all()


def test_llama_in_float64_is_refused(folders):
    """Its softmax runs in float32, where float64's lowest number is −∞: a row with every key masked is NaN."""
    with pytest.raises(ModelError, match=r"NaN in torch\.float64 where the first token is masked: use float32"):
        load(folders["llama"], dtype=torch.float64)


# --- RoBERTa ---------------------------------------------------------------------------------------------------------


def test_roberta_on_embeddings_has_the_logits_of_roberta_on_ids(embedding_models):
    embedding_model = embedding_models["roberta"]
    examples = embedding_model.encode(TEXTS)
    ids = nn.utils.rnn.pad_sequence(
        [example.features for example in examples], True, embedding_model.tokenizer.pad_token_id
    )
    case = embedding_model.case(examples)
    logits = embedding_model.model(input_ids=ids, attention_mask=case.forward_arguments["attention_mask"]).logits
    assert same(case.run(embedding_model), logits, 1e-12)


def test_roberta_takes_two_tokens_fewer_than_it_has_positions(embedding_models):
    long = ARCHITECTURES["roberta"](max_position_embeddings=514).eval()
    assert TextClassifier(long, tokenizer(special=True)).max_length == 512
    embedding_model = embedding_models["roberta"]
    assert embedding_model.max_length == 32
    whole, longer = embedding_model.encode(["dog " * 30, "dog " * 31])
    assert (len(whole), whole.truncated) == (32, False)
    assert (len(longer), longer.truncated) == (32, True)
    assert embedding_model.case([longer]).run(embedding_model).isfinite().all()


# --- ViT -------------------------------------------------------------------------------------------------------------


def test_vit_on_patches_has_the_logits_of_the_unmodified_model_on_pixels(embedding_models, monkeypatch):
    monkeypatch.setattr(
        handwritten_digits, "_folder", None
    )  # 8 × 8 pixels, which need no resizing, also in a run on MNIST
    embedding_model, images = embedding_models["vit"], torch.stack(load_images("digits", 3).images).double()
    pixel_values = (images - 0.3) / 0.4
    case = case_of(embedding_model)
    assert case.shape == (3, 16)
    assert same(embedding_model.assembled(case.inputs), pixel_values, 1e-6)  # images are float32
    assert torch.equal(embedding_model.patches(embedding_model.assembled(case.inputs)), case.inputs)
    assert torch.equal(
        case.run(embedding_model), embedding_model.model(pixel_values=embedding_model.assembled(case.inputs)).logits
    )


def test_a_patch_lies_where_its_name_says(embedding_models):
    image = torch.zeros(1, 8, 8)
    image[0, 2:4, 6:8] = 1
    (example,) = embedding_models["vit"].encode([image])
    (bright,) = {name for name, patch in zip(example.names, example.features, strict=True) if patch.max() > 0}
    assert bright == "r1c3"


def test_a_black_patch_is_pixels_of_zero(embedding_models):
    embedding_model = embedding_models["vit"]
    black = case_of(embedding_model, [torch.zeros(1, 8, 8)])
    assert same(black.inputs[0, 0], black.replacements["black"], 1e-6)


def test_a_patch_cannot_be_masked_or_deleted(embedding_models):
    embedding_model = embedding_models["vit"]
    case = case_of(embedding_model)
    for removal in (AttentionMask(), Deletion()):
        with pytest.raises(Unsupported, match="by a replacement such as 'zero'"):
            LeaveOneOut(removal).attribute(embedding_model, case)
    with pytest.raises(ModelError, match=r"4 × 4 patches, got 15.*cannot be deleted; remove them by a replacement"):
        embedding_model(case.inputs[:, 1:])
