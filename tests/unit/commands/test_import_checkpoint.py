"""``trainer import``: forged checkpoints are refused."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from trainer.commands import cli


class Attack:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("name", [".metadata", "zero_pp_rank_0_mp_rank_00_optim_states.pt"])
def test_a_forged_checkpoint_runs_no_code(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, mark = tmp_path / "theirs", tmp_path / "mark"
    folder.mkdir()
    if name.startswith("."):
        (folder / name).write_bytes(pickle.dumps(Attack(mark)))
    else:
        torch.save({"param_shapes": []}, folder / "mp_rank_00_model_states.pt")
        torch.save({"optimizer_state_dict": Attack(mark)}, folder / name)
    assert cli.main(["import", str(folder), "--to", str(tmp_path / "model")]) == 1
    assert f"{name}: refused, for it" in capsys.readouterr().err
    assert not mark.exists() and not (tmp_path / "model").exists()


def test_a_folder_without_a_known_checkpoint_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["import", str(tmp_path), "--to", str(tmp_path / "model")]) == 1
    assert (
        "holds no checkpoint of torch.distributed (.metadata) or of DeepSpeed"
        in capsys.readouterr().err
    )
