"""Every model class of the installed `transformers`, small: which there are, and how each is built with random weights.

What belongs here: the list of classes, which `transformers` itself gives, their configurations made small, and the
wrappers that call them on embeddings or patches. What does not: families with transforms of their own
(`faithcheck.models.architectures`), and trained models (`faithcheck.models.pretrained`).
"""
