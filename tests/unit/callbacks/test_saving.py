"""Checkpoints during training, and at its end."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_run import fake_run, step_info

from trainer.callbacks.saving import SaveCheckpoints
from trainer.errors import CheckpointError


def saving_run(
    calls: list[str],
    *,
    save_error: str = "",
    export_error: str = "",
) -> Any:
    """A run that saves every fourth step, and notes what is called; calls may fail."""

    def call(name: str, error: str) -> None:
        calls.append(name)
        if error:
            raise CheckpointError(error)

    return fake_run(
        saves_at=lambda step: step % 4 == 0,
        save=lambda: call("save", save_error),
        export=lambda folder: call(f"export {folder.name}", export_error),
        saver=SimpleNamespace(finish=lambda: calls.append("finish")),
        meter=SimpleNamespace(paused=lambda name: contextlib.nullcontext()),
        directory=SimpleNamespace(path=Path("run")),
    )


def test_a_failed_save_on_the_way_exports_nothing() -> None:
    calls: list[str] = []
    with pytest.raises(CheckpointError, match=r"^no room$"):
        SaveCheckpoints().on_step(saving_run(calls, save_error="no room"), step_info(4))
    assert calls == ["save"]


def test_an_export_that_fails_as_well_is_reported() -> None:
    run = saving_run([], save_error="no room", export_error="read-only")
    with pytest.raises(CheckpointError, match=r"^read-only$"):
        SaveCheckpoints().on_step(run, step_info(5, is_last=True))
