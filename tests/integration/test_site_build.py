"""`make docs`: the site is built without a warning, and nothing in it needs the network."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import faithcheck.tests

CLONE = Path(faithcheck.tests.__path__[0]).resolve().parent
LOADED = r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?([^"'\s>]+)|<link\b[^>]*\bhref=["']?([^"'\s>]+)"""
"""What a browser loads by itself; where a link of the text leads, the reader decides."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (CLONE / "docs" / "conf.py").is_file(), reason="the documents are in the clone, not in the wheel"
    ),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        CLONE / "docs",
        folder / "html",
    ]
    done = subprocess.run([*command, "-d", folder / "doctrees"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_no_page_loads_anything_from_the_network(site):
    pages = [*site.rglob("*.html")]
    assert len(pages) > 30
    for page in pages:
        loaded = [one or other for one, other in re.findall(LOADED, page.read_text(encoding="utf-8"))]
        assert loaded
        assert [url for url in loaded if re.match(r"(?:https?:)?//", url)] == [], page.name
    sheets = [*site.rglob("*.css")]
    assert sheets
    for sheet in sheets:
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name


@pytest.mark.parametrize(
    "name",
    [
        "faithcheck.check_explainer",
        "faithcheck.parametrize_with_axioms",
        "faithcheck.explainers.Explainer.attribute",
        "faithcheck.models.Case",
        "faithcheck.models.Expectation",
    ],
)
def test_the_reference_describes_the_public_names(site, name):
    assert f'id="{name}"' in (site / "reference" / "api.html").read_text(encoding="utf-8")


def test_a_link_to_a_file_outside_the_folder_leads_to_a_page_or_is_text(site):
    page = (site / "how_to" / "adapt_an_explainer.html").read_text(encoding="utf-8")
    assert 'href="../contributing/explainer.html"' in page
    for page in site.rglob("*.html"):
        for link in re.findall(r'href="([^"#:]+)', page.read_text(encoding="utf-8")):
            assert (page.parent / link).resolve().is_relative_to(site.resolve()), f"{page.name}: {link}"
