"""Ctrl-C ends a run whatever an explainer catches; a KeyboardInterrupt of an explainer's own does not."""

import signal
import threading

import pytest

from faithcheck.axioms.engine.interruption import interruptible


def press():
    signal.raise_signal(signal.SIGINT)


def test_an_own_keyboard_interrupt_can_be_caught():
    before = signal.getsignal(signal.SIGINT)
    caught = []
    with interruptible():
        try:
            raise KeyboardInterrupt
        except BaseException as error:
            caught.append(error)
    assert caught
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_ends_the_block_although_it_was_caught():
    before = signal.getsignal(signal.SIGINT)
    reached = []
    with pytest.raises(KeyboardInterrupt), interruptible():
        try:
            press()
        except BaseException:
            reached.append("caught")
    assert reached == ["caught"]
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_that_became_another_error_ends_the_block_too():
    with pytest.raises(KeyboardInterrupt), interruptible():
        try:
            press()
        except KeyboardInterrupt as interrupt:
            raise RuntimeError("a library's own error") from interrupt


def test_another_thread_runs_the_block_as_it_is():
    ended = []

    def run():
        with interruptible():
            ended.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert ended
