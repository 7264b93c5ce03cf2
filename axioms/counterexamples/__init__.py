"""The search for counterexamples to invariance: equal expressions are drawn and rewritten, and their maps compared.

What belongs here: rewrites and counterexamples, how they are drawn, compared, searched and saved. Not here: the axiom
`faithcheck.axioms.generated`, which runs the search, and the identities themselves (`faithcheck.models.networks`).
"""
