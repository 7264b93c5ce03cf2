"""Leave-One-Out: the ways to remove a feature, the reference explainer, and its version within a budget.

What belongs here: explainers that remove features and run the model again. Not here: gates, which estimate the effect
of a removal by a gradient (`faithcheck.explainers.gates`).
"""
