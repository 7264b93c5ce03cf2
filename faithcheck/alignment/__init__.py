"""Alignment: how well the maps of explainers agree with Leave-One-Out over a data set.

What belongs here: perturbation curves, correlations over examples, their statistics, and the store from which a stopped
run resumes. Not here: axioms, which are measured on single cases.
"""
