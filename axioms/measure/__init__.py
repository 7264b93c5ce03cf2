"""What all axioms share: how they register, how gaps are scaled, and how a measurement settles."""
