"""The catalogue of seeded faults: correct explainers with one change each, one family a file.

`faithcheck.tests.helpers.power` measures which checks catch them; docs/results/power.md has the table.
"""
