"""The script that trains a small decoder: where it reads the output, what it learns, the same weights twice."""

import pytest
import torch
from transformers import AutoTokenizer

from faithcheck.models.data.texts import load_texts
from faithcheck.models.pretrained import SENTIMENT
from faithcheck.models.pretrained.loading import load
from faithcheck.tests.helpers.sentiment_data import labelled, write_training_data
from faithcheck.tests.helpers.training import decoder

KINDS = pytest.mark.parametrize("kind", ["gpt2", "llama"])


@KINDS
def test_the_next_token_does_not_depend_on_padding(kind):
    tokenizer = AutoTokenizer.from_pretrained(SENTIMENT)
    torch.manual_seed(0)
    model = decoder.new_decoder(kind, tokenizer).eval()
    ids = tokenizer(["a film", "a long and moving film"])["input_ids"]
    with torch.no_grad():
        together = decoder.next_token(model, ids)
        alone = torch.stack([model(input_ids=torch.tensor([row])).logits[0, -1] for row in ids])
    torch.testing.assert_close(together, alone)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step:UserWarning")
def test_the_decoder_learns_to_predict_one_of_the_two_words_and_can_be_loaded(tmp_path, monkeypatch, capsys):
    """With 40 sentences and one step an epoch it learns the two words. Two runs give the same weights."""
    own = labelled(load_texts("own"))
    write_training_data(tmp_path / "data", own)
    monkeypatch.setattr(decoder, "EPOCHS", 8)
    for name in ("a", "b"):
        decoder.main(["llama", str(tmp_path / name), "--data", str(tmp_path / "data")])
    assert "epoch 8: loss " in capsys.readouterr().out
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b"))
    assert first == second

    text_model = load(tmp_path / "a")
    case = text_model.case(text_model.encode([text for text, _ in own[60:]]))
    words = AutoTokenizer.from_pretrained(tmp_path / "a").convert_tokens_to_ids(list(decoder.WORDS))
    assert set(case.target.tolist()) <= set(words)
