"""Mutation testing of what judges: the axioms and the rules of relevance. docs/results/proof.md has its figures."""
