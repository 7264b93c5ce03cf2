"""The notebook of the documents runs, and shows what it showed when it was stored."""

import nbformat
import pytest

from faithcheck.tests.helpers.notebook import NOTEBOOK, cells_of_code, executed, texts

pytestmark = pytest.mark.skipif(not NOTEBOOK.is_file(), reason="the documents are in the clone, not in the wheel")


@pytest.mark.slow
def test_the_notebook_runs_and_its_stored_outputs_are_those_of_the_run():
    stored, fresh = nbformat.read(NOTEBOOK, as_version=4), executed()
    nbformat.validate(stored)
    for before, after in zip(cells_of_code(stored), cells_of_code(fresh), strict=True):
        assert texts(before) == texts(after), "store the outputs again: python tests/helpers/notebook.py"
        assert before.execution_count == after.execution_count
    shown = "".join(text for cell in cells_of_code(stored) for text in texts(cell))
    assert "#c0272d" in shown, "no red report is shown"
    assert "#1a7f4b" in shown, "no green report is shown"
