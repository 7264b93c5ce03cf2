"""The output that ``--target`` and ``--contrast`` name: a number, the name of a class, a token, or a whole answer."""

from __future__ import annotations

from copy import copy
from difflib import get_close_matches
from typing import Any

from faithcheck.models.pretrained.answer_model import LONGEST_ANSWER, AnswerModel
from faithcheck.models.pretrained.folder import ModelError
from faithcheck.models.pretrained.image_classifier import ImageClassifier
from faithcheck.models.pretrained.text_model import NextTokenModel, TextModel, vocabulary_size
from faithcheck.models.unknown_name import unknown_name


def with_chosen_output(
    model: TextModel | ImageClassifier, target: str | None, contrast: str | None
) -> TextModel | ImageClassifier:
    """A shallow copy of the model with its explained output; of a decoder with a target of several tokens its answer.

    Args:
        model: a loaded model. The copy shares its weights.
        target: the number or the name of an output; of a decoder also a token, or a text of several: an answer.
        contrast: the output that it is contrasted with, likewise, but a single token.

    Raises:
        ModelError: no such output, the contrast is several tokens or the target itself.
    """
    tokens = () if target is None else _tokens(model, "--target", target)
    against = () if contrast is None else _tokens(model, "--contrast", contrast)
    if len(against) > 1:
        raise ModelError(f"--contrast={contrast}: {_split(model, against)}: give one of them, or the number of a token")
    if len(tokens) > 1 and against:
        raise ModelError(
            f"--target={target}: {_split(model, tokens)}, and a contrast is between two tokens: give one of them, or "
            "leave out --contrast"
        )
    if tokens and tokens == against:
        raise ModelError(f"--contrast={contrast} is the target itself: give another output")
    if len(tokens) > 1:
        assert isinstance(model, NextTokenModel)
        return _answering(model, tokens)
    chosen = copy(model)
    chosen.target, chosen.against = next(iter(tokens), None), next(iter(against), None)
    return chosen


def with_generated_answers(
    model: TextModel | ImageClassifier, target: str | None, contrast: str | None
) -> TextModel | ImageClassifier:
    """As `with_chosen_output`; but of a decoder without a target the answer that it generates to each text.

    Raises:
        ModelError: see `with_chosen_output`; or no place is left for an answer.
    """
    if isinstance(model, NextTokenModel) and target is None and contrast is None:
        return _answering(model, None)
    return with_chosen_output(model, target, contrast)


def _answering(model: NextTokenModel, answer: tuple[int, ...] | None) -> AnswerModel:
    """The decoder with its explained answer, see `AnswerModel`; it cuts prompts where the decoder does."""
    chosen = AnswerModel(model.model, model.tokenizer, answer, model.max_length, model.by_ids).eval()
    chosen.cuts_prompts = model.cuts_prompts
    return chosen


def name_of_output(model: TextModel | ImageClassifier, output: int) -> str:
    """The name that the model gives to an output; of a decoder, the text of a token, quoted."""
    if isinstance(model, NextTokenModel):
        return repr(model.tokenizer.decode([output]))
    named: Any = model.model.config.id2label or {}
    return str(named.get(output, output))


def explained_in_words(model: TextModel | ImageClassifier, target: int | None = None) -> str:
    """What is explained: "the logit of the class positive minus that of negative".

    Args:
        model: with its explained output chosen.
        target: the explained output of one example; by default that of all.
    """
    if isinstance(model, AnswerModel):
        if model.answer is None:
            return (
                f"the log-likelihood of the answer that the model gives to each text, {LONGEST_ANSWER} tokens at most"
            )
        text, count = model.tokenizer.decode(list(model.answer)), len(model.answer)
        return f"the log-likelihood of the answer {text!r}, {count} token{'s' if count > 1 else ''}"
    decoder, target = isinstance(model, NextTokenModel), model.target if target is None else target
    kind = "next token" if decoder else "class"
    if target is None:
        what = "most likely next token" if decoder else "predicted class"
    else:
        what = f"{kind} {name_of_output(model, target)}"
    less = "" if model.against is None else f" minus that of {name_of_output(model, model.against)}"
    return f"the logit of the {what}{less}"


def _tokens(model: TextModel | ImageClassifier, option: str, name: str) -> tuple[int, ...]:
    """The output of this number or name; of a decoder, the tokens of a text.

    Raises:
        ModelError: there is none.
    """
    outputs = _outputs(model)
    if name.isascii() and name.isdigit():
        if int(name) < outputs:
            return (int(name),)
        raise ModelError(f"{option}={name}: the model has {outputs} outputs, 0 to {outputs - 1}")
    names, decoder = _names(model), isinstance(model, NextTokenModel)
    index = names.get(name)
    if index is None and not decoder:  # "ICK" is another text than "ick"
        index = {known.lower(): number for known, number in names.items()}.get(name.lower())
    if index is not None and 0 <= index < outputs:
        return (index,)
    if isinstance(model, NextTokenModel) and (ids := _ids_of_text(model, name)):
        return ids
    # A whole vocabulary would fill the screen: name only the nearest tokens.
    near = get_close_matches(name, names, n=3)
    hint = unknown_name("output", name, near if decoder else names) if near or not decoder else "unknown token"
    raise ModelError(f"{option}={name}: {hint}; or give its number")


def _names(model: TextModel | ImageClassifier) -> dict[str, int]:
    """The names of the outputs: of a decoder its vocabulary."""
    listed: Any = model.model.config.label2id or {}
    if isinstance(model, NextTokenModel):
        listed = model.tokenizer.get_vocab()
    return {str(name): int(number) for name, number in listed.items()}


def _ids_of_text(model: NextTokenModel, text: str) -> tuple[int, ...]:
    """The tokens of a text that follows another; none if the tokenizer or the model does not know one."""
    ids = tuple(model.tokenizer(text, add_special_tokens=False)["input_ids"])
    known = model.tokenizer.unk_token_id not in ids and all(i < _outputs(model) for i in ids)
    return ids if known else ()


def _outputs(model: TextModel | ImageClassifier) -> int:
    """The number of outputs."""
    unmodified: Any = model.model
    if not isinstance(model, NextTokenModel):
        return int(unmodified.config.num_labels)
    head = unmodified.get_output_embeddings()
    return vocabulary_size(unmodified) if head is None else len(head.weight)


def _split(model: TextModel | ImageClassifier, ids: tuple[int, ...]) -> str:
    return f"the tokenizer splits it into {', '.join(name_of_output(model, i) for i in ids)}"
