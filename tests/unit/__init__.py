"""Tests of single functions and classes, without subprocesses and virtual environments."""
