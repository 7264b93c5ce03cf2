"""Alignment: how well the maps of explainers agree with Leave-One-Out over a data set.

What belongs here: correlations, perturbation curves, their statistics, and the store that lets a run go on after it
was stopped. Not here: axioms, which are measured on single cases.
"""
