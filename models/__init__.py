"""What is explained: pairs of equivalent models, their cases, and the data and training of small models.

What belongs here: pairs, base models, data sets, and the loading of trained models.
What does not: explainers (`faithcheck.explainers`) and axioms (`faithcheck.axioms`), which this package never imports.
"""

import lazy_loader

# The public names are in __init__.pyi. Each is imported when it is first used:
# errors and texts must be importable without torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
