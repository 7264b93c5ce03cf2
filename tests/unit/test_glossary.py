"""The repository uses the words of docs/reference/glossary.md: words that were given up do not come back."""

import re
from functools import cache
from pathlib import Path

import pytest

import faithcheck.tests

CLONE = Path(faithcheck.tests.__path__[0]).resolve().parent
FOLDERS = ("axioms", "docs", "explainers", "faithcheck", "models", "reports", "tests")
EXEMPT = {
    "CHANGELOG.md": "it says what was renamed",
    "tests/unit/test_glossary.py": "it lists the words that were given up",
}

# {a regular expression of what was given up: what to write instead}
GIVEN_UP = {
    # Names. Word boundaries keep them from matching inside other words.
    r"(?i)(?<![a-z])gauges?(?![a-z])": "function-preserving transform, short: transform",
    r"(?i)(?<![a-z])hosts?(?![a-z])": "base model",
    r"(?<!csv\.)\b_?[Rr]eader\b(?=\(|\.\w|:|=| =|\))": "embedding_model",
    r"\*\*\s*cells\(|\bimport\b[^\n]*\bcells\b|\bmodels\.cells\b": "expect",
    r"\*\*\s*relevance\(|\bpair import\b[^\n]*\brelevance\b": "expect_lrp",
    r"\bFUNCTION\b": "INVARIANT_BY_DEFINITION",
    r"\bcase\.context\b|\bCase\.context\b": "forward_arguments",
    r"\bcase\.references\b|\bCase\.references\b": "replacements",
    r"\bcase\.present\b|\bcase\.ordinary\b": "unpadded, non_special",
    r"\bbypassing\(|_bypassing\b|\"bypassing\"": "bypassed_softmax",
    r"\b(Stated|Bookkeeper|Throughout|OfRows|Watched)\b": "the name in docs/reference/glossary.md",
    r"\b(second_takes_all|by_rows|linear_in_one)\b": "the rule's name in explainers/lrp/rules/",
    r"\bexplainers\.(bypass|parts|origins|adapt|rollout|readout|budget|removal)\b": "the module's new folder",
    r"\breports\.(cli|words|render)\b": "reports.commands, reports.pages",
    # Private words.
    r"(?i)\b(lend|lends|lending|lent)\b": "copy, wrap",
    r"(?i)\breckon(s|ed|ing)?\b": "compute",
    r"(?i)\ba seam\b": "a method that subclasses override",
    r"(?i)\bin earnest\b": "removed by a forward pass",
    r"(?i)\bat hand\b": "available",
    r"(?i)\btold apart\b(?! by\b)": "distinguish (`told apart by` is a key of results documents)",
    # Documents that readers do not have.
    r"\bFACTS\b": "the paper and equation, or 'derived here'",
    r"(?i)\bthe issue asks\b|\bthe issue's\b|\bDESIGN\.md\b": "the reason itself",
}


@cache
def texts():
    """``(path, text)`` of every source, template and document of the repository."""
    paths = [*CLONE.glob("*.py"), *CLONE.glob("*.md")]
    for folder in FOLDERS:
        for suffix in ("py", "md", "j2"):
            paths += (CLONE / folder).rglob(f"*.{suffix}")
    names = sorted(path.relative_to(CLONE).as_posix() for path in paths)
    return [(name, (CLONE / name).read_text(encoding="utf-8")) for name in names if name not in EXEMPT]


def places(pattern, text):
    """The lines of a text in which a pattern matches: ``number: line``."""
    if not re.search(pattern, text):
        return []
    lines = enumerate(text.splitlines(), 1)
    return [f"{number}: {line.strip()}" for number, line in lines if re.search(pattern, line)]


@pytest.mark.parametrize(("pattern", "instead"), GIVEN_UP.items(), ids=list(GIVEN_UP.values()))
def test_a_word_that_was_given_up_does_not_come_back(pattern, instead):
    uses = [f"{path}:{place}" for path, text in texts() for place in places(pattern, text)]
    assert not uses, f"write {instead!r} instead:\n" + "\n".join(uses)


@pytest.mark.parametrize("word", ["gauge", "Host", "case.context", "a seam", "told apart", "FACTS"])
def test_the_patterns_find_a_word_that_was_given_up(word):
    assert any(places(pattern, f"x = 1  # {word}") for pattern in GIVEN_UP)


@pytest.mark.parametrize("word", ["ghost", "case.inputs", "seamless", "told apart by", "a reader of the report"])
def test_the_patterns_leave_other_words_alone(word):
    assert not any(places(pattern, f"x = 1  # {word}") for pattern in GIVEN_UP)


def test_the_glossary_has_one_meaning_for_each_term():
    glossary = (CLONE / "docs/reference/glossary.md").read_text(encoding="utf-8")
    terms = [term for term in re.findall(r"^\| ([^|]+) \| [^|]+ \|$", glossary, flags=re.MULTILINE) if term != "term"]
    assert len(terms) > 50
    assert len(set(terms)) == len(terms)


def test_the_names_in_the_glossary_are_names_in_the_code():
    glossary = (CLONE / "docs/reference/glossary.md").read_text(encoding="utf-8")
    code = "\n".join(text for name, text in texts() if name.endswith(".py"))
    names = re.findall(r"`(?:Case\.)?(\w{4,})`", glossary)
    assert len(names) > 20
    assert [name for name in names if not re.search(rf"\b{name}\b", code)] == []


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_the_glossary_is_linked(document):
    assert "docs/reference/glossary.md" in (CLONE / document).read_text(encoding="utf-8")
