"""Mutation testing of what judges: the axioms and the rules of relevance. docs/proof.md has its figures."""
