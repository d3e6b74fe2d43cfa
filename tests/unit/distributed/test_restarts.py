"""Several launchers of a job, of which some join later and count attempts differently."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from trainer.distributed import restarts


@pytest.mark.parametrize(
    ("group", "backend", "several"),
    [("1", "c10d", False), ("2", "static", False), ("2", "c10d", True), ("2", "etcd-v2", True)],
)
def test_agents_that_count_for_themselves(
    group: str, backend: str, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROUP_WORLD_SIZE", group)
    words = [sys.executable, "-c", "input(1)", "--rdzv_backend", backend]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        agent.stdout.read(1)  # type: ignore[union-attr]  # the system shows its words from now on
        monkeypatch.setattr(restarts, "launcher_processes", lambda: [psutil.Process(agent.pid)])
        assert restarts._has_several_elastic_agents() is several
        agent.kill()
