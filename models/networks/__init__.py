"""Small networks written for this project, each with the closed forms of explainers on it.

What belongs here: modules that pairs, axioms, explainers' expectations and experiments refer to. Closed forms that hold
for every model are in `faithcheck.models.closed_forms`. Not here: models of `transformers`
(`faithcheck.models.architectures`).
"""
