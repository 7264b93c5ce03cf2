"""The colours of pages: every text has enough contrast with what it stands on, on a light page and on a dark one."""

import itertools

import pytest

from faithcheck.reports.pages import colours
from faithcheck.reports.pages.rendering import sections


def luminance(colour: str) -> float:
    """The relative luminance of ``#rrggbb``, as WCAG 2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first: str, second: str) -> float:
    """The contrast of two colours, from 1 to 21, as WCAG 2 defines it."""
    darker, lighter = sorted(map(luminance, (first, second)))
    return (lighter + 0.05) / (darker + 0.05)


def test_contrast_is_that_of_wcag():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.478, abs=1e-3)  # WCAG's own example of too little


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_has_contrast_with_what_it_stands_on(theme):
    texts = {**colours.TEXTS, **{group.label: found.text for group, found in colours.PAGE.items()}}
    pairs = list(itertools.product(texts.items(), colours.SURFACES.items()))
    pairs += [((group.label, found.text), ("its cell", found.cell)) for group, found in colours.PAGE.items()]
    pairs += [(("link", colours.TEXTS["link"]), (f"cell {g.label}", found.cell)) for g, found in colours.PAGE.items()]
    measured = {
        f"{name} on {below}": contrast(getattr(text, theme), getattr(surface, theme))
        for (name, text), (below, surface) in pairs
    }
    assert len(measured) > 30
    assert {pair: value for pair, value in measured.items() if value < colours.CONTRAST} == {}


def test_the_variables_of_a_page_are_all_colours():
    light, dark = (dict(colours.variables(dark)) for dark in (False, True))
    assert light.keys() == dark.keys()
    assert {"ink", "page", "red", "red-cell", "skip"} <= light.keys()
    assert light["page"] != dark["page"]


def test_the_sections_of_a_page_are_its_navigation():
    page = '<section id="a"><h2>A &lt; b <small>more</small></h2></section>'
    page += '<section>without</section><section id="b" class="c">\n<h2>B</h2></section>'
    assert sections(page) == [("a", "A &lt; b"), ("b", "B")]
