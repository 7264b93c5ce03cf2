"""Fixtures that several test modules import. A conftest.py here would put a bare `tests` into `sys.modules`."""

import pytest
import torch

from faithcheck.explainers.loo import deferred, deferred_attention


@pytest.fixture(autouse=True)
def double():
    """Draw float64 numbers from a fixed seed, and restore the global state afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float64)
        yield
        torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True)
def small_models_are_recorded(monkeypatch):
    """Leave-One-Out records models of any size: those of the tests are smaller than those for which it pays.

    Likewise its blocks of queries, of which one would hold all tokens of a small model.
    """
    monkeypatch.setattr(deferred, "WORTHWHILE", 0)
    monkeypatch.setattr(deferred_attention, "BLOCK", 2)
