"""Fixtures that more than one module imports: a conftest.py here would put a bare `tests` into `sys.modules`."""

import pytest
import torch


@pytest.fixture(autouse=True)
def double():
    """Draw float64 numbers, the same ones each time, and leave the global state as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float64)
        yield
        torch.set_default_dtype(torch.float32)
