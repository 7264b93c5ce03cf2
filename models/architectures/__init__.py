"""Families of `transformers` models: small base models of each, and where each keeps its weights.

One family a file. What belongs here: how a family is built small, and how its layers are read as `TransformerLayer`s.
Not here: transforms and pairs made from these models (`faithcheck.models.pairs`), and loading of trained models
(`faithcheck.models.pretrained`).
"""
