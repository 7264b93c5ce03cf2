"""All axioms by name: every module of `faithcheck.axioms` is imported, and registers the axiom that it defines."""

import importlib
import pkgutil

import faithcheck.axioms
from faithcheck.axioms.measure.axiom import Axiom, registered

for _module in pkgutil.iter_modules(faithcheck.axioms.__path__, "faithcheck.axioms."):
    if not _module.ispkg:
        importlib.import_module(_module.name)

AXIOMS: dict[str, Axiom] = registered()
"""The axioms by name, in alphabetical order."""
