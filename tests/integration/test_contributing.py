"""The snippets of CONTRIBUTING.md and README.md do what the text around them says."""

import re
from pathlib import Path

import pytest

import faithcheck.tests
from faithcheck.axioms.engine import suite
from faithcheck.explainers.registry import builtin_explainers
from faithcheck.models import pair, registered_pairs, transform
from faithcheck.models.architectures.base_models import BASE_MODELS

CLONE = Path(faithcheck.tests.__path__[0]).resolve().parent

pytestmark = pytest.mark.skipif(
    not (CLONE / "CONTRIBUTING.md").is_file(), reason="the text is in the clone, not in the wheel"
)


def snippets(document, word):
    """The fenced Python blocks of a document that hold a word."""
    blocks = re.findall(r"```python\n(.*?)```", (CLONE / document).read_text(encoding="utf-8"), flags=re.DOTALL)
    return [block for block in blocks if word in block]


def execute(snippet):
    """The names that a snippet defines."""
    names = {"__name__": "snippet"}
    exec(compile(snippet, "snippet", "exec"), names)
    return names


@pytest.fixture
def new_pair(monkeypatch):
    """The pair of the snippet, registered for this test alone."""
    before = registered_pairs()
    monkeypatch.setattr(pair, "_registry", dict(before))
    (snippet,) = snippets("CONTRIBUTING.md", "@equivalent_pair")
    assert len(snippet.splitlines()) <= 25
    execute(snippet)
    (name,) = registered_pairs().keys() - before.keys()
    return registered_pairs()[name]


def test_the_pair_is_a_pair_and_its_expectations_hold(new_pair, settings):
    checks = [
        check
        for axiom in ("equivalence", "invariance")
        for check in suite.plan(axiom, builtin_explainers().values(), [new_pair])
    ]
    records = [check.run(settings) for check in checks]
    assert {record.status for record in records if not record.passed} <= {"unsupported"}, records
    by_explainer = {record.explainer: record.status for record in records}
    assert by_explainer[None] == "holds"  # the equivalence of the pair
    assert all(by_explainer[explainer] == "holds" for _, explainer in new_pair.expected)
    assert new_pair.expected


def test_the_gauge_makes_pairs_of_every_architecture(monkeypatch, settings):
    before = registered_pairs()
    monkeypatch.setattr(pair, "_registry", dict(before))
    monkeypatch.setattr(transform, "_transforms", [])
    (snippet,) = snippets("CONTRIBUTING.md", "@transform")
    execute(snippet)
    made = {name: registered_pairs()[name] for name in registered_pairs().keys() - before.keys()}
    assert set(made) == {f"rescaling.query_key_{m.name}" for m in BASE_MODELS.values() if not m.variant}
    small = [made[f"rescaling.query_key_{base_model}"] for base_model in ("bert", "gpt2", "llama")]
    explainers = [builtin_explainers()[name] for name in ("loo", "attnlrp")]
    for axiom in ("equivalence", "invariance"):
        assert {check.run(settings).status for check in suite.plan(axiom, explainers, small)} == {"holds"}


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "README.md"])
def test_the_explainer_holds_what_it_claims(document, settings):
    (snippet,) = snippets(document, "def attribute")
    (explainer,) = (value() for value in execute(snippet).values() if hasattr(value, "attribute"))
    assert explainer.claims
    pairs = [pair for name, pair in registered_pairs().items() if name in {"product.x1x2x3", "control.mlp"}]
    records = suite.check_explainer(explainer, explainer.claims, pairs, settings)
    assert [record.status for record in records] == ["holds"] * len(records)
    assert records
