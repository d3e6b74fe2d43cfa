"""Several launchers of a job, of which some join later and count attempts differently."""

from __future__ import annotations

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
    line = ["torchrun", "--rdzv_backend", backend]
    monkeypatch.setattr(restarts, "launcher_line", lambda: line)
    assert restarts._has_several_elastic_agents() is several
