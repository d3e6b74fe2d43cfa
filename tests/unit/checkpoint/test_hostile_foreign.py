"""A stranger's checkpoint of another program."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.commands import cli

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


@pytest.fixture
def distributed(tmp_path: Path) -> Path:
    import torch.distributed.checkpoint as dcp

    folder = tmp_path / "theirs" / "model"
    dcp.save({"w": torch.arange(6.0), "v": torch.ones(2)}, checkpoint_id=folder, no_dist=True)
    return folder


def described(folder: Path, change: Callable[[Any], None]) -> None:
    told = pickle.loads((folder / ".metadata").read_bytes())
    change(told)
    (folder / ".metadata").write_bytes(pickle.dumps(told))


def placed(name: str) -> Callable[[Any], None]:
    def change(told: Any) -> None:
        for place in told.storage_data.values():
            place.relative_path = name

    return change


def without_a_part(told: Any) -> None:
    del told.storage_data[next(index for index in told.storage_data if index.fqn == "w")]


def of_another_form(told: Any) -> None:
    told.state_dict_metadata = 5


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (placed("../../elsewhere"), "is no name of a file inside the folder"),
        (placed("/elsewhere"), "is no name of a file inside the folder"),
        (placed("link"), "is no plain file"),
        (without_a_part, "0 of 6 elements of w are there"),
        (of_another_form, "no readable checkpoint"),
    ],
)
def test_other_programs_checkpoints_are_held_to_their_folder(
    change: Callable[[Any], None],
    said: str,
    distributed: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    [data] = [path for path in distributed.iterdir() if not path.name.startswith(".")]
    shutil.copy(data, tmp_path / "elsewhere")
    (distributed / "link").symlink_to(tmp_path / "elsewhere")
    assert cli.main(["import", str(distributed.parent), "--to", str(tmp_path / "honest")]) == 0
    described(distributed, change)
    assert cli.main(["import", str(distributed.parent), "--to", str(tmp_path / "model")]) == 1
    assert said in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "honest", "theirs"]
