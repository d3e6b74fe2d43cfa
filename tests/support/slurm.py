"""Slurm on the two machines of ``hosts``: Debian's own munged, slurmctld and slurmd, with their
files in one folder.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path

from hosts import NAMES, Hosts

_CONFIGURATION = """
ClusterName=samecurve
SlurmctldHost=node1
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
MailProg=/bin/true
NodeName=node1,node2 CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=node1,node2 Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A cluster of two nodes; its commands run on the first."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        folder.mkdir()
        for name in ("state", *(f"spool-{name}" for name in NAMES)):
            (folder / name).mkdir()
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        Path(self.environment["SLURM_CONF"]).write_text(_CONFIGURATION.format(folder=folder))
        key = folder / "munge.key"
        key.write_bytes(
            bytes(range(256)) * 4
        )  # of a cluster that lives for a minute, on one machine
        key.chmod(0o400)
        files = {"socket": "socket", "log-file": "log", "pid-file": "pid", "seed-file": "seed"}
        options = [f"--{option}={folder}/munge.{suffix}" for option, suffix in files.items()]
        hosts.start(NAMES[0], ["munged", "--foreground", "--force", f"--key-file={key}", *options])
        self._wait_for(lambda: (folder / "munge.socket").exists(), "munged")
        hosts.start(NAMES[0], ["slurmctld", "-D"], self.environment)
        for name in NAMES:
            hosts.start(name, ["slurmd", "-D", "-N", name], self.environment)
        self._wait_for(
            lambda: self.ask("sinfo", "--noheader", "--format=%T %D").strip() == "idle 2",
            "two idle nodes",
        )

    def ask(self, *words: str, environment: Mapping[str, str] | None = None) -> str:
        """Run a command of Slurm's and return what it printed; nothing where it failed."""
        job = self.hosts.start(NAMES[0], words, {**self.environment, **(environment or {})})
        return self.hosts.said(job) if self.hosts.wait([job], timeout=60) == [0] else ""

    def submit(self, *words: str, environment: Mapping[str, str]) -> str:
        """Hand a job in and return its number."""
        return self.ask("sbatch", "--parsable", *words, environment=environment).strip()

    def state(self, job: str) -> tuple[str, str]:
        """Return a job's state, and its exit code as Slurm writes it."""
        shown = self.ask("scontrol", "show", "job", job)
        found = re.search(r"JobState=(\w+).*?ExitCode=(\d+:\d+)", shown, re.DOTALL)
        return (found[1], found[2]) if found else ("", "")

    def wait(self, job: str, *states: str, seconds: float = 240) -> None:
        """Wait until a job is in one of these states."""
        self._wait_for(
            lambda: self.state(job)[0] in states, f"job {job}: {states}", seconds=seconds
        )

    def _wait_for(self, there: object, what: str, *, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not there():  # type: ignore[operator]
            assert time.monotonic() < end, f"{what} did not come\n{self.hosts.all_said()}"
            time.sleep(0.3)
