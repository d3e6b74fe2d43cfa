"""Asking an observer over TCP: one that answers, one that is gone, one that is silent."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from trainer.faults import observation
from trainer.faults.observation import Address, Report, ask, report_of, reports_of

PRINTS_ADDRESS = """
import json
from dataclasses import asdict
from trainer.faults.observation import own_observer
assert own_observer() is own_observer()
print(json.dumps(asdict(own_observer())), flush=True)
input()
"""


def test_the_observer_of_a_process_answers_until_the_process_ends() -> None:
    words = [sys.executable, "-c", PRINTS_ADDRESS]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        address = Address(**json.loads(other.stdout.readline()))
        report = report_of(address)
        assert report is not None and not report.gone and report.stopped == 0.0
        os.kill(other.pid, signal.SIGSTOP)
        time.sleep(1.2)
        answers = reports_of({1: address})
        assert answers[1] is not None and answers[1].stopped > 0.5
        ask(address, "kill")
        assert other.wait(10) == -signal.SIGKILL
        time.sleep(1.0)
        assert report_of(address) == Report(gone=True)


def test_an_observer_that_does_not_answer_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a machine that is cut off: it may come back."""
    monkeypatch.setattr(observation, "_ANSWER_SECONDS", 0.2)
    with socket.create_server(("", 0)) as listener:
        address = Address("localhost", listener.getsockname()[1], "secret")
        assert report_of(address) is None
    assert report_of(address) == Report(gone=True), "nothing listens there any more"


def test_nobody_is_asked_of_no_addresses() -> None:
    assert reports_of({}) == {}


def test_a_machine_that_is_the_store_s_own_has_no_address_to_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert observation._own_address() == ""
