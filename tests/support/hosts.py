"""Two machines on one: network namespaces with host names of their own, joined by a switch whose
cable can be cut.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
from cluster_runs import ended
from launchers import BIN, ROOT, clean_environment

NAMES = ("node1", "node2")
ADDRESSES = dict(zip(NAMES, ("10.77.0.1", "10.77.0.2"), strict=True))
_SWITCH = "samecurve-switch"


class Hosts:
    """Machines ``node1`` and ``node2``, which know each other by name. Needs root and iproute2.

    They share the file system, and nothing else: each has its own network, and its own host name.

    Args:
        folder: for what their processes print.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = f"{BIN}:{os.environ['PATH']}"
        self.started: list[subprocess.Popen[str]] = []
        self._opened = 0
        self._names = folder / "hosts"

    def __enter__(self) -> Hosts:
        _remove()
        _ip("netns", "add", _SWITCH)
        _ip("-n", _SWITCH, "link", "add", "bridge", "type", "bridge")
        _ip("-n", _SWITCH, "link", "set", "bridge", "up")
        names = "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
        for name, address in ADDRESSES.items():
            space = _space(name)
            _ip("netns", "add", space)
            _ip(
                "-n",
                _SWITCH,
                "link",
                "add",
                name,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                space,
            )
            _ip("-n", _SWITCH, "link", "set", name, "master", "bridge", "up")
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                _ip("-n", space, "link", "set", link, "up")
        self._names.write_text(f"127.0.0.1 localhost\n{names}")
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        _remove()

    def start(
        self, name: str, words: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a command on a machine, in the repository's root; what it prints goes into a file
        of ``output``.
        """
        self._opened += 1
        log = self.folder / f"{self._opened}-{name}.log"
        # (ip netns exec would hide /sys/fs/cgroup, which Slurm wants to see.)
        inside = f"hostname {name} && mount --bind {self._names} /etc/hosts && exec {shlex.join(map(str, words))}"
        full = [
            "nsenter",
            f"--net=/run/netns/{_space(name)}",
            "unshare",
            "--uts",
            "--mount",
            "sh",
            "-c",
            inside,
        ]
        with log.open("w") as file:
            process = subprocess.Popen(
                full,
                cwd=ROOT,
                env=clean_environment({"PATH": self.path, **(environment or {})}),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        process.log = log  # type: ignore[attr-defined]
        self.started.append(process)
        return process

    def run(
        self,
        words: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        timeout: float = 300,
    ) -> list[int]:
        """Run a command on both machines at once, with MACHINE 0 and 1, and return their exit
        codes.
        """
        jobs = [
            self.start(
                name,
                words,
                {
                    "MACHINE": str(number),
                    "FIRST": NAMES[0],
                    "PROCESSES": "1",
                    **(environment or {}),
                },
            )
            for number, name in enumerate(NAMES)
        ]
        return self.wait(jobs, timeout=timeout)

    def wait(self, jobs: Sequence[subprocess.Popen[str]], *, timeout: float = 300) -> list[int]:
        """Wait for commands, end those that take longer, and return their exit codes."""
        end = time.monotonic() + timeout
        for job in jobs:
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(max(0.1, end - time.monotonic()))
        late = [job for job in jobs if job.poll() is None]
        for job in late:
            ended(psutil.Process(job.pid))
            job.wait()
        assert not late, "\n".join(self.said(job) for job in jobs)
        return [job.returncode for job in jobs]

    def said(self, job: subprocess.Popen[str]) -> str:
        """Return what a command printed."""
        return str(job.log.read_text())  # type: ignore[attr-defined]

    def all_said(self) -> str:
        """Return the last lines of commands that run or failed, for a test that failed."""
        failed = [job for job in self.started if job.poll() != 0]
        return "\n".join(
            f"-- {' '.join(map(str, job.args))}\n{self.said(job)[-4000:]}" for job in failed
        )

    def cut(self) -> None:
        """Cut the cable of node2: packets to and from it are lost, without a word to anybody."""
        _ip("-n", _SWITCH, "link", "set", NAMES[1], "nomaster")

    def mend(self) -> None:
        """Put the cable of node2 back."""
        _ip("-n", _SWITCH, "link", "set", NAMES[1], "master", "bridge")

    def end(self) -> None:
        """End every process on the machines."""
        for name in NAMES:
            for identity in _ip("netns", "pids", _space(name)).split():
                with contextlib.suppress(psutil.NoSuchProcess):
                    psutil.Process(int(identity)).kill()
        for job in self.started:
            job.wait()
        self.started.clear()


def missing(*programs: str) -> list[str]:
    """Name the programs that this machine lacks."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    return [program for program in programs if shutil.which(program, path=path) is None]


def _space(name: str) -> str:
    return f"samecurve-{name}"


def _remove() -> None:
    """Remove what an earlier run, which was killed, may have left as well."""
    there = [line.split()[0] for line in _ip("netns", "list").splitlines()]
    for space in (_SWITCH, *map(_space, NAMES)):
        if space in there:
            _ip("netns", "delete", space)


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout
