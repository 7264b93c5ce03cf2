"""Pairs of models that compute one function in two ways: one family a file, listed nowhere.

A file has how the two models are built, why they are equal, and what theory expects of each explainer. Small networks
that explainers' expectations also refer to are in `faithcheck.models.networks`, with their closed forms.
"""
