"""Fixtures that several test modules import. A conftest.py here would put a bare `tests` into `sys.modules`."""

import pytest
import torch

from faithcheck.explainers.fast import removal_rows


@pytest.fixture(autouse=True)
def double():
    """Draw float64 numbers from a fixed seed, and restore the global state afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float64)
        yield
        torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True)
def small_models_are_fast(monkeypatch):
    """Leave-One-Out takes its fast parts for models of any size: those of the tests are smaller than it pays for."""
    monkeypatch.setattr(removal_rows, "LEAST_NUMBERS", 0)
