"""What is explained: pairs of equivalent models, their cases, data sets, and the loading of trained models.

Explainers (`faithcheck.explainers`) and axioms (`faithcheck.axioms`) are elsewhere; this package never imports them.
"""

import lazy_loader

# The public names are in __init__.pyi. Each is imported when it is first used:
# errors and texts must be importable without torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
