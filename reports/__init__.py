"""How people learn of it: typed documents, verdicts in words, tables and pages."""
