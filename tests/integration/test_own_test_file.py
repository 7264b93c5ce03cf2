"""`@parametrize_with_axioms` in a user's own test file, run by pytest-xdist: the same tests, in every process."""

import re

import pytest

from faithcheck.tests.helpers.processes import run

PAIRS = ("product.x1x2x3", "product.n4_depths_2331")

THEIR_TESTS = """
from faithcheck import parametrize_with_axioms


class Sizes:
    name = "sizes"
    claims = {"invariance", "completeness"}

    def attribute(self, model, case):
        return case.inputs.abs()


@parametrize_with_axioms(
    [Sizes()],
    axioms=["invariance", "completeness"],
    pairs=["product.x1x2x3", "product.n4_depths_2331"],
    expected_failures={"completeness-sizes-product.x1x2x3.*": "sizes are no shares"},
)
def test_axioms(check):
    check()
"""


@pytest.mark.slow
def test_a_test_file_is_settled_by_two_processes(tmp_path):
    """pytest-xdist refuses to run where two processes collect other tests, or the same in another order."""
    (tmp_path / "test_theirs.py").write_text(THEIR_TESTS)
    done = run(tmp_path, "-m", "pytest", "-q", "-rA", "--tb=no", "-p", "no:cacheprovider", "-n2")
    assert done.returncode == 1
    lines = re.findall(r"^(PASSED|FAILED|XFAIL) \S*\[(\S+)\]", done.stdout, flags=re.MULTILINE)
    assert {name: kind for kind, name in lines} == {
        **{f"invariance-sizes-{pair}": "PASSED" for pair in PAIRS},
        **{f"completeness-sizes-{PAIRS[0]}.{side}": "XFAIL" for side in "fg"},
        **{f"completeness-sizes-{PAIRS[1]}.{side}": "FAILED" for side in "fg"},
        "claim-sizes-completeness": "PASSED",
        "claim-sizes-invariance": "PASSED",
    }
