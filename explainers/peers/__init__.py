"""Adapters to peers, the explainers of other libraries, so that the suite can check them: the extra ``peers``.

An adapter follows this project's protocol: it passes a case to the peer and returns the peer's attribution, computed
with the peer's own defaults. It changes only the shape: it sums the attributions of a feature's coordinates, and it
explains the examples one at a time if the case has forward arguments (an attention mask). If the peer refuses a model,
the adapter refuses it with the peer's message. If the peer's attribution is wrong, the adapter does not correct it: the
axioms find it. ``claims`` are the peer's own, from its documentation; ``origin`` is its name and version.

A peer is imported when it first explains, not before. A peer that leaves something behind on a model (`Peer.leaves`,
measured by ``pytest -m peers``) gets a copy of the model.

An adapter to a library that runs in the same process belongs here, one module per library. A library that needs an
environment of its own has a worker in `workers` and an explainer in `own_environment`.
"""
