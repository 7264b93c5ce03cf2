"""What people ask about, as the output of a model: log-probabilities, contrasts of two outputs, answers of many tokens.

Each is a module around a model that is called like it and gives ``(batch, outputs)``, so that every explainer and every
axiom takes it as it takes the model; `Case.target` chooses the output. A logit is an output of the model itself.

An answer is a text that follows a prompt. The tokens of both are the features, and ``answer`` ``(batch, features)``
int64 is an argument of the forward pass: the token's id where a token belongs to the answer, `NO_ANSWER` elsewhere. An
id stands at its own token, as ``labels`` of `transformers` do, and is predicted at the token before it.
"""

import torch
from torch import Tensor, nn

from faithcheck.models.case import NO_ANSWER as NO_ANSWER
from faithcheck.models.networks.derived import Derived


class LogProbabilities(Derived):
    """log softmax of the model's outputs, as z − log Σ exp z: ``(batch, outputs)``."""

    def forward(self, inputs: Tensor, **forward_arguments: Tensor) -> Tensor:
        """The log-probability of each output."""
        outputs: Tensor = self.model(inputs, **forward_arguments)
        return outputs - outputs.logsumexp(1, keepdim=True)


class Contrast(Derived):
    """f_k − f_c for every output k: why k, and not c (``against``)? Yin & Neubig 2022, arXiv 2202.10419.

    It is the difference of the log-probabilities of k and c, too.
    """

    def __init__(self, model: nn.Module, against: int) -> None:
        super().__init__(model)
        self.against = against

    def forward(self, inputs: Tensor, **forward_arguments: Tensor) -> Tensor:
        """Each output minus the one that it is contrasted with."""
        return contrasted(self.model(inputs, **forward_arguments), self.against)


class AnswerTokens(Derived):
    """log p(token | all tokens before it) of each token of an answer; their sum is the answer's log-likelihood.

    The model maps embeddings ``(batch, features, width)`` to the logits of the next token after each of them,
    ``(batch, features, vocabulary)``. The result is ``(batch, tokens)``, with a column for each position at which an
    example of the batch has a token of its answer, and 0 where another example has none there.
    """

    def forward(self, inputs: Tensor, answer: Tensor, **forward_arguments: Tensor) -> Tensor:
        """The log-probabilities."""
        positions = answer_positions(answer)
        logits: Tensor = self.model(inputs, **forward_arguments)
        return token_log_probabilities(logits[:, positions - 1], answer[:, positions])


def contrasted(outputs: Tensor, against: int) -> Tensor:
    """Each output ``(batch, outputs)`` minus the one of this index."""
    return outputs - outputs[:, against : against + 1]


def answer_positions(answer: Tensor) -> Tensor:
    """The positions at which an example has a token of its answer, ``(tokens,)``, in order.

    `ValueError` if there is none, or the first token is one: nothing before it predicts it.
    """
    positions = (answer != NO_ANSWER).any(0).nonzero()[:, 0]
    if not len(positions) or int(positions[0]) == 0:
        where = "begins at the first token" if len(positions) else "is empty"
        raise ValueError(f"the answer {where}: an answer has at least one token, after at least one of a prompt")
    return positions


def token_log_probabilities(logits: Tensor, ids: Tensor) -> Tensor:
    """log p of each id by the logits before it, ``(batch, tokens)``; 0 where the id is `NO_ANSWER`."""
    chosen = logits.gather(2, ids.clamp(min=0).unsqueeze(2)).squeeze(2)
    return torch.where(ids == NO_ANSWER, 0.0, chosen - logits.logsumexp(2))


class ExplainedOutput(nn.Module):
    """A loaded model whose explained output can be chosen. What is chosen is a part of the model's fingerprint."""

    target: int | None = None  # None: the most likely output of each example
    against: int | None = None  # the output that is subtracted from every other one

    def explained(self, outputs: Tensor) -> Tensor:
        """What `forward` returns of the model's outputs, both ``(batch, outputs)``."""
        return outputs if self.against is None else contrasted(outputs, self.against)

    def targets(self, outputs: Tensor) -> Tensor:
        """The explained output of each example, ``(batch,)`` int64, from what `forward` returned."""
        most_likely = outputs.argmax(1)
        return most_likely if self.target is None else torch.full_like(most_likely, self.target)

    def extra_repr(self) -> str:
        """What was chosen; the fingerprint of a model has its ``repr``."""
        chosen = {"target": self.target, "against": self.against}
        return ", ".join(f"{name}={number}" for name, number in chosen.items() if number is not None)
