"""Decoders: the log-likelihood of an answer after a text is explained, and answers are generated."""

from collections.abc import Sequence
from dataclasses import replace
from inspect import signature

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from faithcheck.models.pretrained.chat import ANSWER
from faithcheck.models.pretrained.example import Example
from faithcheck.models.pretrained.folder import ModelError
from faithcheck.models.pretrained.text_model import Given, NextTokenModel
from faithcheck.models.pretrained.token_texts import decoded, token_texts
from faithcheck.models.targets import NO_ANSWER, answer_positions, token_log_probabilities

LONGEST_ANSWER = 20
"""The most tokens that are generated."""


class AnswerModel(NextTokenModel):
    """A decoder: embeddings of a prompt and an answer to the answer's log-likelihood, ``(batch, 1)``.

    The tokens of the answer are features as well, since its later tokens depend on them. They are special: they stay
    along a perturbation curve, as the last token of the text does.

    ``answer`` has the ids of the answer to every text; if it is None, each text has its own, which the model generates
    (see `answered`): then `encode` gives prompts alone, cut so that `LONGEST_ANSWER` tokens, or half of ``max_length``,
    are left. `ModelError` if the answer is empty, or leaves no place for a text within ``max_length``.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        answer: tuple[int, ...] | None,
        max_length: int | None = None,
        by_ids: bool = False,
    ) -> None:
        super().__init__(model, tokenizer, max_length, by_ids)
        self.answer = answer
        if answer == ():
            raise ModelError("the answer is empty: give one of at least one token")
        self.max_length_with_answer = self.max_length
        places = min(LONGEST_ANSWER, self.max_length // 2) if answer is None else len(answer)
        # What is left for a text: the length at which it is cut.
        self.max_length -= places
        if self.max_length < tokenizer.num_special_tokens_to_add() + 1:
            raise ModelError(
                f"the answer has {places} tokens, and {type(model).__name__} takes {self.max_length_with_answer} with "
                "the text: give a shorter answer"
            )

    def _example(self, item: Given) -> Example:
        prompt = super()._example(item)
        return with_tokens(self, prompt, self.answer) if self.answer and len(prompt) else prompt

    def answers(self, prompts: Sequence[Example]) -> list[tuple[int, ...]]:
        """The answers that the model gives to prompts, see `generated`."""
        decoder = NextTokenModel(self.model, self.tokenizer, self.max_length_with_answer, self.by_ids)
        return generated(decoder.eval(), prompts)

    def forward(
        self, inputs: Tensor, attention_mask: Tensor, answer: Tensor, input_ids: Tensor | None = None
    ) -> Tensor:
        """The sum of log p of the tokens of ``answer`` ``(batch, tokens)``, see `faithcheck.models.targets`."""
        positions = answer_positions(answer)
        read = positions - 1
        keep = {"logits_to_keep": read} if "logits_to_keep" in signature(self.model.forward).parameters else {}
        logits = self.outputs(inputs, input_ids, attention_mask=attention_mask, use_cache=False, **keep)
        of_tokens = token_log_probabilities(logits if keep else logits[:, read], answer[:, positions])
        return of_tokens.sum(1, keepdim=True)

    def forward_arguments(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """The attention mask, and the ids of each example's answer at its last tokens."""
        arguments = super().forward_arguments(examples)
        del arguments["last"]
        answers = torch.full_like(arguments["attention_mask"], NO_ANSWER)
        for row, example in zip(answers, examples, strict=True):
            ids = torch.tensor(example.answer or (), dtype=row.dtype, device=row.device)
            row[len(example) - len(ids) : len(example)] = ids
        return {**arguments, "answer": answers}

    def extra_repr(self) -> str:
        """The answer: the fingerprint of a model has its ``repr``."""
        return f"answer={f'generated, at most {LONGEST_ANSWER} tokens' if self.answer is None else self.answer}"


def with_tokens(model: NextTokenModel, example: Example, ids: tuple[int, ...]) -> Example:
    """The example with these tokens after its own, all of them special and each a part of the text of its own."""
    further = torch.arange(len(ids), dtype=torch.int64)
    # The last token before them says whether a space stands in between.
    following = [*example.features[-1:].tolist(), *ids]
    special = [i in model.special_ids for i in following]
    shown = token_texts(
        *decoded(model.tokenizer, following), model.tokenizer.convert_ids_to_tokens(following), special
    )[-len(ids) :]
    return replace(
        example,
        features=torch.cat([example.features, torch.tensor(ids, dtype=torch.int64)]),
        special_tokens_mask=torch.cat([example.special_tokens_mask, torch.ones(len(ids), dtype=torch.bool)]),
        names=(*example.names, *(token.name for token in shown)),
        segments={level: torch.cat([parts, parts.max() + 1 + further]) for level, parts in example.segments.items()},
        answer=(*(example.answer or ()), *ids),
        glued=(*example.glued, *(token.glued for token in shown)),
        roles=(*example.roles, *(ANSWER for _ in ids)) if example.roles else (),
    )


def answered(model: NextTokenModel, prompt: Example, answer: tuple[int, ...]) -> Example:
    """A prompt with its answer. After an empty one nothing can be explained: then all tokens are special."""
    if answer:
        return with_tokens(model, prompt, answer)
    return replace(prompt, special_tokens_mask=torch.ones_like(prompt.special_tokens_mask), answer=())


@torch.no_grad()
def generated(model: NextTokenModel, prompts: Sequence[Example]) -> list[tuple[int, ...]]:
    """The model's answers to prompts, the most likely token each time; empty if the first token ends the text.

    An answer has at most `LONGEST_ANSWER` tokens, and no more than the model takes; each is a forward pass of all.
    """
    most = [min(LONGEST_ANSWER, model.max_length - len(prompt)) for prompt in prompts]
    answers: list[tuple[int, ...]] = [() for _ in prompts]
    unfinished, ends = [i for i, count in enumerate(most) if count > 0], _ends_of_text(model)
    while unfinished:
        case = model.case([with_tokens(model, prompts[i], answers[i]) for i in unfinished])
        said = dict(zip(unfinished, case.target.tolist(), strict=True))
        going = {i: token for i, token in said.items() if token not in ends}
        for i, token in going.items():
            answers[i] += (token,)
        unfinished = [i for i in going if len(answers[i]) < most[i]]
    return answers


def generated_or_refused(model: NextTokenModel, prompt: Example) -> tuple[int, ...]:
    """The answer `generated` to a prompt; `ModelError` if it is empty, or the prompt leaves no place for one."""
    if len(prompt) >= model.max_length or prompt.truncated:
        raise ModelError(
            f"{type(model.model).__name__} takes {model.max_length} tokens, and the prompt leaves no place for an "
            "answer: give a shorter text"
        )
    (answer,) = generated(model, [prompt])
    if not answer:
        raise ModelError(
            "the model's answer is empty: its most likely next token ends the text. Give the answer to explain by "
            "--target, or another text"
        )
    return answer


def _ends_of_text(model: NextTokenModel) -> set[int]:
    """The ids of the tokens that end a text."""
    found: set[int] = set()
    for source in (model.tokenizer, model.model.config, model.model.generation_config):
        ids = getattr(source, "eos_token_id", None)
        found |= set(ids if isinstance(ids, list | tuple) else [ids]) - {None}
    return found
