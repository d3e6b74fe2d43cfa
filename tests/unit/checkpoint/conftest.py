"""Runs that are resumed from a checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from one_process import checkpoint, fit, rows

from trainer import Run, Task


@pytest.fixture
def goes_on(tmp_path: Path) -> Callable[..., tuple[Run, Run]]:
    """Train in ``run``, and in ``new`` from a checkpoint of it: rates and losses are the same."""

    def train_twice(
        task: Task | None = None,
        *,
        at: int = 4,
        then: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> tuple[Run, Run]:
        again = copy.deepcopy(task)
        whole = fit(tmp_path / "run", task, **settings)
        resume = str(checkpoint(tmp_path / "run", at))
        resumed = fit(tmp_path / "new", again, resume=resume, **{**settings, **(then or {})})
        expected, found = (
            [(row["step"], row["lr"], row["loss"]) for row in rows(tmp_path / name)]
            for name in ("run", "new")
        )
        assert found == expected[at:] != []
        return whole, resumed

    return train_twice
