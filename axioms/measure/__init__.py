"""What all axioms share: how they register, how gaps are scaled, and how a measurement settles against an expectation.

Not here: axioms, which stand in `faithcheck.axioms`.
"""
