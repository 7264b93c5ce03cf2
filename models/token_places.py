"""Places where relevance often sinks: the first token, separators and punctuation.

Language models put much attention on the first token and on separators, whatever the text says (Clark et al. 2019,
arXiv 1906.04341, §3.2; attention sinks, Xiao et al. 2023, arXiv 2309.17453), and maps made of attention follow them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

PLACES = ("first", "separators", "punctuation")


def places(special_tokens_mask: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """The tokens at each of `PLACES`, masks ``(tokens,)``; no token is at two.

    They are the first token, special or not; other special tokens, such as [SEP] and a decoder's last token; and tokens
    whose name, as the tokenizer writes it, has no letter and no digit. Padding at the end has no name.
    """
    first = torch.zeros_like(special_tokens_mask)
    first[:1] = True
    separators = special_tokens_mask & ~first
    punctuation = torch.zeros_like(first)
    for token, name in enumerate(names):
        punctuation[token] = not any(character.isalnum() for character in spelled_out(name))
    return {"first": first, "separators": separators, "punctuation": punctuation & ~separators & ~first}


def spelled_out(name: str) -> str:
    """What a token's name stands for: byte-level tokenizers write a letter for each byte, as "âĢĻ" for "’".

    A name that is part of a character, or has letters that stand for no bytes of a text, stays as it is.
    """
    from tokenizers.decoders import ByteLevel

    text: str = ByteLevel().decode([name])
    return name if "\ufffd" in text else text
