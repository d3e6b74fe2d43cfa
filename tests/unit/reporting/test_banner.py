"""The banner's rows, in words of the plan and of what was built."""

from __future__ import annotations

from pathlib import Path

from one_process import fit, log_of


def test_the_banner_of_a_run_tells_what_was_built(tmp_path: Path) -> None:
    fit(tmp_path, max_steps=2)
    log = log_of(tmp_path)
    for name in ("run", "strategy", "batch", "optimizer", "data", "model", "machine"):
        assert [line.split()[0] for line in log.splitlines() if line.strip()].count(name) == 1, name
    begin = log.index("-" * 80)
    table = log[begin : log.index("-" * 80, begin + 80)].splitlines()
    assert len(table) <= 10 and max(map(len, table)) <= 80 + len(str(tmp_path))
