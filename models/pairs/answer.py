"""The tokens of an answer: all in one pass, as teacher forcing has it, and one after the other, as they are generated.

A decoder's causal mask hides what comes later, so the logits after a token are the same with later tokens and without.
The outputs are log p(token | all before it) of each token of the answer. On these models the axiom additivity is
measured too: the outputs are read at different positions, and their sum is the log-likelihood of the answer.
"""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from faithcheck.models.architectures import gpt2, llama
from faithcheck.models.architectures.architecture import EXAMPLES, TOKENS, random_features, random_weights
from faithcheck.models.architectures.embedding_model import KeepFloat64
from faithcheck.models.case import Case
from faithcheck.models.expectation import expect, expect_lrp
from faithcheck.models.networks.derived import Derived
from faithcheck.models.pair import BuildModel, invariance_pair
from faithcheck.models.targets import NO_ANSWER, AnswerTokens, answer_positions, token_log_probabilities

ANSWER, VOCABULARY = 3, 16
LINEAR = "loo gradient_x_input integrated_gradients attnlrp cplrp"


class AllLogits(Derived):
    """A decoder's logits after each token: embeddings ``(batch, tokens, width)`` to ``(batch, tokens, vocabulary)``."""

    def forward(self, inputs: Tensor, attention_mask: Tensor) -> Tensor:
        with KeepFloat64():
            return self.model(inputs_embeds=inputs, attention_mask=attention_mask).logits


class OneAfterTheOther(AnswerTokens):
    """Each token of the answer by a pass over the tokens before it."""

    def forward(self, inputs: Tensor, answer: Tensor, **forward_arguments: Tensor) -> Tensor:
        mask, columns = forward_arguments["attention_mask"], []
        for position in answer_positions(answer).tolist():
            logits = self.model(inputs[:, :position], attention_mask=mask[:, :position])[:, -1:]
            columns.append(token_log_probabilities(logits, answer[:, position : position + 1]))
        return torch.cat(columns, 1)


def answers(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
    """Three prompts of three random tokens with answers of three; the explained token is another one in each."""
    case = random_features()(seed, dtype, device)
    answer = torch.full((EXAMPLES, TOKENS), NO_ANSWER, device=device)
    drawn = torch.randint(VOCABULARY, (EXAMPLES, ANSWER), generator=torch.Generator().manual_seed(seed))
    answer[:, -ANSWER:] = drawn.to(device)
    arguments = {"attention_mask": torch.ones_like(answer), "answer": answer}
    return replace(case, target=torch.arange(EXAMPLES, device=device) % ANSWER, forward_arguments=arguments)


def build(base: BuildModel, seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    logits = AllLogits(base(seed, dtype, device).get_submodule("model"))
    return AnswerTokens(logits).eval(), OneAfterTheOther(logits).eval()


for name, make in {"gpt2": gpt2.gpt2, "llama": llama.llama}.items():
    invariance_pair(
        f"answer.one_pass_{name}",
        partial(build, random_weights(make)),
        answers,
        expect_lrp("each row has the same operations on the same values in both"),
        expect("additivity antisymmetry", LINEAR, "values and (modified) gradients are linear in the function"),
        why="a causal mask hides what comes later: a row is the same with later tokens and without",
    )
