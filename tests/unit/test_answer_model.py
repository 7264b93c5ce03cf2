"""The log-likelihood of an answer: against the cross-entropy, token by token, and without a token."""

from dataclasses import replace

import pytest
import torch

from faithcheck.alignment.run_key import fingerprint
from faithcheck.explainers import builtin_explainers
from faithcheck.explainers.loo.removal import Deletion
from faithcheck.models.pretrained.answer_model import AnswerModel
from faithcheck.models.pretrained.folder import ModelError
from faithcheck.models.targets import NO_ANSWER
from faithcheck.tests.helpers import small_models

TEXTS = ["the quick brown fox", "a lazy dog"]
ANSWER = (8, 9, 14)
LINEAR = "loo gradient_x_input integrated_gradients attnlrp cplrp blockwise_lrp mask_gate".split()


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def decoder(request, tmp_path_factory):
    return small_models.load_widest(small_models.save(request.param, tmp_path_factory.mktemp(request.param)))


def answering(decoder, answer=ANSWER):
    return AnswerModel(decoder.model, decoder.tokenizer, answer).eval()


def close_in(tensor):
    exact = tensor.dtype == torch.float64
    return {"rtol": 1e-9 if exact else 1e-3, "atol": 1e-10 if exact else 1e-4}


@torch.no_grad()
def by_cross_entropy(decoder, ids, answer):
    """Minus the cross-entropy of the answer's tokens, the loss of training with the prompt left out."""
    logits = decoder.model(input_ids=torch.tensor([ids])).logits[0]
    of_answer = logits[-len(answer) - 1 : -1]
    return -torch.nn.functional.cross_entropy(of_answer, torch.tensor(answer), reduction="sum")


def test_it_is_the_cross_entropy_in_a_batch_of_unequal_lengths(decoder):
    model = answering(decoder)
    case = model.case(model.encode(TEXTS))
    with torch.no_grad():
        found = case.run(model)
    assert found.shape == (2, 1)
    ids = [[*decoder.tokenizer(text)["input_ids"], *ANSWER] for text in TEXTS]
    expected = torch.stack([by_cross_entropy(decoder, row, ANSWER) for row in ids])
    torch.testing.assert_close(found[:, 0], expected, **close_in(found))
    assert case.forward_arguments["answer"][1].tolist() == [NO_ANSWER] * 3 + [*ANSWER] + [NO_ANSWER]
    assert case.segments["word"].tolist() == [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, -1]]
    assert case.non_special.sum(1).tolist() == [3, 2], "the last token of the text and the answer are special"


@pytest.mark.filterwarnings("ignore:Integrated Gradients with")  # its quadrature is linear in the output too
@pytest.mark.parametrize("name", LINEAR)
def test_the_map_of_an_answer_is_the_sum_of_the_maps_of_its_tokens(decoder, name):
    model, explainer = answering(decoder), builtin_explainers()[name]
    case = model.case(model.encode(TEXTS))
    whole = explainer.attribute(model, case)
    answer = case.forward_arguments["answer"]
    parts = torch.zeros_like(whole)
    for token in ANSWER:
        alone = {**case.forward_arguments, "answer": torch.where(answer == token, answer, NO_ANSWER)}
        parts += explainer.attribute(model, replace(case, forward_arguments=alone))
    torch.testing.assert_close(whole, parts, **close_in(whole))
    assert float(whole[0].abs().max()) > 0.01
    assert not whole[0, -1], "the last token of the answer is read by nothing"


def test_a_deleted_token_of_the_text_is_as_if_it_had_never_been_there(decoder):
    model = answering(decoder)
    case = model.case(model.encode(TEXTS[:1]))
    removed = torch.zeros(case.shape, dtype=torch.bool)
    removed[0, 1] = True
    with torch.no_grad():
        found = Deletion().remove(case, removed).run(model)[0, 0]
    ids = decoder.tokenizer("the brown fox")["input_ids"]
    torch.testing.assert_close(found, by_cross_entropy(decoder, [*ids, *ANSWER], ANSWER), **close_in(found))


def test_a_deleted_token_of_the_answer_does_not_count(decoder):
    model = answering(decoder)
    case = model.case(model.encode(TEXTS[:1])).select(torch.tensor([0, 0]))
    removed = torch.zeros(case.shape, dtype=torch.bool)
    removed[0, -1] = True  # of the other row nothing is removed, so that both have a column for it
    with torch.no_grad():
        found = Deletion().remove(case, removed).run(model)[0, 0]
    ids = decoder.tokenizer(TEXTS[0])["input_ids"]
    expected = by_cross_entropy(decoder, [*ids, *ANSWER[:-1]], ANSWER[:-1])
    torch.testing.assert_close(found, expected, **close_in(found))


def test_another_answer_has_another_fingerprint(decoder):
    assert len({fingerprint(model) for model in (decoder, answering(decoder), answering(decoder, (8, 9, 13)))}) == 3


def test_an_empty_answer_is_refused_and_an_empty_text_stays_empty(decoder):
    with pytest.raises(ModelError, match="the answer is empty"):
        answering(decoder, ())
    assert [len(example) for example in answering(decoder).encode(["", "fox"])] == [0, 4]


def test_attention_rollout_refuses_an_answer(decoder):
    model = answering(decoder)
    with pytest.raises(Exception, match="each has its own row"):
        builtin_explainers()["attention_rollout"].attribute(model, model.case(model.encode(TEXTS)))
