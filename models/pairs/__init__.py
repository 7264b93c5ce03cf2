"""Pairs of models that compute one function in two ways: one family a file. No list names the files.

What belongs here: how the two models of a pair are built, why they are equal, and what theory expects of each
explainer; in `cases`, the random examples that several families share. Not here: the types
(`faithcheck.models.pair`, `faithcheck.models.transform`); small networks that explainers' expectations also refer to,
with their closed forms (`faithcheck.models.networks`).
"""
