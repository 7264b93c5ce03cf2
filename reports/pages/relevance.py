"""The colours of a map: each word's or token's relevance as a background on which its text can be read.

The background goes from that of the page to the full colour of the largest relevance, so that the strongest word is
printed strongest. A map with values of both signs is red for the output and blue against it; a map without a negative
value has one hue. The ink is black or white, whichever contrasts more: always at least 4.5, as WCAG 2 AA asks.
"""

from collections.abc import Sequence

from msgspec import Struct, structs

from faithcheck.reports.documents.words import Word
from faithcheck.reports.pages.colours import NEGATIVE_RELEVANCE, POSITIVE_RELEVANCE, SURFACES, UNSIGNED_RELEVANCE

Rgb = tuple[int, int, int]

COLOURS = (
    "Each map is coloured by its own largest value that is not special: red for the explained output, blue against it; "
    "violet in a map without a negative value."
)
TERMINAL_GREY: Rgb = (110, 110, 110)
"""What the colours of a terminal start from, whose own background is unknown: white contrasts with all of them."""
FAINT = 0.04
"""Smaller shares of the largest relevance have no colour on a terminal."""
STRONG = 0.5
"""From this share of the largest relevance on, words are bold."""


class ColouredWord(Word, frozen=True, kw_only=True):
    """A word with its relevance."""

    value: float  # its relevance
    strength: float  # as a share of the largest, see `strengths`
    style: str  # its background and ink, see `css`
    bold: bool  # it is among the strongest


class MapRow(Struct, frozen=True):
    """A map as it is shown: its explainer, its r in words, whether it has two hues, and its coloured words."""

    label: str
    r: str
    signed: bool  # a map without a negative value has one hue
    words: list[ColouredWord]
    interaction: str = ""  # LOO's, in words
    why: str = ""  # why the explainer has no map; then there are no words


def strengths(values: Sequence[float], special: Sequence[bool]) -> list[float]:
    """The values as shares, −1 … 1, of the largest one that is not special; a special one may exceed it."""
    largest = max((abs(value) for value, is_special in zip(values, special, strict=True) if not is_special), default=0)
    return [max(-1.0, min(1.0, value / largest)) if largest else 0.0 for value in values]


def map_row(label: str, r: str, words: Sequence[Word], values: Sequence[float], interaction: str = "") -> MapRow:
    """A map as it is shown: its ``words`` on the colours of their relevance ``values``."""
    shares = strengths(values, [word.special for word in words])
    signed = any(value < 0 for value in values)
    coloured = [
        ColouredWord(
            **structs.asdict(word), value=value, strength=share, style=css(share, signed), bold=abs(share) >= STRONG
        )
        for word, value, share in zip(words, values, shares, strict=True)
    ]
    return MapRow(label, r, signed, coloured, interaction)


def css(strength: float, signed: bool) -> str:
    """The background and the ink on a light and on a dark page, as variables for the class ``relevance``."""
    pairs = [(theme, *on_page(strength, signed, dark)) for theme, dark in (("light", False), ("dark", True))]
    return "; ".join(f"--{theme}: {_hex(back)}; --{theme}-ink: {_hex(ink)}" for theme, back, ink in pairs)


def on_page(strength: float, signed: bool, dark: bool) -> tuple[Rgb, Rgb]:
    """The background and the ink of a relevance on a page."""
    card = SURFACES["card"].dark if dark else SURFACES["card"].light
    paper = int(card[1:3], 16), int(card[3:5], 16), int(card[5:7], 16)
    return _between(paper, strength, signed)


def on_terminal(strength: float, signed: bool) -> tuple[Rgb, Rgb] | None:
    """The background and the ink of a relevance on a terminal; None if it is too faint for a colour."""
    return None if abs(strength) < FAINT else _between(TERMINAL_GREY, strength, signed)


def contrast(first: Rgb, second: Rgb) -> float:
    """The contrast of two colours, 1 to 21, as WCAG 2 defines it."""
    darker, lighter = sorted(map(_luminance, (first, second)))
    return (lighter + 0.05) / (darker + 0.05)


def _between(paper: Rgb, strength: float, signed: bool) -> tuple[Rgb, Rgb]:
    full = (NEGATIVE_RELEVANCE if strength < 0 else POSITIVE_RELEVANCE) if signed else UNSIGNED_RELEVANCE
    red, green, blue = (round(start + abs(strength) * (end - start)) for start, end in zip(paper, full, strict=True))
    back = red, green, blue
    inks: tuple[Rgb, Rgb] = (0, 0, 0), (255, 255, 255)
    return back, max(inks, key=lambda ink: contrast(back, ink))


def _luminance(colour: Rgb) -> float:
    shares = (channel / 255 for channel in colour)
    linear = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return sum(weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _hex(colour: Rgb) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
