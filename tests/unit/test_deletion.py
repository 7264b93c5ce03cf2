"""Deletion gives what the tokenizer's own encoding of the shorter text gives, whatever the model is told beside it."""

from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import BloomConfig, BloomForCausalLM, OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

from faithcheck.explainers import LeaveOneOut, Unsupported
from faithcheck.explainers.loo.removal import Deletion
from faithcheck.models.case import Case

WORDS = "[PAD] [CLS] [SEP] a film was good bad".split()
WIDTH = 8


def tokenizer(side):
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="[PAD]",
        padding_side=side,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


class PositionReader(nn.Module):
    """Attention over embeddings, positions and token types, read at the last column or at an index; ids make a case."""

    def __init__(self, first_position=0):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.positions, self.types = (nn.Embedding(n, WIDTH) for n in (len(WORDS), 20, 2))
        self.map, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        self.first_position = first_position

    def forward(self, x, attention_mask, position_ids, token_type_ids, read_index=None):
        x = torch.tanh(self.map(x + self.positions(position_ids) + self.types(token_type_ids)))
        states = torch.softmax((x @ x.mT).masked_fill(attention_mask[:, None] == 0, -1e9), -1) @ x
        return self.head(states[:, -1] if read_index is None else states[torch.arange(len(x)), read_index])

    def case(self, encoded, by_index):
        ids, mask = torch.tensor(encoded["input_ids"]), torch.tensor(encoded["attention_mask"])
        x = self.tokens(ids).detach()
        arguments = {
            "attention_mask": mask,
            "position_ids": (mask.cumsum(1) - 1).clamp(min=0) + self.first_position,
            "token_type_ids": torch.tensor(encoded["token_type_ids"]),
        }
        if by_index:  # read at the last token that is not padding
            arguments["read_index"] = (torch.arange(ids.shape[1]) * mask).amax(1)
        return Case(x, torch.zeros(len(ids), dtype=torch.int64), torch.zeros_like(x), forward_arguments=arguments)


PAIRS = [("a film", "good"), ("a film was good", "bad"), ("film", "was bad")]


def without(pair, i):
    """The pair without its word number i, counted through both texts."""
    texts = [text.split() for text in pair]
    which = int(i >= len(texts[0]))
    del texts[which][i - which * len(texts[0])]
    return tuple(" ".join(words) for words in texts)


@pytest.mark.parametrize(("side", "by_index"), [("left", False), ("left", True), ("right", True)])
@pytest.mark.parametrize("first_position", [0, 2])
@torch.no_grad()
def test_deletion_is_the_encoding_of_the_shorter_pair_of_texts(side, by_index, first_position):
    model, encode = PositionReader(first_position).double(), tokenizer(side)
    case = model.case(encode(PAIRS, padding=True), by_index)
    case = replace(case, inputs=case.inputs.double(), baseline=case.baseline.double())
    found = LeaveOneOut(Deletion()).attribute(model, case)
    for row, pair in enumerate(PAIRS):
        full = case.forward_arguments["attention_mask"][row] != 0
        columns = full.nonzero()[:, 0]
        words = [len(text.split()) for text in pair]
        places = [*range(1, 1 + words[0]), *range(2 + words[0], 2 + sum(words))]
        for i, place in enumerate(places):
            outputs = []
            for texts in (pair, without(pair, i)):
                alone = model.case(encode([texts]), by_index)
                outputs.append(alone.run(model)[0, 0])
            torch.testing.assert_close(found[row, columns[place]], outputs[0] - outputs[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["bloom", "opt"])
@torch.no_grad()
def test_positions_that_a_model_counts_by_the_mask_are_those_of_the_shorter_text(kind):
    """BLOOM makes ALiBi distances of the mask, OPT its positions; padding on the left, read at the last column."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 8, "hidden_size": 8, "num_attention_heads": 2}
    config = (
        BloomConfig(n_layer=2, **sizes)
        if kind == "bloom"
        else OPTConfig(num_hidden_layers=2, ffn_dim=16, word_embed_proj_dim=8, max_position_embeddings=16, **sizes)
    )
    decoder = (BloomForCausalLM if kind == "bloom" else OPTForCausalLM)(config).double().eval()

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.decoder = decoder

        def forward(self, x, attention_mask):
            return self.decoder(inputs_embeds=x, attention_mask=attention_mask, use_cache=False).logits[:, -1]

    x = torch.randn(2, 6, 8, dtype=torch.float64)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    case = Case(x, torch.tensor([1, 2]), torch.zeros_like(x), forward_arguments={"attention_mask": mask})
    model, found = Last().eval(), LeaveOneOut(Deletion()).attribute(Last().eval(), case)
    for row, first in enumerate((2, 0)):
        for i in range(first, 6):
            kept = [j for j in range(first, 6) if j != i]
            full, shorter = (x[row : row + 1, columns] for columns in (list(range(first, 6)), kept))
            outputs = [
                model(y, torch.ones(y.shape[:2], dtype=torch.int64))[0, case.target[row]] for y in (full, shorter)
            ]
            torch.testing.assert_close(found[row, i], outputs[0] - outputs[1], rtol=0, atol=1e-12)


def bare(**arguments):
    x = torch.randn(1, 4, WIDTH)
    mask = torch.ones(1, 4, dtype=torch.int64)
    return Case(x, torch.tensor([0]), torch.zeros_like(x), forward_arguments={"attention_mask": mask, **arguments})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"alibi": torch.zeros(1, 2, 4, 4)}, r"'alibi'\] \(1, 2, 4, 4\) has an axis of features"),
        ({"bias": torch.zeros(1, 4, 4)}, r"'bias'\] .* has an axis of features"),
        ({"position_ids": torch.tensor([[0, 1, 0, 1]])}, r"'position_ids'\] does not count .* by equal steps"),
        ({"mask_position": torch.tensor([2])}, "the feature that the output is read at is removed"),
    ],
)
def test_what_cannot_be_counted_again_is_refused(arguments, words):
    removed = torch.tensor([[False, False, True, False]])
    with pytest.raises(Unsupported, match=f"removal by deletion: .*{words}.*remove by"):
        Deletion().remove(bare(**arguments), removed)


def test_an_index_follows_its_feature():
    case = bare(mask_position=torch.tensor([2]), position_ids=torch.tensor([[3, 5, 7, 9]]))
    left = Deletion().remove(case, torch.tensor([[False, True, False, False]]))
    assert left.forward_arguments["mask_position"].tolist() == [1]
    assert left.forward_arguments["position_ids"].tolist() == [[3, 5, 7]]
    last = Deletion().remove(bare(last=torch.tensor([-1])), torch.tensor([[False, False, False, True]]))
    assert last.forward_arguments["last"].tolist() == [2]
