"""A signal ends the wait whenever and to whichever thread it comes."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from edl_controller.runtime.signals import SignalledEnd
from tests.bench.waiting import eventually


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_another_thread_gets_ends_the_wait(number: signal.Signals) -> None:
    """Python's own handlers do not run meanwhile: the main thread sleeps on."""
    before = signal.getsignal(number)
    stop, waits = threading.Event(), threading.Event()

    def send() -> None:
        waits.wait(10)
        time.sleep(0.2)  # until the wait has begun, most of the time
        signal.pthread_kill(threading.get_ident(), number)
        stop.wait(10)

    other = threading.Thread(target=send)
    with SignalledEnd() as end:
        other.start()
        waits.set()
        begin = time.monotonic()
        assert end.wait(8)
        assert time.monotonic() - begin < 5
        assert end.wait(0), "it stays so"
    stop.set()
    other.join()
    assert signal.getsignal(number) is before


def test_only_its_own_signals_and_a_wake_end_it() -> None:
    others: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: others.append(1))
    try:
        with SignalledEnd() as end:
            assert not end.wait(0)
            signal.raise_signal(signal.SIGUSR1)
            assert not end.wait(0.1)
            eventually(lambda: others, 5, "the other handler is called as before")
            end.wake()
            assert end.wait()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert signal.set_wakeup_fd(-1) == -1


def test_a_flood_of_signals_is_no_error() -> None:
    with SignalledEnd() as end:
        for _ in range(100_000):
            end.wake()
        assert end.wait(0)
