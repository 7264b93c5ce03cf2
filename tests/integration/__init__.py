"""Tests that install, run subprocesses or follow the documentation."""
