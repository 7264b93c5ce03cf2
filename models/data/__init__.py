"""Data sets: handwritten digits, texts and images, from files, folders or the hub.

What belongs here: reading data and describing where it comes from. Not here: models.
"""


class DataError(ValueError):
    """A data folder or a file in it is missing or damaged. The message names the path and says what is expected."""


def has_half_a_character(text: str) -> bool:
    """Whether a string holds half of a surrogate pair, which no tokenizer takes.

    JSON's escape sequences give one, and so does a byte of the command line that is not UTF-8.
    """
    return any("\ud800" <= character <= "\udfff" for character in text)
