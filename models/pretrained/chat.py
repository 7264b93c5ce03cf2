"""Chats: messages as the tokenizer's own template writes them, and the message that each character belongs to.

Whatever is not the content of a message is the template's, such as the markers of a turn and a system message.
"""

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from faithcheck.models.pretrained.folder import ModelError

Messages = Sequence[Mapping[str, str]]
"""Each with its ``role``, such as "system", "user" or "assistant", and its ``content``."""
TEMPLATE, ANSWER = "template", "answer"
"""What takes the place of a role at tokens of the template, and of the explained answer."""


class Chat(NamedTuple):
    """A prompt made of messages."""

    text: str
    starts: list[int]  # the characters, from 0 on, at which a content begins or the template goes on
    roles: list[str]  # whose the text is from there on: the role of a message or `TEMPLATE`

    def role(self, place: int) -> str:
        """Whose the character at a place is."""
        return self.roles[bisect_right(self.starts, place) - 1]


def chat(tokenizer: PreTrainedTokenizerBase, messages: Messages) -> Chat:
    """The prompt of messages, at whose end the assistant speaks; a last message of the assistant is gone on with.

    `ModelError` if the tokenizer has no template, refuses these messages, or changes or leaves out a content.
    """
    if not tokenizer.chat_template:
        raise ModelError("the tokenizer has no chat template: give a model trained on chats, or a text without --chat")
    if not messages or not all(isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in messages):
        raise ModelError('a chat is a list of messages such as {"role": "user", "content": "…"}')
    marked = [{**message, "content": f"\ue000{i}\ue001"} for i, message in enumerate(messages)]
    # Between characters for private use the numbers of the contents, and around them what the template writes.
    built, *pieces = re.split("\ue000([0-9]+)\ue001", _prompt(tokenizer, marked))
    order = [int(number) for number in pieces[::2]]
    if missing := [message["role"] for i, message in enumerate(messages) if order.count(i) != 1]:
        raise ModelError(f"the chat template leaves out a message, or repeats it: {', '.join(missing)}")
    text, starts, roles = _prompt(tokenizer, messages), [0], [TEMPLATE]
    for number, following in zip(order, pieces[1::2], strict=True):
        content = messages[number]["content"]
        if not text.startswith(f"{built}{content}{following}"):
            content = content.strip()  # as many templates do
        starts += [len(built), len(built) + len(content)]
        roles += [messages[number]["role"], TEMPLATE]
        built += content + following
    if built != text:
        raise ModelError("the chat template changes what the messages say, so whose each token is cannot be told")
    return Chat(text, starts, roles)


def _prompt(tokenizer: PreTrainedTokenizerBase, messages: Messages) -> str:
    """What the template makes of messages."""
    goes_on = messages[-1]["role"] == "assistant"
    try:
        return str(
            tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=not goes_on,
                continue_final_message=goes_on,
            )
        )
    except Exception as error:  # raised by the template, which is the model's own code: its message is kept
        raise ModelError(f"the chat template refuses these messages: {error}") from error


def bos_note(tokenizer: PreTrainedTokenizerBase, text: str, ids: Sequence[int]) -> str:
    """What is said of a prompt that has the token of the beginning twice, or would have it; else empty."""
    bos = tokenizer.bos_token_id
    if bos is None or list(ids[:1]) != [bos]:
        return ""
    if list(ids[1:2]) == [bos]:
        return f"The text begins with {tokenizer.bos_token} twice: the tokenizer adds one, or its chat template does."
    if tokenizer(text)["input_ids"][:2] == [bos, bos]:
        return f"The chat template writes {tokenizer.bos_token}: the one that the tokenizer would add is left out."
    return ""
