"""``trainer import``: forged checkpoints are refused."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from trainer.commands import cli


class Getattr:
    """Pickled as Python 3.11.0 to 3.11.3 pickle a member of an enumeration."""

    def __init__(self, owner: object, name: str) -> None:
        self.words = owner, name

    def __reduce__(self) -> tuple[object, tuple[object, str]]:
        return getattr, self.words


def test_enumerations_of_older_pythons_are_read_and_nothing_else(tmp_path: Path) -> None:
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

    from trainer.commands.external_checkpoint import _load, _read_metadata
    from trainer.errors import CheckpointError

    for owner, name, read in (
        (_MEM_FORMAT_ENCODING, "TORCH_CHANNELS_LAST", _read_metadata),
        (ZeroStageEnum, "gradients", _load),
    ):
        for word, fits in ((name, True), ("__subclasses__", False)):
            with open(tmp_path / "file", "wb") as file:
                if read is _load:
                    torch.save(Getattr(owner, word), file)
                else:
                    pickle.dump(Getattr(owner, word), file)
            if fits:
                assert read(tmp_path / "file") is owner[word]  # type: ignore[index]
            else:
                with pytest.raises(CheckpointError, match="refused"):
                    read(tmp_path / "file")


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


def test_a_folder_of_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["import", str(tmp_path), "--to", str(tmp_path / "model")]) == 1
    assert (
        "holds no checkpoint of torch.distributed (.metadata) or of DeepSpeed"
        in capsys.readouterr().err
    )
