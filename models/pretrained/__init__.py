"""Trained `transformers` models of text and images: `faithcheck.models.pretrained.loading.load` loads each of them.

What belongs here: loading a model by name or path, and turning texts or images into cases of it. Not here: data sets
(`faithcheck.models.data`).
"""

from pathlib import Path

SENTIMENT = Path(__file__).parent / "sentiment"
"""The folder of the project's own sentiment model, a 12-layer BERT, and of its sentences."""
