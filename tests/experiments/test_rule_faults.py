"""Every rule of every LRP method is broken, one at a time, and a check must be red: by name, and by claims alone."""

import pytest

from faithcheck.explainers import CPLRP, AttnLRP, EpsilonLRP
from faithcheck.explainers.lrp.blockwise import BlockwiseLRP
from faithcheck.tests.helpers.rule_faults import red_by_claims, red_by_name, rule_faults

pytestmark = pytest.mark.power

REFUSED = "the model of its pair runs nothing else or runs it for every output, so that the explainer refuses it"
NO_FAULT = {
    ("leaky_relu", "plain gradient"): "f(αx) = αf(x) for α > 0: the plain gradient is f(x)/x",
    ("hardswish", "plain gradient"): "its operand is above 3, where hardswish(x) = x",
}
"""Changes of a rule that leave its relevance as it was."""
NOT_CAUGHT = {
    **dict.fromkeys(
        [(name, "left out") for name in ("cat", "clone", "exp", "linear", "rdiv", "reshape", "tanh")], REFUSED
    ),
    ("softmax", "left out"): "CP-LRP's rule: by claims both are methods of LRP",
}
"""What AttnLRP's claims alone do not show, and why."""


def test_attnlrp_by_its_claims_alone(table):
    faults = [f for f in rule_faults(AttnLRP()) if (f.operation, f.fault) not in NO_FAULT]
    caught = {fault: red_by_claims(fault) for fault in faults}
    missed = {(fault.operation, fault.fault) for fault, red in caught.items() if not red}
    table(
        {
            "title": "Wrong rules of AttnLRP",
            "note": "One rule is wrong at a time; a check on the pairs of its operation is red by the claims alone.",
            "columns": ["faults", "red", "red in two checks or more"],
            "rows": [[len(faults), len(faults) - len(missed), sum(len(red) > 1 for red in caught.values())]],
        }
    )
    assert missed == NOT_CAUGHT.keys()


@pytest.mark.parametrize("method", [AttnLRP, CPLRP, EpsilonLRP, BlockwiseLRP], ids=lambda method: method.__name__)
def test_by_name(method):
    """The faults that the claims do not show, for AttnLRP; all faults of the other methods."""
    faults = [f for f in rule_faults(method()) if (f.operation, f.fault) not in NO_FAULT]
    if method is AttnLRP:
        faults = [fault for fault in faults if (fault.operation, fault.fault) in NOT_CAUGHT]
    # CP-LRP's softmax is a constant already; of AttnLRP's, `probe.softmax` has the closed form of what it loses.
    faults = [fault for fault in faults if fault.operation != "softmax"]
    if method is EpsilonLRP:  # it divides by constants alone, and a multiple has its plain gradient
        faults = [fault for fault in faults if (fault.operation, fault.fault) != ("div", "plain gradient")]
    missed = {fault.id for fault in faults if not red_by_name(fault)}
    print(f"{method.__name__}: {len(faults) - len(missed)} of {len(faults)}")
    assert not missed
