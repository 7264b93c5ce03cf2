"""Tests of single functions and classes; a few start one short process, none builds a virtual environment."""
