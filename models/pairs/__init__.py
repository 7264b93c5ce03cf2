"""Pairs of models that compute one function in two ways: one family a file, found without being listed anywhere.

What belongs here: how two models of a pair are built, why they are equal, and what theory expects of each explainer.
Not here: the types (`faithcheck.models.pair`, `faithcheck.models.transform`).
"""
