"""The cost of one attribution in units of plain passes of the same model, measured in turn in one run.

Times are reported and never fail a test. They do not depend on weights, so a BERT of MiniLM-L6's shape
has random ones.
"""

from itertools import chain

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from faithcheck.axioms.alignment.defaults import MAX_TOKENS
from faithcheck.axioms.alignment.evaluate import batches
from faithcheck.explainers import CPLRP, AttnLRP
from faithcheck.explainers.gates.mask_gate import MaskGate
from faithcheck.explainers.gates.readout_gate import ReadoutGate
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.loo.removal import AttentionMask
from faithcheck.explainers.lrp.softmax_bypass import (
    attnlrp_with_bypassed_softmax,
    attributions_with_bypassed_softmax,
    figure_2_sets,
)
from faithcheck.explainers.protocol import input_gradient
from faithcheck.models.case import Case
from faithcheck.models.data.texts import load_texts
from faithcheck.models.pretrained.loading import load
from faithcheck.tests.helpers.timing import in_turn

pytestmark = pytest.mark.bench

COLUMNS = ["what", "in units of", "tokens", "median ratio", "quartiles", "turns", "median of the unit, ms"]


def row(what, unit, tokens, times, unit_times):
    low, median, high = np.quantile(times / unit_times, (0.25, 0.5, 0.75))
    milliseconds = f"{np.median(unit_times):.1f}"
    return [what, unit, tokens, f"{median:.3f}", f"{low:.3f} – {high:.3f}", len(times), milliseconds]


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
    for tokens, turns in ((16, 40), (128, 30), (512, 12)):
        _, case = sentence(minilm, tokens, settings)
        plain = [lambda case=case: input_gradient(model, case)]
        runs = [lambda case=case, explainer=e: explainer.attribute(model, case) for e in explainers.values()]
        times = in_turn(plain + runs, settings.device, turns)
        rows += [
            row(name, "forward + backward", tokens, times[:, 1 + i], times[:, 0]) for i, name in enumerate(explainers)
        ]
    keep(table, "Cost of one attribution", "Batch 1, gradient at the word embeddings alone.", rows)


def test_loo_against_a_plain_forward_pass_of_its_rows(minilm, settings, table):
    model, loo, rows = Classifier(minilm), LeaveOneOut(AttentionMask()), []
    for tokens, turns in ((16, 60), (32, 40), (64, 20), (128, 8)):
        ids, case = sentence(minilm, tokens, settings)
        mask = torch.cat([torch.ones(1, tokens), 1 - torch.eye(tokens)]).long().to(settings.device)

        @torch.no_grad()
        def plain(ids=ids, mask=mask):
            return minilm(input_ids=ids.expand(len(mask), -1), attention_mask=mask).logits[:, 0]

        times = in_turn([plain, lambda case=case: loo.attribute(model, case)], settings.device, turns)
        expected = plain()
        torch.testing.assert_close(loo.attribute(model, case)[0], expected[0] - expected[1:], rtol=0, atol=1e-5)
        rows.append(row("LOO, attention mask", "forward of n + 1 rows", tokens, times[:, 1], times[:, 0]))
    keep(
        table,
        "Cost of Leave-One-Out",
        f"One sentence; the plain pass has all rows at once, LOO at most {loo.max_tokens} tokens a pass.",
        rows,
    )


def test_the_ablation_against_its_configurations_one_by_one(settings, table):
    model = load(device=settings.device)
    depth = model.model.config.num_hidden_layers
    sets = list(chain(*figure_2_sets(depth).values()))
    examples = model.encode(load_texts("own", 64).texts)
    rows = []
    for how, plan in (("the batches of `faithcheck align`", batches(examples, MAX_TOKENS)), ("one batch", None)):
        cases = [model.case([examples[i] for i in batch]) for batch in plan or [range(len(examples))]]

        def together(cases=cases):
            return [attributions_with_bypassed_softmax(model, case, sets) for case in cases]

        def one_by_one(cases=cases):
            return [
                torch.stack([attnlrp_with_bypassed_softmax(layers).attribute(model, case) for layers in sets])
                for case in cases
            ]

        times = in_turn([together, one_by_one], settings.device, 3)
        for a, b in zip(together(), one_by_one(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
        what = f"{len(sets)} configurations one by one, {how}"
        rows.append(row(what, "all at once", sum(case.shape.numel() for case in cases), times[:, 1], times[:, 0]))
    keep(table, "Cost of the layer-wise ablation", f"{len(examples)} sentences, maps equal to 1e-5.", rows)


def keep(table, title, note, rows):
    note += f" Measured in turn, {torch.get_num_threads()} threads; times are reported and never fail a test."
    table({"title": title, "note": note, "columns": COLUMNS, "rows": rows})
