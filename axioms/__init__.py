"""The axioms that attributions should satisfy: each module is one axiom, a plain function that returns a measurement.

What belongs here: axioms alone. Each registers itself with the decorator `faithcheck.axioms.measure.axiom.axiom`, so a
new axiom is one new file. Not here: how checks are planned, run and settled (`engine`), the search for counterexamples
(`counterexamples`), and agreement with Leave-One-Out over a data set (`alignment`).
"""

import lazy_loader

# The public names are in __init__.pyi. Each is imported when it is first used:
# `engine.statuses` must be importable without torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
