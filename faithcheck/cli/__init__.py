"""The `faithcheck` command: one command a file, and the arguments and the output that several commands share.

What belongs here: parsers, files that are written, progress, exit codes. Not here: measuring (`faithcheck.axioms`) and
pages (`faithcheck.reports.pages`).
"""
