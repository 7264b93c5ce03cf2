"""``faithcheck recommend``: what is said of which explainer to use, and the ranking."""

import json

import pytest

from faithcheck.cli.main import main
from faithcheck.reports.pages import recommendation
from faithcheck.tests.helpers import small_models
from faithcheck.tests.helpers.documents import alignment, typed
from faithcheck.tests.helpers.small_models import WORDS

FIGURE = "pearson_no_special"


def document(loo_cost=20.0, **explainers):
    """An alignment of explainers: {name: (r of each of 8 texts, cost)}, or why one was refused."""
    content = alignment(loo=(1.0, 0.5), **{k: v if isinstance(v, str) else (0.0, 0.5) for k, v in explainers.items()})
    for row in content["explainers"]:
        if row["refused"]:
            continue
        r, row["cost"] = explainers.get(row["name"], ([1.0] * 8, loo_cost))
        row["examples"] = {FIGURE: r}
        row["figures"][FIGURE] = {"mean": sum(r) / 8, "low": min(r), "high": max(r), "n": 8}
    return typed(content)


def around(r):
    """Eight values with this mean."""
    return [r + 0.01 * i for i in (-4, -3, -2, -1, 1, 2, 3, 4)]


def test_the_best_is_named_with_its_reason_and_the_others_with_theirs():
    said = recommendation.advice(document(good=(around(0.95), 5.0), poor=(around(0.5), 2.0), noise=(around(0.0), 2.0)))
    assert said == [
        "Use good: it follows Leave-One-Out best, mean r 0.950 [0.910, 0.990] over 8. It costs 5.0 forward passes, "
        "where Leave-One-Out costs 20.0.",
        "Not poor, noise: the mean r is lower, see below.",
        "Do not trust noise here: r may as well be 0.",
    ]


def test_an_equal_one_that_is_cheaper_is_named():
    said = recommendation.advice(document(best=(around(0.952), 5.0), same=(around(0.951)[::-1], 2.0)))
    assert "Cheaper, and no difference from best shows: same." in said


def test_leave_one_out_is_recommended_where_it_costs_no_more():
    (first, *_) = recommendation.advice(document(loo_cost=4.0, gate=(around(0.95), 5.0)))
    assert first.startswith("Use Leave-One-Out: it costs no more than gate, which follows it best")


def test_where_none_is_close_leave_one_out_is_named():
    said = recommendation.advice(document(gate=(around(0.7), 5.0)))
    assert "Where single features decide, use Leave-One-Out itself: r may be below 0.9." in said


def test_without_an_explainer_leave_one_out_is_left():
    assert recommendation.advice(document(gate="no rule"))[0].startswith("Use Leave-One-Out: no other explainer")
    assert "gate was not measured: no rule" in recommendation.to_terminal(document(gate="no rule"))


def test_the_ranking_has_the_differences_from_the_best():
    shown = recommendation.ranking(document(poor=(around(0.5), 2.0), good=(around(0.95), 5.0)))
    assert [row[0] for row in shown.rows] == ["good", "poor"]
    assert shown.rows[1][3].startswith("0.450 [0.450, 0.450]")


@pytest.mark.parametrize("unknown", ["--curves", "--chunk=3"])
def test_options_of_align_that_a_ranking_does_not_have_are_refused(unknown, capsys):
    assert main(["recommend", "model", unknown]) == 2
    assert "unknown argument" in capsys.readouterr().err


def test_a_missing_model_is_refused_in_one_line(tmp_path, capsys):
    assert main(["recommend", str(tmp_path / "none")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_model_is_ranked_from_its_folder(tmp_path, capsys):
    model = small_models.save("bert", tmp_path / "bert")
    lines = [" ".join(WORDS[5 + (3 * i + j) % 10] for j in range(5)) for i in range(3)]
    (tmp_path / "texts.tsv").write_text("\n".join(["sentence", *lines]))
    options = ["--data", str(tmp_path / "texts.tsv"), "--cache", str(tmp_path), "--json", str(tmp_path / "r.json")]
    names = ("attnlrp", "readout_gate")
    assert main(["recommend", str(model), *options, *(f"--explainer={name}" for name in names)]) == 0
    assert capsys.readouterr().out.startswith("Use ")
    content = json.loads((tmp_path / "r.json").read_text())
    assert {row["name"] for row in content["explainers"]} == {"loo", *names}
