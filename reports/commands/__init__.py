"""The `faithcheck` command: one command a file, and the scaffolding that they share.

What belongs here: arguments, progress, exit codes. Not here: what is measured (`faithcheck.axioms`) and how a result
is shown (`faithcheck.reports.pages`).
"""
