"""The files of examples/clusters, run by the engines that they are for, on this machine (make
clusters).

Their oracle is one process: every engine, on any number of machines and processes, learns the same
curve. Needs root, and the Debian packages that ``PACKAGES`` names; each engine of Python gets an
environment under build/clusters.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from cluster_runs import SETTINGS, Run, by_step
from hosts import Hosts, missing
from launchers import command, run

PACKAGES = {
    "ip": "iproute2",
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "pdsh": "pdsh",
    "sshd": "openssh-server",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.clusters)


@pytest.fixture(scope="session", autouse=True)
def machine() -> None:
    """Say at once what this machine lacks: no part is left out without a word."""
    absent = missing(*PACKAGES)
    if os.geteuid() or absent:
        packages = " ".join(sorted({PACKAGES[program] for program in absent}))
        root = "root, for network namespaces and daemons; " if os.geteuid() else ""
        install = f"apt-get install {packages}" if absent else ""
        pytest.exit(f"make clusters needs {root}{install}".rstrip("; "), returncode=2)


@pytest.fixture(scope="session")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return the losses, by step, of one process that trains the digits for a number of steps."""

    @cache
    def losses(steps: int) -> dict[int, float]:
        words = [
            "--config",
            "examples/configs/digits_cnn.yaml",
            "--max_steps",
            str(steps),
            *SETTINGS,
        ]
        job = run(
            [*command("python", "single"), *words], tmp_path_factory.mktemp("one") / "run"
        ).ok()
        return by_step(job.output_dir)

    return losses


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with Hosts(tmp_path) as two:
        yield two
