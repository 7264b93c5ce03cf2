"""Mask gates: explainers that estimate Leave-One-Out for all features in few forward and backward passes.

What belongs here: explainers that differentiate the output with respect to the removal of a feature. Not here:
removals themselves (`faithcheck.explainers.loo`).
"""
