"""Executing a notebook of the documents. As a program, it stores the outputs: ``python tests/helpers/notebook.py``."""

import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "notebook.ipynb"
KERNEL = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def executed(path=NOTEBOOK):
    """The notebook with the outputs of a new run, without what depends on the machine and the day."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, record_timing=False).execute(cwd=path.parent)
    for cell in cells_of_code(notebook):
        # Libraries warn on stderr of what is not installed, such as widgets.
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata = nbformat.from_dict(KERNEL)
    return notebook


def cells_of_code(notebook):
    """The cells that have outputs."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def texts(cell):
    """The texts of a cell's outputs, in each format; round-off, which differs between machines, is ε."""
    outputs = [
        output.get("text") or "\n".join(text for _, text in sorted(output.data.items())) for output in cell.outputs
    ]
    return [re.sub(r"\d(\.\d+)?e-1\d", "ε", text) for text in outputs]


if __name__ == "__main__":
    nbformat.write(executed(), NOTEBOOK)
