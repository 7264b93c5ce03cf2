"""Training of the small models that this project ships or caches: digit classifiers, the sentiment BERT, a decoder.

What belongs here: training loops, and the cache of trained weights. Not here: loading of trained models
(`faithcheck.models.pretrained`).
"""
