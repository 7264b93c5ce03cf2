"""What should hold: one axiom a file, each a plain function that returns a measurement; and how they are settled."""

from faithcheck.axioms.engine.suite import AXIOMS, Check, Record, Settings, check_explainer, plan
from faithcheck.axioms.engine.verdicts import Measurement, settle

__all__ = ["AXIOMS", "Check", "Measurement", "Record", "Settings", "check_explainer", "plan", "settle"]
