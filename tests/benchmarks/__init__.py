"""The cost of explainers: informs, and does not gate."""
