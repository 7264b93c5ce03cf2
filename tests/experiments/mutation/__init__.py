"""Mutation testing of what judges: the axioms and the rules of relevance. docs/mutation.md tells more."""
