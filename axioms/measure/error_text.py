"""The text of any error that an explainer raises: always text, never long, never an error of its own."""

import traceback
from collections.abc import Callable, Mapping

LIMIT = 10_000
"""The most characters of a message or a traceback that are kept; a word on what was cut comes on top."""
SHORT = 300
"""The most characters of an input that are repeated in the records of the checks that depend on it."""


def error_text(error: BaseException) -> str:
    """The class and message of an error, ``ValueError: no such layer``: at most `LIMIT` characters, valid Unicode."""
    message = message_text(error)
    return safe_text(f"{type(error).__name__}: {message}" if message else type(error).__name__)


def message_text(error: BaseException) -> str:
    """The message of an error: at most `LIMIT` characters, valid Unicode."""
    return _text_of(lambda: str(error))


def traceback_text(error: BaseException) -> str:
    """The traceback of an error and of its causes: at most `LIMIT` characters, valid Unicode."""
    return _text_of(lambda: "".join(traceback.format_exception(error)).rstrip())


def safe_text(text: str) -> str:
    """`encodable` text, without its middle if it is longer than `LIMIT`."""
    # The methods of str itself: a subclass of str could have others.
    if (length := str.__len__(text)) > LIMIT:
        start, end = str.__getitem__(text, slice(LIMIT // 2)), str.__getitem__(text, slice(length - LIMIT // 2, None))
        text = f"{start} … ({length - LIMIT:,} characters cut) … {end}"
    return encodable(text)


def difference_text(detail: Mapping[str, object]) -> str:
    """How the two models of a pair differ, by the detail of a record of ``equivalence`` that does not hold."""
    if "told apart by" not in detail:
        return safe_text(str(detail.get("error", "their outputs or gradients differ")))
    where, witness = detail.get("differ in", "their outputs"), str(detail["told apart by"])
    if len(witness) > SHORT:
        witness = f"{witness[:SHORT]} … ({len(witness) - SHORT:,} characters cut; equivalence has all)"
    return safe_text(f"f and g differ in {where} at the input {witness}")


def encodable(text: str) -> str:
    """Text whose lone surrogates, which no file and no terminal takes, are written as escape sequences."""
    # The method of str itself: a subclass of str could have another.
    return str.encode(text, "utf-8", "backslashreplace").decode()


def _text_of(read: Callable[[], str]) -> str:
    try:
        return safe_text(read())
    except BaseException as failure:  # the code of a user's class runs here, and may raise anything
        return f"(no message: reading it raised {type(failure).__name__})"
