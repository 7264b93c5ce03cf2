"""Tables as CSV and LaTeX, figures as SVG and PDF: named by their titles, safe, and the same each time."""

import csv
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest

from faithcheck.cli.main import main
from faithcheck.reports.documents.document import save
from faithcheck.reports.pages import export
from faithcheck.reports.pages.export import exported
from faithcheck.reports.pages.tables import plain_table
from faithcheck.tests.helpers.documents import (
    alignment,
    document,
    explanation,
    figure_content,
    record,
    shown,
    typed,
)

HOSTILE = [
    "=1+1",
    "+cmd",
    "-x",
    "@SUM(A1)",
    "\t=1",
    r"\input{/etc/passwd}",
    "50 % & $x_1^2$ #~{}",
    "[3cm] * \x1b[31m \u202e",
    'a "b", <c> | d',
    "--",
]


def hostile_table():
    rows = [[text, text, 1.5, "−0.25"] for text in HOSTILE]
    return plain_table("Hostile & $x$", "50 % of = \\these", ["=name", "text", "r", "Δ"], rows)


def of_each_kind():
    aligned = alignment(loo=(1.0, 0.5), attnlrp=(0.5, 0.25))
    return {
        "suite": document([record("holds"), record("broken claim")], figures=[figure_content()]),
        "alignment": typed({**aligned, **shown("loo", "attnlrp")}),
        "explanation": typed(explanation()),
    }


@pytest.mark.parametrize("kind", of_each_kind())
def test_every_table_and_figure_of_a_document_is_written(kind, tmp_path, capsys):
    content = of_each_kind()[kind]
    save(content, tmp_path / "results.json")
    folder = tmp_path / "new" / "figures"
    assert main(["report", str(tmp_path / "results.json"), "--figures", str(folder)]) == 0
    printed = capsys.readouterr().out.splitlines()
    written = sorted(path.name for path in folder.iterdir())
    assert sorted(line.removeprefix(f"written: {folder}/") for line in printed) == written
    tables, drawn = exported(content)
    assert tables
    assert drawn or kind == "explanation"
    assert [sum(name.endswith(ending) for name in written) for ending in (".csv", ".tex", ".svg", ".pdf")] == [
        *[len(tables)] * 2,
        *[len(drawn)] * 2,
    ]
    for path in folder.iterdir():
        if path.suffix == ".csv":
            rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
            assert len({len(row) for row in rows}) == 1
            assert len(rows) > 1
        elif path.suffix == ".svg":
            ElementTree.parse(path)
            assert "<text" not in path.read_text(encoding="utf-8"), "the letters are drawn: no font is needed"
        elif path.suffix == ".pdf":
            assert b"/FontFile2" in path.read_bytes(), "the fonts are in the file"


def test_the_files_are_the_same_each_time_and_hold_no_date(tmp_path):
    tables, drawn = exported(of_each_kind()["suite"])
    first, second = (export.write(tmp_path / name, tables, drawn) for name in ("first", "second"))
    assert [path.name for path in first] == [path.name for path in second]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
        assert not re.search(rb"CreationDate|<dc:date", one.read_bytes()), one.name


def test_names_are_made_from_titles_and_none_is_taken_twice(tmp_path):
    assert export.file_name("Δ: r, special tokens ≤ 3 / Ärger") == "r-special-tokens-3-arger"
    assert export.file_name("../../etc/passwd") == "etc-passwd"
    assert export.file_name("…") == "untitled"
    tables = [plain_table(title, "", ["x"], [["1"]]) for title in ("A b", "a B", "a-b 2")]
    names = [path.name for path in export.write(tmp_path, tables, [])]
    assert names == ["a-b.csv", "a-b.tex", "a-b-2.csv", "a-b-2.tex", "a-b-2-2.csv", "a-b-2-2.tex"]


def test_no_cell_of_a_csv_is_a_formula_and_numbers_stay_numbers():
    rows = list(csv.reader(export.to_csv(hostile_table()).splitlines()))
    assert rows[0][0] == "'=name"
    for row in rows[1:]:
        assert not row[0].startswith(("=", "+", "-", "@", "\t", "\r"))
        assert [float(cell) for cell in row[2:]] == [1.5, -0.25]
    cells = plain_table("", "", ["x"], [["-1e-05"], ["+0.5"], ["−3"], ["-1+1"], ["1e5x"]])
    assert export.to_csv(cells).split("\r\n")[1:-1] == ["-1e-05", "+0.5", "-3", "'-1+1", "1e5x"]


def test_no_latex_of_a_cell_is_left():
    source = export.to_latex(hostile_table())
    body = source[source.index(r"\toprule") :]
    assert r"\input" not in source
    assert r"\textbackslash{}input\{/etc/passwd\}" in source
    assert r"50 \% \& \$x\_1\textasciicircum{}2\$ \#\textasciitilde{}\{\}" in source
    assert r"{[}3cm{]} {*} \textbackslash{}x1b{[}31m \textbackslash{}u202e" in source
    rows = [line for line in body.splitlines() if line.endswith(r" \\")]
    assert [len(re.findall(r"(?<!\\)&", row)) for row in rows] == [3] * (1 + len(HOSTILE))
    assert not re.search(r"(?<!\\)[%#~^]", body)
    assert r"1.5 & $-$0.25 \\" in source
    assert all(rule in source for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\begin{tabular}{llrr}"))


def test_what_the_fonts_of_latex_lack_is_written_out():
    assert (
        export.latex("½ é “x” lengthᵉ₂ α·Δ ≤ 中")
        == r"½ é “x” length$^{e}$$_{2}$ $\alpha$$\cdot$$\Delta$ $\leq$ {[}U+4E2D{]}"
    )
    every = "".join(map(chr, range(ord(" "), 0xD800)))
    left = set(export.latex(every)) - set(map(chr, range(ord("ž") + 1)))
    assert left == set("—‘’“”„†‡•‰‹›€")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_the_tables_compile(tmp_path):
    tables = [table for content in of_each_kind().values() for table in exported(content)[0]]
    characters = [[chr(code)] for code in [*range(ord("\xa0"), 0x400), *range(0x2000, 0x2300)]]
    every = plain_table("every character", "", ["x"], [["".join(map("".join, characters))]])
    body = "\n".join(export.to_latex(table) for table in [hostile_table(), every, *tables])
    preamble = r"\documentclass{article}\usepackage[T1]{fontenc}\usepackage{booktabs,amssymb}"
    (tmp_path / "a.tex").write_text(rf"{preamble}\begin{{document}}{body}\end{{document}}", encoding="utf-8")
    subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "a.tex"], cwd=tmp_path, check=True)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path, capsys):
    save(of_each_kind()["suite"], tmp_path / "results.json")
    (tmp_path / "file").write_text("")
    assert main(["report", str(tmp_path / "results.json"), "--figures", str(tmp_path / "file" / "figures")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
