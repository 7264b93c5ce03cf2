"""The output that ``--target`` and ``--contrast`` name: a number, the name of a class, a token, or a whole answer.

What is given is looked up as the number of an output, counted from 0, and as a name: of a class in ``id2label`` or
``label2id`` of the configuration, of a decoder as a text. If it means several outputs, it is refused with the choices,
``number=3`` and ``name=3``, which mean one of the two alone.
"""

from collections import defaultdict
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
    """A shallow copy of the model that explains this output: the weights are shared.

    Of a decoder, a ``target`` of several tokens is an answer to explain (`AnswerModel`). `ModelError` if there is no
    such output, or the contrast is several tokens or the target itself.
    """
    tokens = () if target is None else _tokens(model, "--target", target)
    against = () if contrast is None else _tokens(model, "--contrast", contrast)
    if len(against) > 1:
        raise ModelError(f"--contrast={contrast}: {_split(model, against)}: give one of them, or the number of a token")
    if len(tokens) > 1 and against:
        raise ModelError(
            f"--target={target}: {_split(model, tokens)}, and here a contrast is between two tokens: give one of them, "
            "leave out --contrast, or contrast two answers by faithcheck explain"
        )
    if tokens and tokens == against:
        raise ModelError(f"--contrast={contrast} is the target itself: give another output")
    if len(tokens) > 1:
        assert isinstance(model, NextTokenModel)
        return _answering(model, tokens)
    chosen = copy(model)
    chosen.target, chosen.against = next(iter(tokens), None), next(iter(against), None)
    return chosen


def two_answers(
    model: TextModel | ImageClassifier, target: str | None, contrast: str | None
) -> tuple[AnswerModel, AnswerModel] | None:
    """A decoder with the answer that is explained, and with the one that it is contrasted with.

    None where neither has several tokens: then two outputs of one forward pass are contrasted.
    """
    if target is None or contrast is None or not isinstance(model, NextTokenModel):
        return None
    tokens, against = _tokens(model, "--target", target), _tokens(model, "--contrast", contrast)
    if max(len(tokens), len(against)) == 1:
        return None
    if tokens == against:
        raise ModelError(f"--contrast={contrast} is the target itself: give another answer")
    return _answering(model, tokens), _answering(model, against)


def with_generated_answers(
    model: TextModel | ImageClassifier, target: str | None, contrast: str | None
) -> TextModel | ImageClassifier:
    """As `with_chosen_output`; but of a decoder without a target the answer that it generates to each text."""
    if isinstance(model, NextTokenModel) and target is None and contrast is None:
        return _answering(model, None)
    return with_chosen_output(model, target, contrast)


def _answering(model: NextTokenModel, answer: tuple[int, ...] | None) -> AnswerModel:
    """The decoder with its explained answer, see `AnswerModel`; it cuts prompts where the decoder does."""
    chosen = AnswerModel(model.model, model.tokenizer, answer, model.max_length, model.by_ids).eval()
    chosen.cuts_prompts = model.cuts_prompts
    return chosen


def name_of_output(model: TextModel | ImageClassifier, output: int) -> str:
    """The name of an output by ``id2label`` or else ``label2id``; of a decoder, the text of a token, quoted.

    A name that other outputs have, too, is followed by the number.
    """
    if isinstance(model, NextTokenModel):
        return repr(model.tokenizer.decode([output]))
    config: Any = model.model.config
    given: Any = (config.id2label or {}).get(output)
    if given in (None, f"LABEL_{output}"):
        numbered = (name for name, number in (config.label2id or {}).items() if number == output)
        given = next(numbered, output if given is None else given)
    name = str(given)
    return name if _names(model).get(name, {output}) == {output} else f"{name} (output {output})"


def gives_scores(model: TextModel | ImageClassifier) -> bool:
    """Whether the outputs are numbers by themselves, as of a regression, and no logits of classes or tokens."""
    config: Any = model.model.config
    return not isinstance(model, NextTokenModel) and (config.problem_type == "regression" or config.num_labels == 1)


def explained_in_words(model: TextModel | ImageClassifier, target: int | None = None) -> str:
    """What is explained, of one example or all of them: "the logit of the class positive minus that of negative"."""
    if isinstance(model, AnswerModel):
        if model.answer is None:
            return (
                f"the log-likelihood of the answer that the model gives to each text, {LONGEST_ANSWER} tokens at most"
            )
        text, count = model.tokenizer.decode(list(model.answer)), len(model.answer)
        return f"the log-likelihood of the answer {text!r}, {count} token{'s' if count > 1 else ''}"
    decoder, target = isinstance(model, NextTokenModel), model.target if target is None else target
    less = "" if model.against is None else f" minus that of {name_of_output(model, model.against)}"
    if gives_scores(model):
        return f"the {'largest output' if target is None else f'output {name_of_output(model, target)}'}{less}"
    if target is None:
        what = "most likely next token" if decoder else "predicted class"
    else:
        what = f"{'next token' if decoder else 'class'} {name_of_output(model, target)}"
    return f"the logit of the {what}{less}"


def _tokens(model: TextModel | ImageClassifier, option: str, given: str) -> tuple[int, ...]:
    """The output that is given by its number or name; of a decoder, the tokens of a text."""
    outputs, (kind, equals, name) = _outputs(model), given.partition("=")
    if kind not in ("number", "name") or not equals:
        kind, name = "", given
    is_number = kind != "name" and name.isascii() and name.isdigit()
    meant: set[tuple[int, ...]] = {(int(name),)} if is_number and int(name) < outputs else set()
    names = {} if kind == "number" else _names(model)
    meant |= {(i,) for i in _named(model, names, name)}
    if kind != "number" and not names.get(name) and isinstance(model, NextTokenModel):
        meant |= {ids for ids in [_ids_of_text(model, name)] if ids}
    if len(meant) == 1:
        return meant.pop()
    if meant:
        choices = [f"number={ids[0]} ({name_of_output(model, ids[0])})" for ids in sorted(meant) if len(ids) == 1]
        choices += [f"name={name} ({_split(model, ids)})" for ids in meant if len(ids) > 1]
        raise ModelError(f"{option}={given} has several meanings: give {' or '.join(choices)}")
    if is_number or kind == "number":
        raise ModelError(f"{option}={given}: the model has {outputs} outputs, 0 to {outputs - 1}")
    # A whole vocabulary would fill the screen: name only the nearest tokens.
    near, decoder = get_close_matches(name, names, n=3), isinstance(model, NextTokenModel)
    hint = unknown_name("output", name, near if decoder else names) if near or not decoder else "unknown token"
    raise ModelError(f"{option}={given}: {hint}; or give its number")


def _named(model: TextModel | ImageClassifier, names: dict[str, set[int]], name: str) -> set[int]:
    """The outputs of this name; of classes in any case if none has this one: "ICK" is another token than "ick"."""
    found = names.get(name, set())
    if not found and not isinstance(model, NextTokenModel):
        found = {i for known, numbers in names.items() if known.lower() == name.lower() for i in numbers}
    return found


def _names(model: TextModel | ImageClassifier) -> dict[str, set[int]]:
    """The outputs of each name: of a decoder its vocabulary, else of both tables in the configuration."""
    config: Any = model.model.config
    if isinstance(model, NextTokenModel):
        listed = [*model.tokenizer.get_vocab().items()]
    else:
        listed = [(name, i) for i, name in (config.id2label or {}).items()] + [*(config.label2id or {}).items()]
    names, outputs = defaultdict[str, set[int]](set), _outputs(model)
    for name, number in listed:
        if 0 <= int(number) < outputs:
            names[str(name)].add(int(number))
    return dict(names)


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
