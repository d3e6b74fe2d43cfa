"""Saves that fail: full disks, places that cannot be written, disks that are not shared.

Values that a checkpoint may hold. ``test_export.py`` has those that are refused.
"""

from __future__ import annotations

import os
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from one_process import checkpoint, fit, rows, steps
from resuming import Odd
from safetensors.torch import load_file

from trainer import Callback, CheckpointError, LaunchError, Run, StepInfo
from trainer.checkpoint import disk, saver, snapshot, store
from trainer.checkpoint.disk import check_shared
from trainer.distributed.agreement import Agreement


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes no tensors after step 4."""
    real = saver.write

    def write(folder: Path, *what: Any) -> Any:
        if folder.name > f".{store.name_of(4)}.part":
            raise OSError(28, "No space left on device")
        return real(folder, *what)

    monkeypatch.setattr(saver, "write", write)


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize(
    ("in_background", "last"), [(True, 8), (False, 8), (True, 6)], ids=["late", "at once", "last"]
)
def test_a_save_that_fails_stops_the_run(in_background: bool, last: int, tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError,
        match=r"step 6 was not saved: OSError: .*No space left.*on_save_error: continue",
    ):
        fit(tmp_path, save_in_background=in_background, max_steps=last)
    assert steps(tmp_path) == [4, 2] and len(os.listdir(tmp_path / "checkpoints")) == 2
    assert len(rows(tmp_path)) in ((6, 7, 8) if in_background else (6,)), (
        "known at a step soon after"
    )
    assert (tmp_path / "model").exists() == (len(rows(tmp_path)) == last)


@pytest.mark.usefixtures("broken")
def test_a_save_that_fails_is_reported_and_the_run_continues(tmp_path: Path) -> None:
    fit(tmp_path, on_save_error="continue")
    log = (tmp_path / "log.txt").read_text()
    assert (
        log.count(
            "was not saved: OSError: [Errno 28] No space left on device; the ones before are kept"
        )
        == 2
    )
    assert steps(tmp_path) == [4, 2] and len(rows(tmp_path)) == 8


def test_a_snapshot_without_page_locked_memory_is_a_plain_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    to = torch.Tensor.to

    def refuses(
        tensor: torch.Tensor, *to_what: Any, non_blocking: bool = False, **how: Any
    ) -> torch.Tensor:
        if non_blocking:  # only snapshots ask for such memory
            raise RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA")
        return to(tensor, *to_what, **how)

    fit(tmp_path / "plain")
    snapshot._tell_once.cache_clear()
    monkeypatch.setattr(torch.Tensor, "to", refuses)
    fit(tmp_path / "run")
    assert capsys.readouterr().err.count("notice: no page-locked memory") == 1
    plain, stored = (
        load_file(checkpoint(tmp_path / run, 2) / "rank-00000.safetensors")
        for run in ("plain", "run")
    )
    torch.testing.assert_close(stored, plain, rtol=0, atol=0, equal_nan=True)


def test_an_old_checkpoint_that_cannot_be_deleted_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object, **__: object) -> list[int]:
        raise PermissionError("may not be deleted")

    monkeypatch.setattr(store, "prune", refuses)
    fit(tmp_path)
    assert steps(tmp_path) == [8, 6, 4, 2], "none is lost, the newer ones least of all"
    log = (tmp_path / "log.txt").read_text()
    assert "an old checkpoint cannot be deleted: may not be deleted" in log
    assert "not saved" not in log


Usage = namedtuple("Usage", "total used free")


def test_a_disk_that_fills_up_is_named_at_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fills(Callback):
        def on_step(self, trainer: Run, info: StepInfo) -> None:
            if info.step == 4:
                monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: Usage(1, 1, 10))

    with pytest.raises(
        CheckpointError, match=r"step 4 was not saved: .*a checkpoint needs .* but 10 B are free"
    ):
        fit(tmp_path, None, Fills())
    assert steps(tmp_path) == [2]


def test_a_disk_of_each_nodes_own_is_refused(tmp_path: Path) -> None:
    class Nodes(Agreement):
        """Two ranks, the second of which sees nothing."""

        def gather(self, value: Any) -> list[Any]:
            return [value, False if isinstance(value, bool) else value]

    with pytest.raises(LaunchError, match="rank 1 does not see what the main process writes there"):
        check_shared(tmp_path, Nodes())
    check_shared(tmp_path, Agreement())
    assert os.listdir(tmp_path) == []


def test_large_values_and_infinite_ones_of_frozen_layers_are_no_error(tmp_path: Path) -> None:
    trainer = fit(tmp_path, Odd(), max_steps=2, ema_decay=0.9)
    for parameter in trainer.model.parameters():
        parameter.data.fill_(3e38)  # the sum of two such values is infinite
    trainer.model.frozen.weight.data[0, 0] = float("inf")  # as a mask may be
    assert saver.not_finite(trainer.parts.pieces()) == ""
