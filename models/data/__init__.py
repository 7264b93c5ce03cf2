"""Data sets, and where they come from: handwritten digits, texts and images, from files, folders or the hub."""


class DataError(ValueError):
    """A data folder or a file in it is missing or damaged. The message names the path and says what is expected."""


def has_half_a_character(text: str) -> bool:
    """Whether a string holds half of a surrogate pair, from JSON or bytes that are not UTF-8: no tokenizer takes it."""
    return any("\ud800" <= character <= "\udfff" for character in text)
