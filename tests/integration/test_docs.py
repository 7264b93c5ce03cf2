"""The documents are true: tutorials work block by block, links lead somewhere, and paths and modules exist."""

import ast
import io
import json
import os
import pkgutil
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

import faithcheck.tests
from faithcheck import check_explainer
from faithcheck.models.pair import registered_pairs
from faithcheck.tests.helpers.contributing import edits, recipes

CLONE = Path(faithcheck.tests.__path__[0]).resolve().parent
# Each command takes seconds to start. The blocks of the README in `bash` are about a clone.
TUTORIALS = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in (
        "README.md",
        "docs/tutorial/verify.md",
        "docs/how_to/adapt_an_explainer.md",
        "docs/how_to/add_a_pair.md",
        "docs/how_to/in_python.md",
        "docs/how_to/known_failures.md",
        "docs/how_to/read_the_report.md",
    )
]

pytestmark = pytest.mark.skipif(not (CLONE / "docs").is_dir(), reason="the docs are in the clone, not in the wheel")


# --- tutorials: every block of code is saved or run, in order, in an empty folder -------------------------------------


def blocks(text):
    """``(language, code, name)`` of each fenced block; the name is that of the text before it, "as `name`:"."""
    for block in re.finditer(r"^```(\w+)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
        saved = re.search(r"as\s+`([\w.]+)`:\s*\Z", text[: block.start()])
        yield block[1], block[2], saved[1] if saved else None


def run(folder, *command):
    """Run a command with the programs of this Python first on the path; returns its output and its exit code."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment |= {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "200"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    print(done.stdout, done.stderr)
    return done.stdout, done.returncode


def of_any_machine(text):
    """The text in one line, without the number of threads, which depends on the machine."""
    return re.sub(r"\d+ threads", "threads", " ".join(text.split()))


def follow(text, folder):
    """Follow a tutorial in a folder, and compare the output that it promises with the output of its commands."""
    output = ""
    for language, code, name in blocks(text):
        if name:
            (folder / name).write_text(code, encoding="utf-8")
        elif language in ("sh", "python"):
            promised = re.search(r"# exit code (\d+)", code)
            command = ("bash", "-ec", code) if language == "sh" else (sys.executable, "-c", code)
            output, exit_code = run(folder, *command)
            assert exit_code == (int(promised[1]) if promised else 0), code
        elif language == "text":
            flat = of_any_machine(output)
            assert all(of_any_machine(line) in flat for line in code.splitlines()), f"{code}\nis not in\n{output}"


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_works_block_by_block(name, tmp_path):
    follow((CLONE / name).read_text(encoding="utf-8"), tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "```sh\nfalse\n```\n",
        "```sh\ntrue  # exit code 1\n```\n",
        "```sh\necho red\n```\n\n```text\ngreen\n```\n",
        "```python\nassert False\n```\n",
    ],
)
def test_a_tutorial_that_does_not_work_is_red(text, tmp_path):
    with pytest.raises(AssertionError):
        follow(text, tmp_path)


# --- the snippet of the README ----------------------------------------------------------------------------------------


def test_the_explainer_of_the_readme_holds_what_it_claims(settings):
    blocks = re.findall(r"```python\n(.*?)```", (CLONE / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    (snippet,) = (block for block in blocks if "def attribute" in block)
    namespace = {"__name__": "snippet"}
    exec(compile(snippet, "snippet", "exec"), namespace)
    explainer = namespace["AbsoluteGradient"]()
    assert explainer.claims
    records = check_explainer(explainer, explainer.claims, ["product.x1x2x3", "control.mlp"], settings)
    assert [record.status for record in records] == ["holds"] * len(records)
    assert records


# --- pairs ------------------------------------------------------------------------------------------------------------


def test_the_page_of_the_registry_names_every_family_of_pairs():
    text = (CLONE / "docs" / "reference" / "registry.md").read_text(encoding="utf-8")
    families = {name.partition(".")[0] for name in registered_pairs()}
    assert sorted(family for family in families if f"`{family}.*`" not in text) == []


# --- the size of the manual -------------------------------------------------------------------------------------------

MOST_WORDS_OF_A_PAGE = 1500
MOST_WORDS = 30_000  # what one person can read in two hours


def words_of_the_manual():
    """``{page: words}`` of README.md, CONTRIBUTING.md and docs without the results; code counts too."""
    pages = [CLONE / "README.md", CLONE / "CONTRIBUTING.md"]
    pages += [path for end in ("md", "rst", "ipynb") for path in (CLONE / "docs").rglob(f"*.{end}")]
    manual = [path for path in pages if CLONE / "docs" / "results" not in path.parents]
    return {path.relative_to(CLONE).as_posix(): len(prose_of(path).split()) for path in manual}


def prose_of(path):
    """The text of a page; of a notebook, the sources of its cells."""
    text = path.read_text(encoding="utf-8")
    return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"]) if path.suffix == ".ipynb" else text


def test_no_page_of_the_manual_is_long():
    assert {page: words for page, words in words_of_the_manual().items() if words > MOST_WORDS_OF_A_PAGE} == {}


def test_the_manual_is_short():
    words = words_of_the_manual()
    assert {"README.md", "docs/index.md", "docs/tutorial/notebook.ipynb", "docs/reference/api.rst"} <= words.keys()
    assert sum(words.values()) <= MOST_WORDS


def test_a_page_of_results_begins_with_its_conclusion():
    for page in (CLONE / "docs" / "results").glob("*.md"):
        assert re.match(r"# .+\n\n\*\*", page.read_text(encoding="utf-8")), page.name


# --- links, paths and modules -----------------------------------------------------------------------------------------

DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "models/pretrained/sentiment/README.md"]
DOCUMENTS += sorted(path.relative_to(CLONE).as_posix() for path in (CLONE / "docs").rglob("*.md"))


def anchors(path):
    """The anchors of a Markdown file's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_links_of_a_document_lead_to_a_file_and_a_heading(document):
    for link in re.findall(r"\]\(([^)\s]+)\)", (CLONE / document).read_text(encoding="utf-8")):
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        target = (CLONE / document).parent / name if name else CLONE / document
        assert target.exists(), f"{document}: {link}"
        assert not anchor or anchor in anchors(target), f"{document}: {link}"


FOLDERS = "axioms|docs|explainers|models|reports|tests"
PATH = rf"(?<![\w./])((?:{FOLDERS})/[\w./]*\w\.(?:py|md))"
MODULE = rf"\bfaithcheck\.((?:{FOLDERS})(?:\.\w+)*)"
CURRENT = [document for document in DOCUMENTS if document != "CHANGELOG.md"]  # that one names former modules too


def is_module(parts):
    """Whether these parts name a module or a folder of the clone, or one name in it."""
    path, parent = CLONE.joinpath(*parts), CLONE.joinpath(*parts[:-1])
    return any(place.is_dir() or place.with_suffix(".py").is_file() for place in (path, parent))


@pytest.mark.parametrize("document", CURRENT)
def test_the_paths_and_modules_that_a_document_names_exist(document):
    text = (CLONE / document).read_text(encoding="utf-8")
    new = {path for recipe in recipes().values() for path, _, _ in edits(recipe)}  # what a reader makes
    for path in re.findall(PATH, text):
        assert path in new or (CLONE / path).is_file(), f"{document}: {path}"
    for module in re.findall(MODULE, text):
        parts = module.split(".")
        assert is_module(parts) or "/".join(parts) + ".py" in new, f"{document}: faithcheck.{module}"


# --- the names in docstrings and comments -----------------------------------------------------------------------------

SOURCE_FOLDERS = ("axioms", "explainers", "faithcheck", "models", "reports")
SOURCES = [path for folder in SOURCE_FOLDERS for path in (CLONE / folder).rglob("*.py")]


def prose(source):
    """The docstrings and comments of a source, those of attributes too."""
    statements = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr)]
    strings = [node.value for node in statements if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [*strings, *(token.string for token in tokens if token.type == tokenize.COMMENT)]


def resolves(name):
    """Whether a dotted name is a module, an attribute of one, or a field that a class annotates."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        owner, _, field = name.rpartition(".")
        return "." in owner and resolves(owner) and field in getattr(pkgutil.resolve_name(owner), "__annotations__", {})
    return True


def unresolved(source):
    """The dotted names of faithcheck in backticks, in docstrings and comments, that name nothing."""
    named = {name for text in prose(source) for name in re.findall(r"`(faithcheck(?:\.\w+)+)", text)}
    return sorted(name for name in named if not resolves(name))


def test_the_dotted_names_in_docstrings_and_comments_exist():
    found = {path.relative_to(CLONE).as_posix(): unresolved(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {path: names for path, names in found.items() if names} == {}


def test_the_documents_that_the_sources_name_exist():
    sources = [*SOURCES, *(CLONE / "tests").rglob("*.py"), CLONE / "Makefile", CLONE / "pyproject.toml"]
    named = {
        (path.relative_to(CLONE).as_posix(), name)
        for path in sources
        for name in re.findall(r"(?<![\w/])docs/[\w/]+\.(?:md|json|ipynb|yml|rst)", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 20
    assert [(path, name) for path, name in sorted(named) if not (CLONE / name).is_file()] == []


@pytest.mark.parametrize(
    ("name", "exists"),
    [
        ("faithcheck.models", True),
        ("faithcheck.models.pair", True),
        ("faithcheck.models.pair.Pair", True),
        ("faithcheck.models.pair.Pair.expected", True),
        ("faithcheck.check_explainer", True),
        ("faithcheck.models.pear", False),
        ("faithcheck.models.pair.Pear", False),
        ("faithcheck.models.pair.Pair.expectation_", False),
        ("faithcheck.pair", False),
    ],
)
@pytest.mark.parametrize("source", ['"""See `NAME`."""', "x = 1  # see ``NAME``", 'x = 1\n"""See `NAME`."""'])
def test_a_dotted_name_that_names_nothing_is_found(name, exists, source):
    assert unresolved(source.replace("NAME", name)) == ([] if exists else [name])
