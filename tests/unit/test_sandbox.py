"""Ctrl-C ends a run whatever an explainer catches; a KeyboardInterrupt of an explainer's own does not."""

import signal
import threading

import pytest

from faithcheck.sandbox import interruptible


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


def catch_ctrl_c(answer):
    """Code of an explainer that catches Ctrl-C and goes on, or raises another error."""
    try:
        press()
    except KeyboardInterrupt as interrupt:
        if answer:
            raise answer from interrupt


@pytest.mark.parametrize("answer", [None, RuntimeError("of a library"), SystemExit(0)])
def test_ctrl_c_ends_the_block_although_it_was_caught(answer):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interruptible():
        catch_ctrl_c(answer)
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_runs_the_block_as_it_is():
    ended = []

    def run():
        with interruptible():
            ended.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert ended
