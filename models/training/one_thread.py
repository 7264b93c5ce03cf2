"""Computing on one thread, so that training gives the same weights wherever it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread inside the block; afterwards on as many threads as before.

    The order of summation, and so the trained weights, depend on the number of threads. Small operations do not get
    faster by a second thread, and become twenty times slower if another process keeps the second core busy.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
