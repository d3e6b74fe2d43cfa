"""Starting the observer of this process, and asking those of all ranks (``observer.py``)."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

_ANSWER_SECONDS = 1.0
_QUESTIONS_AT_ONCE = 16

# Kept: Python warns of a process that is dropped while it runs.
_processes: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True)
class Address:
    """Where an observer is asked.

    Args:
        host: "" for the machine of the job's store, by whatever name a rank knows it.
        port: of TCP.
        password: without which it answers nothing.
    """

    host: str
    port: int
    password: str


@dataclass(frozen=True)
class Report:
    """What an observer reports of its rank. All times are seconds until now.

    Args:
        gone: the process has ended.
        idle: since the process, or one that it started, last used a core or a disk.
        stopped: since it was stopped (SIGSTOP); 0 where it is not.
        stopped_children: the same for processes that it started, by their numbers; those that are
            stopped.
        traced: a debugger is attached.
    """

    gone: bool = False
    idle: float = 0.0
    stopped: float = 0.0
    stopped_children: Mapping[str, float] = field(default_factory=dict)
    traced: bool = False


@cache
def own_observer() -> Address:
    """Start the observer of this process, which ends with it; return where it is asked."""
    listener = _listener()
    port = listener.getsockname()[1]
    address = Address(_own_address(), port, secrets.token_hex(16))
    script = Path(__file__).with_name("observer.py")
    # Without site-packages, and without what the environment would change.
    command = [sys.executable, "-IS", str(script), str(os.getpid()), str(listener.fileno())]

    with listener:
        process = subprocess.Popen(
            command,
            # Not in the arguments, which all users see.
            env={**os.environ, "OBSERVER_PASSWORD": address.password},
            pass_fds=[listener.fileno()],
            # Whoever reads this process's output waits for the end of all that could write to it.
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C and a stop of the whole group are not meant for it.
            start_new_session=True,
        )
    _processes.append(process)
    return address


def continue_observer() -> None:
    """Continue the observer of this process, which somebody has stopped with its other children."""
    for process in _processes:
        process.send_signal(signal.SIGCONT)


def _listener() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _own_address() -> str:
    """Return the address by which this machine reaches the store; "" where that is its own."""
    store = os.environ.get("MASTER_ADDR", "localhost")
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(store, 1, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # sends nothing
            own = str(probe.getsockname()[0])
        return "" if own == address[0] else own
    return ""


def ask(address: Address, word: str = "look") -> dict[str, Any] | None:
    """Ask an observer.

    Returns:
        Its answer; ``{"gone": True}`` where nothing listens there any more; None where it does not
        answer.
    """
    host = address.host or os.environ.get("MASTER_ADDR", "localhost")
    try:
        with socket.create_connection((host, address.port), timeout=_ANSWER_SECONDS) as connection:
            connection.sendall(f"{address.password} {word}\n".encode())
            text = b""
            while piece := connection.recv(4096):
                text += piece
        answer = dict(json.loads(text))
    except (ConnectionRefusedError, ConnectionResetError):
        return {"gone": True}
    except (OSError, ValueError):
        return None
    return answer or None


def report_of(address: Address) -> Report | None:
    """Ask an observer for its report; None where it does not answer."""
    answer = ask(address)
    return None if answer is None else Report(**answer)


def reports_of(addresses: Mapping[int, Address]) -> dict[int, Report | None]:
    """Ask several observers at once, by rank: each of a machine that is cut off takes a second."""
    if not addresses:
        return {}
    with ThreadPoolExecutor(min(_QUESTIONS_AT_ONCE, len(addresses))) as pool:
        reports = pool.map(report_of, addresses.values())
        return dict(zip(addresses, reports, strict=True))
