"""Mutation testing of what judges: the axioms and the rules of relevance. `campaign` runs it, docs/mutation.md tells."""
