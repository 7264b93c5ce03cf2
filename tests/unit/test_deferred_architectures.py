"""Rows run on deferred tensors against the plain pass, on random tiny models of many architectures, in float64."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModel

from faithcheck.explainers.loo.deferred import RowRunner, run_deferred
from faithcheck.explainers.loo.removal import AttentionMask, Deletion, Replacement, Resampling, outputs_without
from faithcheck.models import Case
from faithcheck.models.architectures.architecture import spread
from faithcheck.models.architectures.base_models import ARCHITECTURES
from faithcheck.models.architectures.embedding_model import KeepFloat64
from faithcheck.tests.helpers.counted_rows import CountedRows
from faithcheck.tests.helpers.fixtures import small_models_are_recorded as small_models_are_recorded  # for every test

ROUND_OFF = {"rtol": 1e-12, "atol": 1e-12}  # float64: other orders of the same sums
TOKENS, WIDTH = 6, 16
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
    "gpt_neox": {},
    "opt": {"ffn_dim": 24, "word_embed_proj_dim": WIDTH},
    "bloom": {"n_layer": 2, "n_head": 4},
    "phi": {},
}
EAGER_ALONE = {"deberta-v2", "bloom"}
WRITES_IN_PLACE = {"deberta-v2"}
assert {*ARCHITECTURES} - {"vit"} <= {*TEXT, *CAUSAL}, "every architecture of texts is compared here"


class Read(nn.Module):
    """A model read at some positions, or at the mean of all: embeddings to ``(rows, width)``."""

    def __init__(self, model, read):
        super().__init__()
        self.model, self.read = model, read

    def forward(self, inputs, attention_mask=None, last=None):
        return READOUTS[self.read](hidden_of(self.model, inputs, attention_mask), last)


def hidden_of(model, inputs, attention_mask=None):
    with KeepFloat64():
        return model(inputs_embeds=inputs, attention_mask=attention_mask).last_hidden_state


READOUTS = {
    "first": lambda hidden, last: hidden[:, 0],
    "last": lambda hidden, last: hidden[torch.arange(len(last)), last],
    "kept": lambda hidden, last: hidden[:, slice(-1, None), :][:, -1],  # as by transformers' logits_to_keep=1
    "parts": lambda hidden, last: hidden[:, 3:3].sum((1, 2), keepdim=True) + hidden[:, 2:4].sum(1),
    "two": lambda hidden, last: hidden[:, 1] * hidden[:, 3],
    "mean": lambda hidden, last: hidden.mean(1),
}


@cache
def model_of(name, implementation):
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **SIZES | (TEXT | CAUSAL)[name])
    model = AutoModel.from_config(config, attn_implementation=implementation).double().eval()
    spread(model)
    return model


def batch(padding):
    """Three texts with two positions of padding in the second, on this side, or one text without."""
    numbers = torch.Generator().manual_seed(1)
    examples = 1 if padding == "none" else 3
    inputs = torch.randn(examples, TOKENS, WIDTH, dtype=torch.float64, generator=numbers)
    mask = torch.ones(examples, TOKENS, dtype=torch.int64)
    last = torch.full((examples,), TOKENS - 1)
    if padding == "right":
        mask[1, -2:], last[1] = 0, TOKENS - 3
    if padding == "left":
        mask[1, :2] = 0
    baseline = torch.randn(inputs.shape, dtype=torch.float64, generator=numbers)
    arguments = {"attention_mask": mask, "last": last}
    return Case(inputs, torch.zeros(examples, dtype=torch.int64), baseline, forward_arguments=arguments)


def rows_of(case, removal, together=1):
    """The rows of Leave-One-Out, or without several neighbouring tokens, of all examples."""
    example, feature = case.unpadded.nonzero(as_tuple=True)
    removed = torch.zeros(len(example) + 1, TOKENS, dtype=torch.bool)
    for offset in range(together):
        removed[torch.arange(len(example)) + 1, (feature + offset).clamp(max=TOKENS - 1)] = True
    example = torch.cat([example[:1], example])
    part = case.select(example) if len(case.inputs) > 1 else case.repeat(len(example))
    return removal.remove(part, removed & part.unpadded)


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", [*TEXT, *CAUSAL])
def test_outputs_are_those_of_the_plain_pass(name, implementation, padding):
    if name in EAGER_ALONE and implementation == "sdpa":
        pytest.skip("this model has no SDPA attention")
    model, case = model_of(name, implementation), batch(padding)
    for removal in (AttentionMask(), Replacement(), Deletion()):
        for together in (1, 2):
            rows = rows_of(case, removal, together)
            with torch.no_grad():
                hidden = hidden_of(model, rows.inputs, rows.forward_arguments["attention_mask"])
            for read, readout in READOUTS.items():
                with torch.no_grad():
                    outputs = RowRunner(Read(model, read)).outputs(rows)
                expected = readout(hidden, rows.forward_arguments["last"])
                torch.testing.assert_close(outputs, expected, equal_nan=True, **ROUND_OFF)


def without_each():
    """No token of a text removed, then each."""
    return torch.cat([torch.zeros(1, TOKENS), torch.eye(TOKENS)]).bool()


def outputs_of_passes(model, case, removal, rows):
    """The outputs without any and without each token ``(1 + tokens,)``, in passes of so many rows."""
    removed = without_each()
    return outputs_without(model, case, torch.zeros(len(removed)).long(), removed, removal, rows * TOKENS)


@pytest.mark.parametrize("rows", [2, 3, 5])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", [*TEXT, *CAUSAL])
def test_outputs_of_several_passes_are_those_of_one_plain_pass(name, implementation, rows):
    if name in EAGER_ALONE and implementation == "sdpa":
        pytest.skip("this model has no SDPA attention")
    model, case = Read(model_of(name, implementation), "last"), batch("none")
    pool = torch.randn(8, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for removal in (AttentionMask(), Replacement(), Deletion(), Resampling(pool, draws=2)):
        expected = torch.zeros(1 + TOKENS, dtype=torch.float64)
        with torch.no_grad():
            for draw in range(removal.draws):
                parts = [removal.remove(case, row, draw) for row in without_each().split(1)]
                expected += torch.cat([part.run(model)[:, 0] for part in parts]) / removal.draws
        torch.testing.assert_close(outputs_of_passes(model, case, removal, rows), expected, **ROUND_OFF)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_vit(implementation):
    model = ARCHITECTURES["vit"].base_model.model(0, torch.float64, torch.device("cpu"))
    model.model.set_attn_implementation(implementation)
    case = ARCHITECTURES["vit"].base_model.case(0, torch.float64, torch.device("cpu"))
    each = torch.eye(case.shape[1]).bool()
    with torch.no_grad():
        for removal in (Replacement(), Replacement("zero")):
            rows = removal.remove(case.select(torch.zeros(len(each), dtype=torch.int64)), each)
            torch.testing.assert_close(run_deferred(model, rows), rows.run(model), **ROUND_OFF)


@pytest.mark.parametrize("name", [*TEXT, *CAUSAL])
def test_only_models_that_write_in_place_are_run_as_they_are(name):
    runner = RowRunner(Read(model_of(name, "eager"), "first"))
    with torch.no_grad():
        runner.outputs(rows_of(batch("none"), AttentionMask()))
    assert bool(runner.plain) == (name in WRITES_IN_PLACE), runner.plain


@pytest.mark.parametrize("removal", [AttentionMask(), Replacement()], ids=lambda removal: removal.name)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("read", ["last", "kept"])
@pytest.mark.parametrize(("name", "inner"), [("gpt2", 4 * WIDTH), ("llama", 24)])
def test_with_a_causal_mask_only_tokens_from_the_removed_one_on_are_computed(
    name, inner, read, implementation, removal
):
    """2 layers, 6 tokens, 7 rows, read at the last token.

    The last row, without token 5, has 6 tokens of its own; a row without token j < 5 has 6 − j; the row with all tokens
    has one, token 5: 6 + (6 + 5 + 4 + 3 + 2) + 1 = 27 of 42. The second layer is computed for the token that is read.
    """
    rows = rows_of(batch("none"), removal)
    with torch.no_grad(), CountedRows() as counted:
        run_deferred(Read(model_of(name, implementation), read), rows)
    feed_forward = counted.rows[WIDTH, inner]
    last_layer = [7, 7] if name == "llama" else [7]  # Llama's layer has two such maps, gate and up
    assert sorted(feed_forward, reverse=True) == [27] * len(last_layer) + last_layer


@pytest.mark.parametrize("removal", [AttentionMask(), Replacement()], ids=lambda removal: removal.name)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(("name", "inner"), [("gpt2", 4 * WIDTH), ("llama", 24), ("qwen2", 24)])
def test_the_unmodified_row_is_computed_once_for_all_passes(name, inner, implementation, removal):
    """2 layers, 6 tokens, 7 rows in passes of 3, read at the last token, which is all of the second layer.

    Without token 4, without 5, with all: 2 + 1 + 6 tokens. Without token 0: 6. Without 1, 2, 3: 5 + 4 + 3, where a pass
    that shares nothing with the others takes 5 + 4 + 6. Together 27, as in one pass.
    """
    with CountedRows() as counted:
        outputs_of_passes(Read(model_of(name, implementation), "last"), batch("none"), removal, 3)
    maps = 1 if name == "gpt2" else 2  # the other layers have two such maps, gate and up
    assert counted.rows[WIDTH, inner][::maps] == [9, 3, 6, 1, 12, 3]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_value_that_is_not_finite_reaches_every_token_that_it_reaches_in_the_plain_pass(name):
    """0 × NaN is NaN: where keys are hidden, their values still count if they are not finite."""
    case = batch("none")
    inputs = case.inputs.clone()
    inputs[0, 3, 1] = float("nan")
    rows = rows_of(replace(case, inputs=inputs), AttentionMask())
    for read in READOUTS:
        model = Read(model_of(name, "eager"), read)
        with torch.no_grad():
            torch.testing.assert_close(run_deferred(model, rows), rows.run(model), equal_nan=True, **ROUND_OFF)
