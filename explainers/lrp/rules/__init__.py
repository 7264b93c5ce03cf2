"""The rules of Layer-wise Relevance Propagation, one family of operations a module.

A module here holds the rules of its family, and declares the family's operations with their traits and their rule for
all methods; `faithcheck.explainers.lrp.operation_table` finds every module in this folder. A new rule is one new file.
Not here: the tables of the methods (`epsilon_lrp`, `attnlrp` and `cplrp`, one folder up). `modified_gradient` says why
rules are modified gradients. Each rule is tested against a slow oracle of its equation.
"""
