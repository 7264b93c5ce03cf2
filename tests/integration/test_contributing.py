"""The recipes of docs/contributing are true: each extension works and touches no more files than it should.

The tests apply the blocks of all recipes to one copy of the repository and run them there.
"""

import json
import re

import pytest

from faithcheck.tests.helpers.contributing import CLONE, Copy, edits, recipes

RUN_AND_LIST = """
import json, sys
import pytest

exit_code = pytest.main(sys.argv[1:])
import faithcheck
from faithcheck.axioms import AXIOMS
from faithcheck.explainers import builtin_explainers
from faithcheck.models import registered_pairs
from faithcheck.cli.main import main

main(["report", "new.json", "--md"])
names = [list(names) for names in (faithcheck.__path__, registered_pairs(), builtin_explainers(), AXIOMS)]
open("names.json", "w").write(json.dumps(names))
raise SystemExit(exit_code)
"""

# {recipe: the number of files that it touches besides documents and tests}
FILES_TOUCHED = {
    "Add a pair": 1,
    "Add a transform": 1,
    "Add an explainer": 1,
    "Add a removal": 1,
    "Add an axiom": 1,
    "Add an LRP rule for a new operation": 2,
    "Add an architecture": 1,
    "Add a column to the report": 1,
    "Add a column to the alignment page": 1,
}

pytestmark = pytest.mark.skipif(
    not (CLONE / "CONTRIBUTING.md").is_file(), reason="CONTRIBUTING.md is in the clone, not in the wheel"
)


def added_tests():
    """The test files that the recipes add."""
    paths = [path for title in FILES_TOUCHED for path, _, _ in edits(recipes()[title])]
    return sorted({path for path in paths if path.startswith("tests/")})


@pytest.fixture
def copy(tmp_path):
    """A copy of the repository in which every extension of the recipes is made."""
    copy = Copy(tmp_path)
    copy.extend(FILES_TOUCHED)
    return copy


# --- the recipes ------------------------------------------------------------------------------------------------------


def test_every_extension_has_a_recipe_that_contributing_links():
    assert recipes().keys() == FILES_TOUCHED.keys()
    pages = {path.name for path in (CLONE / "docs" / "contributing").glob("*.md")} - {"index.md"}
    linked = re.findall(r"\(docs/contributing/(\w+\.md)\)", (CLONE / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert sorted(linked) == sorted(pages)


@pytest.mark.parametrize("title", FILES_TOUCHED)
def test_an_extension_touches_as_few_files_as_it_says(title):
    paths = {path for path, _, _ in edits(recipes()[title])}
    touched = sorted(path for path in paths if not path.startswith(("tests/", "docs/")) and not path.endswith(".md"))
    assert len(touched) == FILES_TOUCHED[title], touched


def name_in(title, pattern):
    """The one name that a pattern finds in the blocks of a recipe."""
    codes = [code for _, _, code in edits(recipes()[title])]
    (name,) = {name for code in codes for name in re.findall(pattern, code, flags=re.MULTILINE)}
    return name


@pytest.mark.slow
def test_the_extensions_are_listed_measured_and_shown(copy):
    """One run of pytest in the copy, on what the recipes add, and the page that is made of it."""
    pair = name_in("Add a pair", r'@equivalent_pair\(\s*"([\w.]+)"')
    transform = name_in("Add a transform", r'@function_preserving_transform\(\s*"([\w.]+)"')
    explainer = name_in("Add an explainer", r'^ +name(?:: str)? = "(\w+)"')
    axiom = name_in("Add an axiom", r'@axiom\(\s*"(\w+)"')
    architecture = name_in("Add an architecture", r'Architecture\(\s*"(\w+)"')
    column = name_in("Add a column to the report", r'^\+.*Column\([\s+]*"([^"]+)"')

    pairs = [pair, "control.mlp", *(f"{transform}_{name}" for name in ("bert", "gpt2", architecture))]
    explainers = ["loo", "attnlrp", explainer]
    files = ["tests/test_axioms.py", *added_tests()]
    options = [*(f"--pairs={name}" for name in pairs), *(f"--explainer={name}" for name in explainers)]
    assert name_in("Add a removal", r'^\+    name: str = "(\w+)"') in copy.run(
        "-c", "from faithcheck.catalogue import removals; print(removals())"
    )
    selection = f"equivalence or invariance or {axiom} or unit"
    copy.run("-c", RUN_AND_LIST, "-q", "-m", selection, *files, *options, "--axioms-json=new.json")

    path, all_pairs, all_explainers, all_axioms = json.loads((copy.root / "names.json").read_text(encoding="utf-8"))
    assert path == [str(copy.site / "faithcheck")], "the code that ran is not the copy's"
    assert {*pairs} <= {*all_pairs}
    assert explainer in all_explainers
    assert axiom in all_axioms

    records = json.loads((copy.root / "new.json").read_text(encoding="utf-8"))["records"]
    statuses = {(record["axiom"], record["subject"], record["explainer"]): record["status"] for record in records}
    for name in pairs:
        assert statuses["equivalence", name, None] == "holds"
        assert statuses["invariance", name, "loo"] == "holds"
        assert statuses["invariance", name, "attnlrp"] == "holds"
        assert statuses["invariance", name, explainer] == "holds"
    assert axiom in {name for name, _, _ in statuses}
    assert column in (copy.root / "new.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_whole_fast_suite_is_green_with_every_extension(copy):
    copy.run("-m", "faithcheck.catalogue")
    # The files of the recipes count among these two sizes, whose limits hold without them.
    sizes = ["lines of the product", "files of at most 60 lines"]
    others = [f"--deselect=tests/unit/test_reach.py::test_a_figure_does_not_grow[{size}]" for size in sizes]
    suite = ["tests/unit", "tests/test_axioms.py", *others]
    copy.run("-m", "pytest", "-q", "-n", "2", "-m", "not slow", *suite, timeout=3000)
