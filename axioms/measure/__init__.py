"""The engine: it plans checks, runs each in isolation, and settles each measurement against what theory expects.

What belongs here: everything that all axioms share. Not here: axioms, which are one file each in `faithcheck.axioms`.
"""
