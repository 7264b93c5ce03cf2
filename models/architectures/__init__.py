"""Families of `transformers` models: small base models of each family, and a uniform view of its layers.

One family a file (`bert`, `gpt2`, …), each with an `ARCHITECTURE`; the files are found without being listed anywhere.
What belongs here: how to build a small model of a family, and how to read its layers as `TransformerLayer`.
What does not: transforms and pairs (`faithcheck.models.pairs`), and the loading of trained models
(`faithcheck.models.pretrained`).
"""
