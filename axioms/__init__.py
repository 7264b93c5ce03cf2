"""The axioms that attributions should satisfy: each is a plain function that returns a measurement.

Each registers itself by the decorator `faithcheck.axioms.measure.axiom.axiom`: a new axiom is one new file. Axioms of
one idea share a file.
"""

import lazy_loader

# The public names are in __init__.pyi. Each is imported when it is first used:
# `measure.statuses` and `measure.record` must be importable without torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
