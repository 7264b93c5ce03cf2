"""The peak of the memory that torch allocates during a call, against sums that are done by hand."""

import pytest
import torch
from torch import nn

from faithcheck.memory.peak_memory import peak_memory

MEBIBYTE = 2**20


def block():
    """A tensor of one mebibyte."""
    return torch.empty(MEBIBYTE, dtype=torch.uint8)


def test_the_peak_counts_what_is_in_use_at_once():
    kept = []

    def call():
        a, b = block(), block()
        del a, b
        kept.append(block())
        temporary = [block(), block()]
        del temporary
        block()

    assert peak_memory(call) == 3 * MEBIBYTE


def test_what_an_operation_allocates_for_itself_counts():
    x = torch.zeros(MEBIBYTE // 4)
    assert peak_memory(lambda: x.add(1).mul(2).sum()) == pytest.approx(2 * MEBIBYTE, rel=1e-4)


def test_what_backward_keeps_counts():
    x = torch.zeros(MEBIBYTE // 4, requires_grad=True)
    kept = peak_memory(lambda: x.exp().exp().exp().sum())  # each exp keeps its result
    assert kept == pytest.approx(3 * MEBIBYTE, rel=1e-4)


def test_garbage_of_earlier_calls_is_not_counted():
    cycle = [block()]
    cycle.append(cycle)
    del cycle
    assert peak_memory(lambda: (block(), block())) == 2 * MEBIBYTE


def test_events_may_be_read_at_each_forward_pass():
    model = nn.Linear(64, 64)
    x = torch.zeros(4096, 64)  # a mebibyte, as is each output

    def call():
        return [model(x) for _ in range(3)]

    with torch.no_grad():
        assert peak_memory(call, model=model) == peak_memory(call) == 3 * MEBIBYTE
    assert not model._forward_pre_hooks


def test_an_error_of_the_call_is_the_callers_and_leaves_no_profiler():
    with pytest.raises(ZeroDivisionError):
        peak_memory(lambda: 1 / 0)
    assert peak_memory(block) == MEBIBYTE
