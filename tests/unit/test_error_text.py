"""The text of errors that cannot be read, written or shown as they are."""

import json

import pytest

from faithcheck.axioms.measure.error_text import LIMIT, error_text, message_text, traceback_text


class WithoutText(Exception):
    def __str__(self):
        raise SystemExit(0)


class OwnBaseException(BaseException):
    pass


class Shout(str):
    def encode(self, *arguments):
        raise KeyboardInterrupt


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return caught


def test_an_error_is_its_class_and_its_message():
    assert error_text(ValueError("no such layer")) == "ValueError: no such layer"
    assert error_text(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert message_text(ValueError("no such layer")) == "no such layer"
    traceback = traceback_text(raised(ValueError("no such layer")))
    assert traceback.startswith("Traceback (most recent call last):")
    assert traceback.endswith("ValueError: no such layer")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (WithoutText(), "(no message: reading it raised SystemExit)"),
        (OwnBaseException("own"), "own"),
        (SystemExit(0), "0"),
        (ValueError("a lone \ud800 surrogate"), "a lone \\ud800 surrogate"),
        (ValueError(Shout("a class of text")), "a class of text"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "\udcff"), "\\udcff"),
    ],
)
def test_every_error_has_a_text_that_can_be_written(error, expected):
    assert expected in message_text(error)
    for text in (error_text(error), message_text(error), traceback_text(raised(error))):
        assert type(error).__name__ in text or text == message_text(error)
        assert json.loads(json.dumps(text).encode("utf-8")) == text
        text.encode("utf-8")
        assert type(text) is str


def test_a_long_message_keeps_both_ends_and_says_what_was_cut():
    error = ValueError("begin " + 1_000_000 * "x" + " end")
    for text in (error_text(error), traceback_text(raised(error))):
        assert len(text) < LIMIT + 50
        assert text.endswith(" end")
        assert "characters cut)" in text
    assert error_text(error).startswith("ValueError: begin xxx")
    assert "(990,010 characters cut)" in message_text(error)
    assert error_text(error).count("characters cut") == 1
