"""The engine: plans checks, runs them in isolation, settles each measurement against what theory expects.

What belongs here: whatever all axioms share. Not here: axioms, which are one file each in `faithcheck.axioms`.
"""
