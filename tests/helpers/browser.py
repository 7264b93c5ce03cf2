"""Pages in Chromium: one browser a module, and what every page must hold to, whichever document it shows.

A test module imports the fixture `browser`. `opened` gives a page that is watched, `check_page` what holds for every
page: no message in the console, no request, no scrolling to the side, no violation of WCAG AA.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

REQUIRED = "FAITHCHECK_REQUIRES_CHROMIUM"
"""With this variable in the environment, a test fails where there is no Chromium; without it, it is skipped."""
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
WCAG_AA = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
"""The rules of axe-core for WCAG 2.2, levels A and AA."""
SIZES = {390: 844, 1280: 900}
"""{width: height} of a phone and of a desktop, in CSS pixels."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, driven by Playwright, of which a process can run one at a time: each module has its own."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        fail_or_skip = pytest.fail if os.environ.get(REQUIRED) else pytest.skip
        fail_or_skip("there is no Chromium on the path: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield started
        started.close()


@contextmanager
def opened(
    browser: Any, file: Path, *, width: int = 1280, scheme: str = "light", hash: str = "", **options: Any
) -> Any:
    """The HTML file in a window of its own. At the end it must have said nothing and asked for nothing but itself."""
    context = browser.new_context(viewport={"width": width, "height": SIZES[width]}, color_scheme=scheme, **options)
    said, asked = [], []
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{file.as_uri()}{hash}")
    yield page
    context.close()
    assert said == []
    assert asked == [file.as_uri()]


def check_page(browser: Any, file: Path) -> None:
    """Check what holds for every page, on a phone and on a desktop, light and dark."""
    with opened(browser, file) as page:
        unfold(page)
        for width, height in SIZES.items():
            page.set_viewport_size({"width": width, "height": height})
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                assert is_light(page) == (scheme == "light")
                assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls to the side"
                if (width, scheme) in ((390, "dark"), (1280, "light")):  # each scheme and each width once: axe is slow
                    assert violations(page) == []


def violations(page: Any) -> list[tuple[str, str, list[str]]]:
    """What violates WCAG AA, by axe-core: the rule, what it asks for, and the first elements."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, options={"runOnly": WCAG_AA, "resultTypes": ["violations"]}).response["violations"]
    return [(rule["id"], rule["help"], [node["html"] for node in rule["nodes"][:3]]) for rule in found]


def is_light(page: Any) -> bool:
    """Whether the page's background is light."""
    channels = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)")
    return sum(channels) > 3 * 128


def unfold(page: Any) -> None:
    """Open all that unfolds."""
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
