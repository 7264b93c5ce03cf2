"""The rules of Layer-wise Relevance Propagation, one family of operations a module.

A module here holds the rules of its family, and declares the family's operations with their traits and their rule for
all methods; `faithcheck.explainers.lrp.operations` finds every module in this folder. A new rule is one new file here.
Not here: the tables of the methods (`epsilon_lrp`, `attnlrp` and `cplrp`, one folder up). The reason why rules are
modified gradients stands in `modified_gradient`. Each rule is tested against a slow oracle of its equation.
"""
