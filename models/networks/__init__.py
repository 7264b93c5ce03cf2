"""Small networks written for this project, each with the closed forms of explainers on it.

Pairs, axioms, explainers' expectations and experiments refer to them; models of `transformers` are in
`faithcheck.models.architectures`.
"""
