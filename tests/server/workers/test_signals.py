from __future__ import annotations

import os
import selectors
import signal

import pytest

from openenv.server.workers.supervisor import Signals

LIMIT_S = 10.0


def test_signals_are_read_in_their_order():
    with Signals([signal.SIGUSR1, signal.SIGUSR2]) as signals, selectors.DefaultSelector() as selector:
        selector.register(signals, selectors.EVENT_READ)
        assert signals.take() == []
        os.kill(os.getpid(), signal.SIGUSR2)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert selector.select(LIMIT_S)
        assert signals.take() == [signal.SIGUSR2, signal.SIGUSR1]
        assert selector.select(0) == []


def test_what_was_before_is_put_back():
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.append("before"))
    try:
        with Signals([signal.SIGUSR1]):
            os.kill(os.getpid(), signal.SIGUSR1)
        assert heard == []
        os.kill(os.getpid(), signal.SIGUSR1)
        assert heard == ["before"]
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_more_signals_than_fit_do_no_harm():
    with Signals([signal.SIGUSR1]) as signals:
        for _ in range(2000):
            signal.raise_signal(signal.SIGUSR1)
        assert set(signals.take()) == {signal.SIGUSR1}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_what_would_end_the_process_does_not(number):
    with Signals([number]) as signals:
        os.kill(os.getpid(), number)
        assert signals.take() == [number]
