"""The cost of explainers. Times are reported and never fail a test."""
