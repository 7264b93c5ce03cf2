"""The cost of one attribution in units of plain passes of the same model, measured in turn in one run.

Times are reported and never fail a test. They do not depend on weights, so a BERT of MiniLM-L6's shape
has random ones.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, BertConfig, BertForSequenceClassification, GPT2Config, LlamaConfig

from faithcheck.explainers import CPLRP, AttnLRP
from faithcheck.explainers.gates.mask_gate import MaskGate
from faithcheck.explainers.gates.readout_gate import ReadoutGate
from faithcheck.explainers.loo import outputs as passes
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.loo.outputs import outputs_without
from faithcheck.explainers.loo.removal import AttentionMask, Replacement
from faithcheck.explainers.protocol import input_gradient
from faithcheck.models.case import Case
from faithcheck.models.data.texts import load_texts
from faithcheck.models.pretrained.loading import load
from faithcheck.tests.helpers.timing import in_turn, interval

pytestmark = pytest.mark.bench

COLUMNS = ["what", "in units of", "tokens", "median ratio", "its 95 % interval", "turns", "median of the unit, ms"]


def row(what, unit, tokens, times, unit_times):
    return [what, unit, tokens, *interval(times / unit_times).cells, len(times), f"{np.median(unit_times):.1f}"]


class Classifier(torch.nn.Module):
    """The unmodified model, called on embeddings."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs, attention_mask):
        return self.model(inputs_embeds=inputs, attention_mask=attention_mask).logits


@pytest.fixture(scope="module")
def minilm(settings):
    """A BERT of MiniLM-L6's shape."""
    torch.manual_seed(settings.seed)
    size = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    model = BertForSequenceClassification(BertConfig(**size)).eval().to(settings.device)
    model.set_attn_implementation("eager")
    return model


def sentence(model, tokens, settings):
    """Random token ids ``(1, tokens)`` and the case of their embeddings."""
    generator = torch.Generator().manual_seed(settings.seed)
    ids = torch.randint(model.config.vocab_size, (1, tokens), generator=generator).to(settings.device)
    inputs = model.get_input_embeddings()(ids).detach()
    target = torch.zeros(1, dtype=torch.int64, device=settings.device)
    return ids, Case(
        inputs, target, torch.zeros_like(inputs), forward_arguments={"attention_mask": torch.ones_like(ids)}
    )


def test_one_attribution_against_forward_and_backward(minilm, settings, table):
    explainers = {"AttnLRP": AttnLRP(), "AttnLRP, ε = 1e-6": AttnLRP(1e-6), "CP-LRP": CPLRP()}
    explainers |= {"Mask gate": MaskGate(), "Readout gate": ReadoutGate()}
    model, rows = Classifier(minilm), []
    for tokens, turns in ((16, 200), (128, 120), (512, 40)):  # on a busy machine, for an interval of about 2 %
        _, case = sentence(minilm, tokens, settings)
        plain = [lambda case=case: input_gradient(model, case)]
        runs = [lambda case=case, explainer=e: explainer.attribute(model, case) for e in explainers.values()]
        times = in_turn(plain + runs, settings.device, turns)
        rows += [
            row(name, "forward + backward", tokens, times[:, 1 + i], times[:, 0]) for i, name in enumerate(explainers)
        ]
    keep(table, "Cost of one attribution", "Batch 1, gradient at the word embeddings alone.", rows)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_loo_against_a_plain_pass_of_its_rows_and_captum(minilm, implementation, settings, table):
    """How many times as long as LOO other ways to the same numbers take."""
    minilm.set_attn_implementation(implementation)
    model, loo, rows = Classifier(minilm), LeaveOneOut(AttentionMask()), []
    for tokens, turns in ((16, 40), (64, 12), (128, 8)):
        ids, case = sentence(minilm, tokens, settings)
        others = {"plain pass of n + 1 rows": plain_pass(minilm, ids), **captum_ablations(minilm, ids)}
        times = in_turn([lambda case=case: loo.attribute(model, case), *others.values()], settings.device, turns)
        expected = loo.attribute(model, case)
        for run in others.values():
            torch.testing.assert_close(run(), expected, rtol=0, atol=1e-5)
        medians = np.median(times, 0)
        captum = 2 + int(medians[2:].argmin()) if len(others) > 1 else None
        rows += [
            row(list(others)[i - 1], "LOO", tokens, times[:, i], times[:, 0]) for i in (1, captum) if i is not None
        ]
    minilm.set_attn_implementation("eager")
    note = f"One sentence, {implementation} attention; LOO by attention mask, at most {loo.max_tokens} tokens a pass. "
    best = "captum's FeatureAblation at the fastest of its perturbations_per_eval."
    keep(
        table,
        f"Cost of Leave-One-Out, {implementation}",
        note + (best if captum else "captum is not installed: not measured."),
        rows,
    )


def plain_pass(model, ids):
    """Leave-One-Out ``(1, tokens)`` by one forward pass of n + 1 rows."""
    tokens = ids.shape[1]
    mask = torch.cat([torch.ones(1, tokens), 1 - torch.eye(tokens)]).long().to(ids.device)

    @torch.no_grad()
    def run():
        logits = model(input_ids=ids.expand(len(mask), -1), attention_mask=mask).logits[:, :1]
        return (logits[:1] - logits[1:]).T

    return run


def captum_ablations(model, ids):
    """The same by captum's FeatureAblation of the attention mask, by setting; empty if captum is not installed."""
    try:
        from captum.attr import FeatureAblation
    except ImportError:
        return {}

    def forward(mask, ids):
        return model(input_ids=ids, attention_mask=mask.long()).logits

    ablation, mask, tokens = FeatureAblation(forward), torch.ones(ids.shape, device=ids.device), ids.shape[1]

    def at(rows):
        @torch.no_grad()
        def run():
            return ablation.attribute(mask, 0, 0, ids, perturbations_per_eval=rows)

        return run

    settings = sorted({min(rows, tokens) for rows in (1, 8, 16, 32, 64, tokens)})
    return {f"captum's FeatureAblation, {rows} rows a pass": at(rows) for rows in settings}


DECODER_SIZES = {
    "GPT-2": (GPT2Config, {"n_embd": 384, "n_layer": 6, "n_head": 12, "bos_token_id": 1, "eos_token_id": 2}),
    "Llama": (LlamaConfig, {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
                            "num_key_value_heads": 4, "intermediate_size": 1024}),
}  # fmt: skip


class LastLogits(torch.nn.Module):
    """An unmodified decoder on embeddings, read at its last token."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs, attention_mask):
        return self.model(inputs_embeds=inputs, attention_mask=attention_mask, logits_to_keep=1).logits[:, -1]


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", DECODER_SIZES)
def test_loo_of_a_decoder_against_plain_passes_of_the_same_rows(name, implementation, settings, table):
    """Of the 57 passes of 9 rows that a text of 512 tokens takes, 3 are measured, as far apart as they can be."""
    config, size = DECODER_SIZES[name]
    torch.manual_seed(settings.seed)
    decoder = AutoModelForCausalLM.from_config(config(**size, vocab_size=30522), attn_implementation=implementation)
    model, tokens, together, rows = LastLogits(decoder.eval().to(settings.device)), 512, 9, []
    _, case = sentence(decoder, tokens, settings)
    starts = torch.linspace(0, tokens - together, 3).long()
    feature = (starts.unsqueeze(1) + torch.arange(together)).flatten().to(settings.device)
    without = torch.nn.functional.one_hot(feature, tokens).bool()
    for removal in (AttentionMask(), Replacement()):
        passes = [
            removal.remove(case.select(case.target.new_zeros(together)), part) for part in without.split(together)
        ]
        outputs = {}

        @torch.no_grad()
        def plain(passes=passes, outputs=outputs):
            outputs["plain"] = torch.cat([part.run(model)[:, 0] for part in passes])

        def shared(removal=removal, outputs=outputs):
            outputs["shared"] = outputs_without(model, case, feature * 0, without, removal, together * tokens)

        times = in_turn([shared, plain], settings.device, 2)
        torch.testing.assert_close(outputs["shared"], outputs["plain"], rtol=0, atol=1e-5)
        rows.append(row(f"plain passes, {removal.description}", "rows that share", tokens, times[:, 1], times[:, 0]))
    keep(table, f"Leave-One-Out on {name}, {implementation}", "27 of 513 rows, 9 a pass; outputs equal to 1e-5.", rows)


def test_loo_of_texts_of_several_lengths(minilm, settings, table, monkeypatch):
    """How many times as long other ways take: without leaving padding out, without any padding, and text by text."""
    model, loo = Classifier(minilm), LeaveOneOut(AttentionMask())
    lengths = [len(example) for example in load(device=settings.device).encode(load_texts("own", 16).texts)]
    _, longest = sentence(minilm, max(lengths), settings)
    several = longest.select(torch.zeros(len(lengths), dtype=torch.int64, device=settings.device))
    mask = torch.arange(max(lengths), device=settings.device) < torch.tensor(lengths, device=settings.device)[:, None]
    case = replace(several, forward_arguments={"attention_mask": mask.long()})
    alone = [case.select(case.target.new_tensor([i])).first_features(length) for i, length in enumerate(lengths)]

    def padded():
        with monkeypatch.context() as patch:
            patch.setattr(passes, "features_before_padding", lambda case: torch.full_like(case.target, max(lengths)))
            return loo.attribute(model, case)

    def without_padding():
        with monkeypatch.context() as patch:
            patch.setattr(passes, "MOST_PADDING", 0)
            return loo.attribute(model, case)

    def one_by_one():
        return torch.nn.utils.rnn.pad_sequence([loo.attribute(model, one)[0] for one in alone], batch_first=True)

    others = {"all padded to one length": padded, "a pass for each length": without_padding, "text by text": one_by_one}
    for other in others.values():
        torch.testing.assert_close(other(), loo.attribute(model, case), rtol=0, atol=1e-5)
    times = in_turn([lambda: loo.attribute(model, case), *others.values()], settings.device, 12)
    tokens = sum(n * (n + 1) for n in lengths)
    rows = [row(name, "LOO", tokens, times[:, i], times[:, 0]) for i, name in enumerate(others, start=1)]
    note = f"16 texts of {min(lengths)} to {max(lengths)} tokens; tokens counts those of all rows, without padding."
    keep(table, "Leave-One-Out of texts of several lengths", note, rows)


def keep(table, title, note, rows):
    note += f" Measured in turn, {torch.get_num_threads()} threads; times are reported and never fail a test."
    table({"title": title, "note": note, "columns": COLUMNS, "rows": rows})
