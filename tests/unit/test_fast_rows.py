"""Leave-One-Out's fast parts against plain passes of the same rows, on random tiny models of many architectures."""

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from faithcheck.explainers.fast import fused_attention, outer_layers, removal_rows, shared_prefix
from faithcheck.explainers.fast.removal_rows import FastRows, may_be_fast, runner
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.loo.outputs import outputs_without
from faithcheck.explainers.loo.removal import AttentionMask, Deletion, Replacement, Resampling
from faithcheck.explainers.protocol import observed_forward_passes
from faithcheck.models import Case, select_target
from faithcheck.models.architectures.architecture import spread
from faithcheck.models.architectures.base_models import ARCHITECTURES
from faithcheck.models.architectures.embedding_model import KeepFloat64
from faithcheck.tests.helpers.fixtures import small_models_are_fast as small_models_are_fast  # for every test
from faithcheck.tests.helpers.model_state import assert_same_state, state_of

ROUND_OFF = {"rtol": 1e-12, "atol": 1e-12}  # float64: other orders of the same sums
TOKENS, WIDTH = 11, 16
SIZES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "vocab_size": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 32,
}
TEXT = {
    "bert": {},
    "roberta": {},
    "distilbert": {"dim": WIDTH, "n_layers": 2, "n_heads": 4, "hidden_dim": 24},
    "electra": {"embedding_size": WIDTH},
    "albert": {"embedding_size": WIDTH},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "modernbert": {"global_attn_every_n_layers": 2, "local_attention": 4},
}
CAUSAL = {
    "gpt2": {"n_embd": WIDTH, "n_layer": 2, "n_head": 4},
    "llama": {"num_key_value_heads": 2},
    "mistral": {"num_key_value_heads": 2, "sliding_window": 3},
    "qwen2": {"num_key_value_heads": 2},
    "gemma2": {"num_key_value_heads": 2, "head_dim": 4, "sliding_window": 4},
    "gpt_neox": {},
    "opt": {"ffn_dim": 24, "word_embed_proj_dim": WIDTH},
    "bloom": {"n_layer": 2, "n_head": 4},
    "phi": {},
}
EAGER_ALONE = {"deberta-v2", "bloom", "gemma2"}
DEPENDS_ON_PADDING = {"deberta-v2"}
"""A token that is hidden attends to padding as well, and the outputs are those without padding that can be left out."""
PLAIN = {"albert", "deberta-v2", "gemma2", "modernbert"}
"""One layer that runs several times; attention that caps its logits; a mean of all tokens, and so on."""
assert {*ARCHITECTURES} - {"vit"} <= {*TEXT, *CAUSAL}, "every architecture of texts is compared here"


class Called(nn.Module):
    """A model called on embeddings; a decoder is read at ``last``."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs, attention_mask=None, last=None):
        with KeepFloat64():
            logits = self.model(inputs_embeds=inputs, attention_mask=attention_mask).logits
        return logits if last is None else logits[torch.arange(len(last)), last]


@cache
def model_of(name, implementation="eager"):
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **SIZES | (TEXT | CAUSAL)[name])
    kind = AutoModelForSequenceClassification if name in TEXT else AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation=implementation).double()
    spread(model)
    return Called(model).eval()


def batch(name, padding="none"):
    """One text, or three with two positions of padding in the second, on this side."""
    numbers = torch.Generator().manual_seed(1)
    examples = 1 if padding == "none" else 3
    inputs = torch.randn(examples, TOKENS, WIDTH, dtype=torch.float64, generator=numbers)
    mask, last = torch.ones(examples, TOKENS, dtype=torch.int64), torch.full((examples,), TOKENS - 1)
    if padding == "right":
        mask[1, -2:], last[1] = 0, TOKENS - 3
    if padding == "left":
        mask[1, :2] = 0
    baseline = torch.randn(inputs.shape, dtype=torch.float64, generator=numbers)
    arguments = {"attention_mask": mask} | ({"last": last} if name in CAUSAL else {})
    return Case(inputs, torch.zeros(examples, dtype=torch.int64), baseline, forward_arguments=arguments)


def plain_effects(model, case, removal):
    """Leave-One-Out by a plain pass for each row: in a pass with longer rows, a shorter one would meet padding."""
    effects = torch.zeros(case.shape, dtype=case.inputs.dtype)
    for i, unpadded in enumerate(case.unpadded):
        removed = torch.cat([torch.zeros(1, TOKENS), torch.eye(TOKENS)[unpadded]]).bool()
        example = case.select(torch.tensor([i]))
        for draw in range(removal.draws):
            with torch.no_grad():
                rows = [removal.remove(example, row[None], draw).run(model) for row in removed]
            output = select_target(torch.cat(rows), example.target.expand(len(rows)))
            effects[i, unpadded] += (output[0] - output[1:]) / removal.draws
    return effects


POOL = torch.randn(8, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
SOME = ("bert", "bloom", "gpt2", "llama")
REMOVALS = [AttentionMask(), Replacement(), Deletion(), Resampling(POOL, draws=2)]


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SOME else pytest.mark.slow) for name in (*TEXT, *CAUSAL)]
)
def test_leave_one_out_is_that_of_plain_passes(name, padding, monkeypatch):
    if name in DEPENDS_ON_PADDING and padding == "right":
        pytest.skip("plain passes of this model depend on the padding of their batch")
    implementation = "eager" if padding == "left" or name in EAGER_ALONE else "sdpa"
    model, case, is_right = model_of(name, implementation), batch(name, padding), []
    agrees = FastRows.agrees
    monkeypatch.setattr(FastRows, "agrees", lambda self, rows: is_right.append(agrees(self, rows)) or is_right[-1])
    before = state_of(model)
    for removal in REMOVALS:
        effects = LeaveOneOut(removal, 10 * TOKENS).attribute(model, case)
        torch.testing.assert_close(effects, plain_effects(model, case, removal), equal_nan=True, **ROUND_OFF)
    assert_same_state(before, state_of(model))
    assert name in PLAIN or all(is_right), "the fast parts are right on this architecture"


BREAKS = {
    "the last layer reads another token": (
        "bert",
        (outer_layers.LastLayer, "chosen", lambda self, states: states[:, 1]),
    ),
    "the first layer takes rows for equal": ("bert", (torch, "equal", lambda a, b: True)),
    "the attention scales its logits twice": (
        "bert",
        (
            fused_attention,
            "scaled_dot_product_attention",
            lambda q, k, v, mask, scale: nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=2 * scale),
        ),
    ),
    "a prefix is too long": ("llama", (shared_prefix, "equal_tokens", lambda case, row: torch.tensor([TOKENS - 2]))),
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_fast_part_that_is_wrong_is_noticed_and_not_used(what, monkeypatch):
    """Both ways: without the check, the outputs are wrong; with it, they are those of plain passes."""
    name, (owner, attribute, wrong) = BREAKS[what]
    model, case = model_of(name), batch(name)
    expected = plain_effects(model, case, Replacement())
    rows = Replacement().remove(case.select(torch.zeros(TOKENS, dtype=torch.int64)), torch.eye(TOKENS).bool())
    run = FastRows(model)
    with torch.no_grad():
        plain = rows.run(model)
        monkeypatch.setattr(owner, attribute, wrong)
        outputs, is_right = run.fast(rows), run.agrees(rows)
        monkeypatch.undo()
    assert outputs is None or not torch.allclose(outputs, plain, **ROUND_OFF)
    assert not is_right
    monkeypatch.setattr(removal_rows, "LEAST_NUMBERS", 0)
    monkeypatch.setattr(FastRows, "agrees", lambda self, rows: False)
    monkeypatch.setattr(FastRows, "fast", None)  # must not be called
    torch.testing.assert_close(LeaveOneOut(Replacement()).attribute(model, case), expected, **ROUND_OFF)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_less_is_computed(name):
    """The linear maps of 12 rows, 11 tokens and 2 layers see fewer tokens than 12 · 11 each."""
    model, case, tokens = copy.deepcopy(model_of(name)), batch(name), []
    removed = torch.cat([torch.eye(TOKENS), torch.zeros(1, TOKENS)]).bool()
    rows = AttentionMask().remove(case.select(torch.zeros(len(removed), dtype=torch.int64)), removed)
    run = FastRows(model)
    maps = [layer for layer in outer_layers.linear_maps(model) if layer.weight.shape[0] != 2]
    for linear in maps:
        linear.register_forward_hook(lambda _, arguments, output: tokens.append(output.shape[:-1].numel()))
    with torch.no_grad():
        run.fast(rows)
    share = sum(tokens) / (len(maps) * rows.shape.numel())
    assert share < 0.75


def test_a_model_that_reads_another_token_is_run_plainly():
    model, case = model_of("bert"), batch("bert")

    class Mean(Called):
        def forward(self, inputs, attention_mask):
            with KeepFloat64():
                return self.model.bert(inputs_embeds=inputs, attention_mask=attention_mask).last_hidden_state.mean(1)

    mean = Mean(model.model).eval()
    effects = LeaveOneOut(AttentionMask()).attribute(mean, case)
    torch.testing.assert_close(effects, plain_effects(mean, case, AttentionMask()), **ROUND_OFF)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_a_value_that_is_not_finite_reaches_what_it_reaches_in_the_plain_pass(name):
    case, model = batch(name), model_of(name)
    inputs = case.inputs.clone()
    inputs[0, 3, 1] = float("nan")
    case = replace(case, inputs=inputs)
    effects = LeaveOneOut(AttentionMask()).attribute(model, case)
    torch.testing.assert_close(effects, plain_effects(model, case, AttentionMask()), equal_nan=True, **ROUND_OFF)


def test_float32_outputs_agree_to_1e_5():
    for name in ("bert", "llama"):
        model, case = copy.deepcopy(model_of(name)).float(), batch(name).to(torch.float32)
        expected = LeaveOneOut(AttentionMask()).attribute(model_of(name), batch(name))
        effects = LeaveOneOut(AttentionMask()).attribute(model, case)
        torch.testing.assert_close(effects.double(), expected, rtol=0, atol=1e-5)


def test_which_models_may_be_fast(monkeypatch):
    model = copy.deepcopy(model_of("bert"))
    assert may_be_fast(model)
    assert not may_be_fast(nn.Linear(2, 2)), "no transformers model"
    passes = []
    with observed_forward_passes(model, lambda: passes.append(0), lambda: None):
        assert may_be_fast(model)
    for interfere in (
        lambda module: module.train(),
        lambda module: module.register_forward_hook(lambda *_: None),
        lambda module: setattr(module, "forward", module.forward),
        lambda module: setattr(module, "_compiled_call_impl", module._call_impl),
    ):
        other = copy.deepcopy(model)
        interfere(other.model.bert.encoder.layer[0])
        assert not may_be_fast(other)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert not may_be_fast(model)
    finally:
        handle.remove()
    monkeypatch.setenv("FAITHCHECK_PLAIN", "1")
    monkeypatch.setattr(removal_rows, "FastRows", None)  # must not be called
    assert runner(model)(batch("bert")).shape == (1, 2)


def test_small_passes_are_run_plainly(monkeypatch):
    monkeypatch.setattr(removal_rows, "LEAST_NUMBERS", 3 * TOKENS * WIDTH + 1)
    monkeypatch.setattr(FastRows, "fast", None)  # must not be called
    with torch.no_grad():
        assert runner(model_of("bert"))(batch("bert").select(torch.zeros(3, dtype=torch.int64))).shape == (3, 2)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_nothing_is_left_behind_when_a_pass_fails(name, monkeypatch):
    model, case = copy.deepcopy(model_of(name)), batch(name)

    def fails(*_, **__):
        raise RuntimeError("out of order")

    norm = next(module for module in reversed(list(model.modules())) if "Norm" in type(module).__name__)
    monkeypatch.setattr(type(norm), "forward", fails)
    before, functions = state_of(model), dict(ALL_ATTENTION_FUNCTIONS)
    with pytest.raises(RuntimeError, match="out of order"):
        outputs_without(model, case, torch.zeros(3).long(), torch.eye(TOKENS).bool()[:3], AttentionMask(), 1000)
    assert_same_state(before, state_of(model))
    assert dict(ALL_ATTENTION_FUNCTIONS) == functions
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
