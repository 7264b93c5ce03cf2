"""Families of `transformers` models: small base models of each family, and a uniform view of its layers.

One family a file (`bert`, `gpt2`, …), each with an `ARCHITECTURE`; the files are found without being listed anywhere.
"""
