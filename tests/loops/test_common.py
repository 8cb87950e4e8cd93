"""A request to stop, and what the message says then."""

import os
import signal
import sys
from types import SimpleNamespace

import pytest

from rlhf_jax.errors import Interrupted
from rlhf_jax.loops.common import StopRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_step_to_end(number):
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert stop.requested
        # a second one is not held back
        assert signal.getsignal(number) == before
    assert signal.getsignal(number) == before


def test_handlers_come_back_without_a_signal():
    before = signal.getsignal(signal.SIGINT)
    with StopRequest():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.parametrize(
    ("spec", "argv", "command"),
    [
        ("experiments.quickstart", ["x.py", "--seed", "1"], "-m experiments.quickstart --seed 1"),
        ("mine.__main__", ["x.py"], "-m mine"),
        (None, ["my run.py", "--out", "a b"], "'my run.py' --out 'a b'"),
        # beginning anew once more would move aside what was just saved
        ("e", ["x.py", "--restart", "--rl.restart", "--seed", "1"], "-m e --seed 1"),
    ],
)
def test_the_command_that_goes_on(spec, argv, command, monkeypatch):
    main = SimpleNamespace(__spec__=spec and SimpleNamespace(name=spec))
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(Interrupted) as stop:
        StopRequest().leave("runs/a", 7)
    assert str(stop.value) == (
        f"stopped after step 7; saved in runs/a\nresume with: python {command}"
    )
