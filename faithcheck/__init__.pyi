from .check import Check as Check
from .check_report import CheckReport as CheckReport
from .check_report import check_explainer as check_explainer
from .parametrize import axiom_checks as axiom_checks
from .parametrize import parametrize_with_axioms as parametrize_with_axioms
from .request import Settings as Settings
