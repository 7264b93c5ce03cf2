"""CONTRIBUTING.md is true: every extension that it teaches works and touches no more files than it should.

The tests apply the blocks of all sections to one copy of the repository and run them there.
"""

import json
import re

import pytest

from faithcheck.axioms import AXIOMS
from faithcheck.tests.helpers.contributing import CLONE, Copy, edits, sections

LISTING = "import json, faithcheck; from faithcheck.axioms import AXIOMS; \
from faithcheck.explainers.registry import builtin_explainers; from faithcheck.models import registered_pairs; \
print(json.dumps([list(faithcheck.__path__), list(registered_pairs()), list(builtin_explainers()), list(AXIOMS)]))"

# {section: the number of files that it touches besides documents and tests}
FILES_TOUCHED = {
    "Add a pair": 1,
    "Add a transform": 1,
    "Add an explainer": 1,
    "Add an axiom": 1,
    "Add an LRP rule for a new operation": 1,
    "Add an architecture": 1,
    "Add a column to the report": 2,
}

pytestmark = pytest.mark.skipif(
    not (CLONE / "CONTRIBUTING.md").is_file(), reason="CONTRIBUTING.md is in the clone, not in the wheel"
)


def tests_of_the_sections():
    """The test files that the sections add."""
    paths = [path for title in FILES_TOUCHED for path, _, _ in edits(sections()[title])]
    return sorted({path for path in paths if path.startswith("tests/")})


@pytest.fixture
def copy(tmp_path):
    """A copy of the repository in which every extension of CONTRIBUTING.md is made."""
    copy = Copy(tmp_path)
    copy.extend(FILES_TOUCHED)
    return copy


# --- the sections -----------------------------------------------------------------------------------------------------


def test_contributing_has_a_section_for_every_extension():
    titles = [title for title in sections() if title.startswith("Add ")]
    assert titles == list(FILES_TOUCHED)


@pytest.mark.parametrize("title", FILES_TOUCHED)
def test_an_extension_touches_as_few_files_as_it_says(title):
    paths = {path for path, _, _ in edits(sections()[title])}
    touched = sorted(path for path in paths if not path.startswith(("tests/", "docs/")) and not path.endswith(".md"))
    assert len(touched) == FILES_TOUCHED[title], touched


def names(title, pattern):
    """The first groups of a pattern in the blocks of a section."""
    return [name for _, _, code in edits(sections()[title]) for name in re.findall(pattern, code)]


def test_the_extensions_are_listed_and_their_own_checks_are_green(copy):
    path, pairs, explainers, axioms = json.loads(copy.run("-c", LISTING))
    assert path == [str(copy.site / "faithcheck")], "the code that ran is not the copy's"

    (pair,) = names("Add a pair", r'@equivalent_pair\(\s*"([\w.]+)"')
    (transform,) = names("Add a transform", r'@function_preserving_transform\(\s*"([\w.]+)"')
    (explainer,) = names("Add an explainer", r'^    name = "(\w+)"') or names("Add an explainer", r'name = "(\w+)"')
    new_axioms = [name for name in axioms if name not in AXIOMS]
    on_architectures = [name for name in pairs if name.startswith(transform)]
    assert pair in pairs
    assert len(on_architectures) >= 6
    assert explainer in explainers
    assert len(new_axioms) == 1

    chosen = [pair, "control.mlp", "product.x1x2x3", *(f"{transform}_{name}" for name in ("bert", "gpt2", "llama"))]
    options = [f"--pairs={name}" for name in chosen] + [f"--explainer={name}" for name in ("loo", "attnlrp", explainer)]
    selection = f"equivalence or invariance or {new_axioms[0]} or unit"
    files = ["tests/test_axioms.py", *tests_of_the_sections()]
    copy.run("-m", "pytest", "-q", "-m", selection, *files, *options, "--axioms-json=new.json")
    records = json.loads((copy.root / "new.json").read_text(encoding="utf-8"))["records"]
    measured = {(record["axiom"], record["subject"], record["explainer"]): record["status"] for record in records}
    for subject in (pair, f"{transform}_bert", f"{transform}_gpt2", f"{transform}_llama"):
        assert measured["equivalence", subject, None] == "holds"
        assert measured["invariance", subject, "loo"] == "holds"
        assert measured["invariance", subject, "attnlrp"] == "holds"
    assert measured["invariance", pair, explainer] == "holds"
    assert any(axiom == new_axioms[0] for axiom, _, _ in measured)


@pytest.mark.slow
def test_the_whole_fast_suite_is_green_with_every_extension(copy):
    copy.run("-m", "pytest", "-q", "-n", "2", "-m", "not slow", "tests/unit", "tests/test_axioms.py", timeout=3000)
