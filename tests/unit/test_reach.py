"""How far imports reach, circles, and sizes: figures that can only fall until they reach their goal."""

import ast

import pytest

from faithcheck.tests.helpers import reach

FIGURES = {
    "files that axioms/invariance.py reaches": lambda: len(reach.reach("faithcheck.axioms.invariance")),
    "files that the executor of checks reaches": lambda: len(reach.reach("faithcheck.check")),
    "files that leave_one_out.py reaches": lambda: len(reach.reach("faithcheck.explainers.loo.leave_one_out")),
    "files that readout_gate.py reaches": lambda: len(reach.reach("faithcheck.explainers.gates.readout_gate")),
    "circles": lambda: len(reach.circles()),
    "imports of a higher folder": lambda: len(reach.imports_upwards()),
    "modules of reports/ that reach torch": lambda: len(reach.reports_with_torch()),
    "lines of the product": lambda: reach.sizes()[0],
    "lines of the largest file": lambda: reach.sizes()[1],
    "files of at most 60 lines": lambda: reach.sizes()[2],
}
LIMITS = {
    "files that axioms/invariance.py reaches": (8, 12),
    "files that the executor of checks reaches": (34, 35),
    "files that leave_one_out.py reaches": (13, 8),
    "files that readout_gate.py reaches": (34, 25),
    "circles": (0, 0),
    "imports of a higher folder": (0, 0),
    "modules of reports/ that reach torch": (0, 0),
    "lines of the product": (44_200, 42_000),
    "lines of the largest file": (420, 400),
    "files of at most 60 lines": (78, 60),
}
"""The most that a figure may be today, and the goal. Lower the first whenever the figure falls."""


@pytest.mark.parametrize("figure", LIMITS)
def test_a_figure_does_not_grow(figure, capsys):
    found, (today, goal) = FIGURES[figure](), LIMITS[figure]
    with capsys.disabled():
        print(f"\n{figure}: {found:,}; at most {today:,}; goal {goal:,}", end="")
    assert found <= today, "python -m faithcheck.tests.helpers.reach MODULE says which files these are"


@pytest.mark.parametrize(
    ("source", "imported"),
    [
        ("import faithcheck.models.case", {"faithcheck.models.case"}),
        ("from faithcheck.models import case, Case", {"faithcheck.models.case", "faithcheck.models"}),
        ("from .case import Case", {"faithcheck.models.case"}),
        ("def f():\n    from faithcheck.models.case import Case", {"faithcheck.models.case"}),
        ("import_module('faithcheck.models.case')", {"faithcheck.models.case"}),
        ("importlib.import_module('faithcheck.models.case')", {"faithcheck.models.case"}),
        ("if TYPE_CHECKING:\n    import faithcheck.models.case", set()),
        ("import torch", set()),
    ],
)
def test_the_imports_of_a_source_are_found_wherever_they_stand(source, imported):
    assert set(reach.imported_by(ast.parse(source), "faithcheck.models")) == imported


def test_a_circle_is_found(monkeypatch):
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}
    monkeypatch.setattr(reach, "modules", lambda: graph)
    monkeypatch.setattr(reach, "imports", graph.__getitem__)
    assert reach.circles() == [["b", "c"]]
    assert reach.reach("a") == {"b", "c"}
