"""The `faithcheck` command: a file for each command, and what several share. Measuring and pages are elsewhere."""
