"""Layer-wise Relevance Propagation: operations, rules, the engine that applies them, the methods and the ledger.

What belongs here: everything that propagates relevance from operation to operation. Not here: gates and Leave-One-Out.
"""
