"""Small networks written for this project: linear attention, symbolic expressions, a softmax row, derived models.

What belongs here: modules that pairs, axioms and experiments build on, with their closed forms. Not here: models of
`transformers` (`faithcheck.models.architectures`) and training (`faithcheck.models.training`).
"""
