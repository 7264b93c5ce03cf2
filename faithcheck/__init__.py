"""faithcheck: a test suite for feature-attribution explainers on Transformers.

The folders of the repository are packages below this one: `faithcheck.models`, `faithcheck.explainers`,
`faithcheck.axioms` and `faithcheck.reports`.
"""

import lazy_loader

# The public names are in __init__.pyi. Each is imported when it is first used:
# `import faithcheck` takes no time.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
