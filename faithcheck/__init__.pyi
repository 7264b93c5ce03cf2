from .reports.axiom_checks import axiom_checks as axiom_checks
from .reports.axiom_checks import parametrize_with_axioms as parametrize_with_axioms
from .reports.check_report import CheckReport as CheckReport
from .reports.check_report import check_explainer as check_explainer
