"""The text of any error that an explainer raises: always text, never long, never an error of its own."""

from __future__ import annotations

import traceback
from collections.abc import Callable

LIMIT = 10_000
"""The most characters of a message or a traceback that are kept; a word on what was cut comes on top."""


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


def encodable(text: str) -> str:
    """Text whose lone surrogates, which no file and no terminal takes, are written as escape sequences."""
    # The method of str itself: a subclass of str could have another.
    return str.encode(text, "utf-8", "backslashreplace").decode()


def _text_of(read: Callable[[], str]) -> str:
    try:
        return safe_text(read())
    except BaseException as failure:  # the code of a user's class runs here, and may raise anything
        return f"(no message: reading it raised {type(failure).__name__})"
