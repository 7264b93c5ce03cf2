"""Trained `transformers` models of text and images, which `loading.load` loads by name or path, and their cases."""

from pathlib import Path

SENTIMENT = Path(__file__).parent / "sentiment"
"""The folder of the project's own sentiment model, a 12-layer BERT, and of its sentences."""
