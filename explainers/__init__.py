"""Explainers: their protocol, the built-in explainers, and adapters for explainers of other libraries and of users.

A new explainer is one module here or in a subpackage: `loo` (Leave-One-Out and removals), `gates` (gates on features
that approximate Leave-One-Out in few passes), `lrp` (Layer-wise Relevance Propagation), `peers` (other libraries').
What is explained belongs in `faithcheck.models`; what should hold of an explainer belongs in `faithcheck.axioms`.
"""

import lazy_loader

# The public names are in __init__.pyi. Each is imported when it is first used:
# `names` must be importable without torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
