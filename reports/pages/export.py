"""``faithcheck report --figures``: every table of a page as CSV and LaTeX, every figure as SVG and PDF."""

import csv
import io
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from faithcheck.reports.documents.document import Document
from faithcheck.reports.documents.figure import Figure
from faithcheck.reports.pages import alignment, explanation, figures, report
from faithcheck.reports.pages.tables import Table
from faithcheck.reports.pages.visible import visible

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What a spreadsheet takes for the beginning of a formula, or passes over before one."""
_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "[": "{[}",
    "]": "{]}",  # after \\\\ a bracket would be read as a distance, and a star as its option
    "-": "{-}",  # two would become one dash
    "*": "{*}",
    "`": "{`}",
    "'": "{'}",
    "–": "--",
    "…": r"\dots{}",
    "\n": " ",
    "\t": " ",
}
"""Characters that LaTeX reads as something else."""
_GREEK = dict(
    zip(
        "αβγδεζηθικλμνξπρςστυφχψωΓΔΘΛΞΠΣΦΨΩ",
        (
            "alpha beta gamma delta varepsilon zeta eta theta iota kappa lambda mu nu xi pi rho varsigma sigma tau "
            "upsilon varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
        ).split(),
        strict=True,
    )
)
_MATHEMATICS = {
    **{letter: rf"\{name}" for letter, name in _GREEK.items()},
    "−": "-",
    "×": r"\times",
    "±": r"\pm",
    "≤": r"\leq",
    "≥": r"\geq",
    "≠": r"\neq",
    "≈": r"\approx",
    "→": r"\rightarrow",
    "←": r"\leftarrow",
    "∝": r"\propto",
    "∞": r"\infty",
    "∂": r"\partial",
    "∇": r"\nabla",
    "√": r"\surd",
    "✓": r"\checkmark",
    "✗": r"\times",
    "·": r"\cdot",
}
"""Characters that stand in the fonts of mathematics alone."""
_LAST_LATIN, _LACKING, _FURTHER = "ž", "ĦħĸĿŀŉŦŧ", "—‘’“”„†‡•‰‹›€"
"""The last letter that LaTeX's text fonts have, those before it that they lack, and further characters of theirs."""
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)


def page_of(document: Document) -> ModuleType:
    """The module with the pages of this kind of document: `to_markdown`, `to_html`, `to_terminal`, `exported`."""
    return {"alignment": alignment, "explanation": explanation}.get(document.NAME, report)


def exported(document: Document) -> tuple[list[Table], list[Figure]]:
    """The tables and the figures of a document of any kind; the numbers of the figures are tables too."""
    tables, drawn = page_of(document).exported(document)
    for figure in drawn:
        for numbers in figures.to_tables(figure):
            tables.append(replace(numbers, title=": ".join(filter(None, (figure.title, numbers.title)))))
    return tables, drawn


def write(folder: Path, tables: Iterable[Table], figures_: Iterable[Figure]) -> list[Path]:
    """Write every table and every figure, in files that are named by the titles; return their paths.

    The folder is made if it does not exist. Raises `OSError` if it cannot be made or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: dict[Path, None] = {}
    for path, content in _files(folder, tables, figures_, written):
        path.write_bytes(content)
        written[path] = None
    return list(written)


def _files(
    folder: Path, tables: Iterable[Table], figures_: Iterable[Figure], taken: Collection[Path]
) -> Iterator[tuple[Path, bytes]]:
    for table in tables:
        stem = _free(folder, table.title, (".csv", ".tex"), taken)
        yield stem.with_suffix(".csv"), to_csv(table).encode("utf-8")
        yield stem.with_suffix(".tex"), to_latex(table).encode("utf-8")
    for figure in figures_:
        stem = _free(folder, figure.title, (".svg", ".pdf"), taken)
        for kind in ("svg", "pdf"):
            yield stem.with_suffix(f".{kind}"), figures.to_file(visible(figure), kind)


def file_name(title: str) -> str:
    """A title as the name of a file, without an ending: letters, digits and hyphens of ASCII."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:80].strip("-") or "untitled"


def _free(folder: Path, title: str, suffixes: Collection[str], taken: Collection[Path]) -> Path:
    """A path for the title that no other table or figure has."""
    name, number = file_name(title), 1
    while any((folder / name).with_suffix(suffix) in taken for suffix in suffixes):
        number += 1
        name = f"{file_name(title)}-{number}"
    return folder / name


def to_csv(table: Table) -> str:
    """The table as CSV with a row of headings; numbers are numbers, and no cell is taken for a formula.

    A cell that a spreadsheet would read as a formula begins with an apostrophe, which it does not show.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerows([_csv_cell(cell) for cell in row] for row in visible([table.titles, *table.rows]))
    return file.getvalue()


def _csv_cell(cell: object) -> str:
    text = str(cell)
    number = text.replace("−", "-")  # the true minus of a page is no number elsewhere
    if _NUMBER.fullmatch(number):
        return number
    return f"'{text}" if text.startswith(FORMULA) else text


def to_latex(table: Table) -> str:
    """The table in LaTeX, with the rules of the package booktabs; words on the left, numbers on the right."""
    places = "".join("l" if column.words else "r" for column in table.columns)
    lines = [" & ".join(map(latex, row)) + r" \\" for row in visible([table.titles, *table.rows])]
    caption = latex(visible(": ".join(filter(None, [table.title, table.note]))))
    return "\n".join(
        [
            r"% needs \usepackage{booktabs,amssymb}, and \usepackage[T1]{fontenc}",
            r"\begin{table}",
            rf"\caption{{{caption}}}",
            rf"\begin{{tabular}}{{{places}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def latex(text: object) -> str:
    """Text without any LaTeX of its own; a character that pdfLaTeX's fonts lack is its code, ``[U+4E2D]``."""
    return "".join(map(_latex, str(text)))


def _latex(character: str) -> str:
    if character in _LATEX:
        return _LATEX[character]
    if character in _MATHEMATICS:
        return f"${_MATHEMATICS[character]}$"
    place, plain = unicodedata.decomposition(character).partition(" ")[0], unicodedata.normalize("NFKD", character)
    if place in ("<super>", "<sub>") and plain.isascii():
        return f"${'^' if place == '<super>' else '_'}{{{plain}}}$"
    if character in _FURTHER or (character <= _LAST_LATIN and character not in _LACKING):
        return character
    return f"{{[}}U+{ord(character):04X}{{]}}"
