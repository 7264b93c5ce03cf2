"""Trained `transformers` models from a folder or a hub: loading, tokenising, and making cases of texts and images.

What belongs here: whatever turns a name or a path into a model, and texts or images into cases. Not here: data sets
(`faithcheck.models.data`) and training (`faithcheck.models.training`).
"""
