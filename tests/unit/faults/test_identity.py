"""Who a process is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

from trainer.faults import identity
from trainer.faults.identity import Identity, own_machine


def identity_of(pid: int) -> Identity:
    return Identity(own_machine(), pid, identity._state_and_start(pid)[1])


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def test_a_process_has_ended_before_anybody_waited_for_it() -> None:
    process = sleeper()
    one = identity_of(process.pid)
    assert one.is_here and one.is_alive and not one.has_ended and not Identity.own().has_ended
    process.kill()
    time.sleep(0.3)
    assert one.has_ended
    process.wait()
    assert one.has_ended


def test_a_number_that_is_used_again_is_another_process() -> None:
    own = Identity.own()
    assert replace(own, started=own.started - 1).has_ended


def test_of_another_machine_or_container_nothing_is_known() -> None:
    """Its numbers mean other processes here: none of them is taken for gone, or killed."""
    elsewhere = Identity(own_machine() + "0", 1 << 30, 7)
    assert (
        not elsewhere.is_here
        and not elsewhere.is_alive
        and not elsewhere.has_ended
        and not elsewhere.is_stopped
    )
    process = sleeper()
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(0.2)
    replace(identity_of(process.pid), machine="elsewhere").kill_if_stopped()
    replace(identity_of(process.pid), started=3).kill_if_stopped()
    assert identity_of(process.pid).is_stopped
    identity_of(process.pid).kill_if_stopped()
    assert process.wait(10) == -signal.SIGKILL


def test_containers_of_one_host_are_two_machines() -> None:
    code = "from trainer.faults.identity import own_machine; print(own_machine())"
    inside = subprocess.run(
        [
            "unshare",
            "--user",
            "--map-root-user",
            "--pid",
            "--fork",
            "--mount-proc",
            sys.executable,
            "-c",
            code,
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    boot, _, namespace = own_machine().partition("/")
    assert inside.stdout.strip().startswith(f"{boot}/") and not inside.stdout.strip().endswith(
        namespace
    )
