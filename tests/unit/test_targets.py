"""What people ask about as outputs: log-probabilities, contrasts, and the tokens of an answer."""

import pytest
import torch
from torch import nn

from faithcheck.models.pair import registered_pairs
from faithcheck.models.targets import (
    NO_ANSWER,
    AnswerTokens,
    Contrast,
    LogProbabilities,
    answer_positions,
    token_log_probabilities,
)

WHERE = (0, torch.float64, torch.device("cpu"))
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


class Logits(nn.Module):
    """The inputs as logits."""

    def forward(self, inputs):
        return inputs


def drawn(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_log_probabilities_are_those_of_torch():
    z = drawn(4, 5)
    torch.testing.assert_close(LogProbabilities(Logits())(z), z.log_softmax(1), **CLOSE)


def test_a_contrast_is_that_of_the_logits_and_of_the_log_probabilities():
    z = drawn(4, 5)
    contrast = Contrast(Logits(), 2)(z)
    torch.testing.assert_close(contrast, z - z[:, 2:3], **CLOSE)
    torch.testing.assert_close(contrast, Contrast(LogProbabilities(Logits()), 2)(z), **CLOSE)
    assert not contrast[:, 2].any()


def test_a_token_is_predicted_at_the_position_before_it_and_nothing_is_added_elsewhere():
    logits = drawn(2, 4, 6)
    answer = torch.tensor([[NO_ANSWER, NO_ANSWER, 5, 0], [NO_ANSWER, 3, NO_ANSWER, NO_ANSWER]])
    found = AnswerTokens(Logits())(logits, answer)
    said = logits.log_softmax(2)
    expected = torch.zeros_like(found)
    expected[0, 1], expected[0, 2], expected[1, 0] = said[0, 1, 5], said[0, 2, 0], said[1, 0, 3]
    torch.testing.assert_close(found, expected, **CLOSE)
    assert answer_positions(answer).tolist() == [1, 2, 3]


def test_log_probabilities_of_tokens_have_the_gradient_of_log_softmax():
    logits, ids = drawn(2, 3, 6).requires_grad_(), torch.tensor([[5, 0, 1], [3, NO_ANSWER, 2]])
    (found,) = torch.autograd.grad(token_log_probabilities(logits, ids).sum(), logits)
    kept = ids != NO_ANSWER
    picked = logits.log_softmax(2).gather(2, ids.clamp(min=0).unsqueeze(2)).squeeze(2)[kept].sum()
    torch.testing.assert_close(found, torch.autograd.grad(picked, logits)[0], **CLOSE)


@pytest.mark.parametrize(
    ("answer", "message"), [([[NO_ANSWER] * 3], "the answer is empty"), ([[4, NO_ANSWER, 2]], "begins at the first")]
)
def test_an_answer_without_a_token_or_without_a_prompt_is_refused(answer, message):
    with pytest.raises(ValueError, match=message):
        AnswerTokens(Logits())(drawn(1, 3, 6), torch.tensor(answer))


@pytest.mark.parametrize("name", ["answer.one_pass_gpt2", "answer.one_pass_llama"])
def test_a_later_token_changes_no_earlier_one(name):
    pair = registered_pairs()[name]
    model, case = pair.build(*WHERE)[0], pair.case(*WHERE)
    changed = case.inputs.clone()
    changed[:, -2:] = changed[:, -2:].flip(2)
    with torch.no_grad():
        before, after = case.run(model), model(changed, **case.forward_arguments)
    torch.testing.assert_close(before[:, :2], after[:, :2], **CLOSE)
    assert (before[:, 2] - after[:, 2]).abs().min() > 1e-6
