"""The documents' site: its navigation names every page."""

import re
from pathlib import Path

import pytest

import faithcheck.tests

DOCS = Path(faithcheck.tests.__path__[0]).resolve().parent / "docs"

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="the documents are in the clone, not in the wheel")


def test_the_navigation_names_every_page_once():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    trees = re.findall(r"^```\{toctree\}\n(?::[^\n]*\n)*\n(.*?)^```$", index, flags=re.DOTALL | re.MULTILINE)
    named = [name for tree in trees for name in tree.split()]
    pages = [
        path.relative_to(DOCS).with_suffix("").as_posix() for end in ("md", "rst") for path in DOCS.rglob(f"*.{end}")
    ]
    assert sorted(["index", *named]) == sorted(pages)


def test_the_readme_is_short_and_leads_with_the_command():
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert readme.count("\n") < 150
    assert 0 < readme.index("faithcheck check") < readme.index("pytest")
