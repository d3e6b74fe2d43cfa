"""A stranger's checkpoint: tensor files that do not fit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from forging import RANK, Forge, Noted, check_refused, entry, headed, listed, renamed
from one_process import fit, reseal

from trainer import CheckpointError
from trainer.checkpoint.safetensors_io import header, raw, read_header
from trainer.commands import cli

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


def longer_than_the_file(path: Path) -> None:
    content = (path / RANK).read_bytes()
    (path / RANK).write_bytes((1 << 40).to_bytes(8, "little") + content[8:])
    reseal(path)


def bytes_behind(path: Path) -> None:
    with open(path / RANK, "ab") as file:
        file.write(b"more")
    reseal(path)


def twice(path: Path) -> None:
    """The same elements stand there in two pieces."""
    tensors = [(key, entry.shape, entry.dtype) for key, entry in read_header(path / RANK).items()]
    content, begin = (
        (path / RANK).read_bytes(),
        min(e.begin for e in read_header(path / RANK).values()),
    )
    more = torch.zeros(3)
    told = header([*tensors, ("parameter/middle.weight/2", (3,), torch.float32)])
    (path / RANK).write_bytes(told + content[begin:] + bytes(raw(more)))
    reseal(path)


HEADERS = {
    "no_offsets": entry(data_offsets=[]),
    "negative_offset": entry(data_offsets=[-60, 0]),
    "offset_behind_the_end": entry(data_offsets=[1 << 40, (1 << 40) + 60]),
    "offset_of_another": entry(data_offsets=[0, 60]),
    "offset_of_one_number": entry(data_offsets=60),
    "negative_shape": entry(shape=[-15]),
    "true_shape": entry(shape=[True]),
    "other_shape": entry(shape=[16]),
    "shape_of_many": entry(shape=[1] * 1000),
    "huge_shape": entry(shape=[1 << 62, 1 << 62]),
    "two_dimensions": entry(shape=[3, 5]),
    "no_dtype": entry(dtype="Q8"),
    "dtype_of_none": entry(dtype=["F32"]),
    "dtype_of_other_size": entry(dtype="F64"),
    "list": headed(lambda told: [told]),
    "entry_is_text": headed(lambda told: told.update({"parameter/middle.weight/0": "x"})),
    "no_start": renamed("parameter/middle.weight"),
    "no_number": renamed("parameter/middle.weight/x"),
    "negative_start": renamed("parameter/middle.weight/-1"),
    "later_start": renamed("parameter/middle.weight/1"),
    "huge_start": renamed("parameter/middle.weight/" + "9" * 400),
    "other_name": renamed("parameter/nobody/0"),
    "longer_than_the_file": longer_than_the_file,
    "bytes_behind": bytes_behind,
    "twice": twice,
}


@pytest.mark.parametrize("forge", HEADERS.values(), ids=HEADERS)
def test_headers_that_do_not_fit_are_refused(forge: Forge, place: Path) -> None:
    check_refused(place, forge, at_a_glance=False)


def test_a_part_of_an_optimizers_state_is_refused(place: Path) -> None:
    def lose_step(told: dict[str, Any]) -> None:
        told["optimizer.steps/middle.weight/0"] = told.pop("optimizer.step/middle.weight/0")

    headed(lose_step)(place / "theirs" / "step-00000002")
    with pytest.raises(
        CheckpointError, match=r"^the optimizer's state of middle\.weight lacks step, which "
    ):
        fit(
            place / "new",
            Noted(),
            max_steps=4,
            ema_decay=0.9,
            resume=str(place / "theirs" / "step-00000002"),
        )


@pytest.mark.parametrize("text", ["5", "[]", '["export"]', "null", '"x"'])
def test_a_state_that_is_no_mapping_is_refused(text: str, place: Path) -> None:
    def forge(path: Path) -> None:
        (path / "state.json").write_text(text)
        reseal(path)

    check_refused(place, forge, at_a_glance=False)


def test_a_large_file_beside_the_model_is_copied_in_pieces(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's may be larger than the memory."""
    path = place / "theirs" / "step-00000002"
    real = Path.read_bytes

    def read_bytes(self: Path) -> bytes:
        assert self.parent.parent.name != "extras", "read whole"
        return real(self)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    assert cli.main(["export", str(path), "--to", str(place / "stolen")]) == 0
    assert (place / "stolen" / "words" / "note.txt").read_text() == "beside the model"


def test_a_missing_tensor_is_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    renamed("parameter/nobody/0")(place / "theirs" / "step-00000002")
    assert cli.main(["checkpoints", str(place / "theirs"), "--verify"]) == 1
    assert (
        "damaged: parameter middle.weight: elements 0 to 15 are in no file"
        in capsys.readouterr().out
    )


def test_a_file_beside_the_model_cannot_stand_in_for_it(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = place / "theirs" / "step-00000002"
    (path / "extras" / "model.safetensors").write_bytes(b"owned")
    listed("extras/model.safetensors")(path)
    assert cli.main(["export", str(path), "--to", str(place / "model")]) == 1
    assert "is the model's own name" in capsys.readouterr().err
    assert sorted(os.listdir(place)) == ["home", "theirs"]
