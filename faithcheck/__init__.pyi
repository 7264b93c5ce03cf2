from .check import Check as Check
from .check_report import CheckReport as CheckReport
from .parametrize import axiom_checks as axiom_checks
from .parametrize import parametrize_with_axioms as parametrize_with_axioms
from .python_api import check_explainer as check_explainer
from .request import Settings as Settings
