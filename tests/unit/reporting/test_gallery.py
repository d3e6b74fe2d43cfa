"""Files of what a run shows: bounded, named after what they show, and never the end of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from trainer import ConfusionMatrix, Histogram, Images
from trainer.reporting import gallery
from trainer.reporting.gallery import Gallery, file_name

IMAGES = torch.rand(4, 3, 40, 40, generator=torch.Generator().manual_seed(0))


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_each_kind_is_a_picture_and_its_numbers(tmp_path: Path) -> None:
    said: list[str] = []
    own = Gallery(tmp_path, said.append)
    own.show("samples", IMAGES, 3)
    own.show("captioned", Images(IMAGES, list("abcd")), 3)
    own.show("weights/first", Histogram(IMAGES), 3)
    own.show("eval/confusion", ConfusionMatrix([[1, 2], [3, 4]]), 12)
    assert files(tmp_path / "media") == [
        "captioned/step-00000003.json",
        "captioned/step-00000003.png",
        "eval/confusion/step-00000012.json",
        "eval/confusion/step-00000012.png",
        "samples/step-00000003.png",
        "weights/first/step-00000003.json",
        "weights/first/step-00000003.png",
    ]
    for name in files(tmp_path / "media"):
        if name.endswith(".png"):
            Image.open(tmp_path / "media" / name).verify()
    kept = json.loads((tmp_path / "media/eval/confusion/step-00000012.json").read_text())
    assert kept == {"names": ["0", "1"], "counts": [[1, 2], [3, 4]]}
    assert json.loads((tmp_path / "media/captioned/step-00000003.json").read_text()) == {
        "captions": ["a", "b", "c", "d"]
    }
    assert said == []


def test_the_oldest_files_of_a_name_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Gallery(tmp_path, print)
    own.show("samples", Images(IMAGES, list("abcd")), 0)
    own.show("other", IMAGES, 0)
    size = sum(path.stat().st_size for path in (tmp_path / "media/samples").iterdir())
    monkeypatch.setattr(gallery, "BYTES_OF_A_NAME", 2.5 * size)
    for step in range(1, 4):
        own.show("samples", Images(IMAGES, list("abcd")), step)
    assert {name[-12:-4] for name in files(tmp_path / "media/samples")} >= {"00000002", "00000003"}
    assert "step-00000000.png" not in files(tmp_path / "media/samples")
    assert "step-00000000.png" in files(tmp_path / "media/other")

    # An attempt that resumes counts what is there, and shows a step anew in its place.
    resumed = Gallery(tmp_path, print)
    resumed.show("samples", Images(IMAGES, list("abcd")), 3)
    resumed.show("samples", Images(IMAGES, list("abcd")), 4)
    assert "step-00000002.png" not in files(tmp_path / "media/samples")
    monkeypatch.setattr(gallery, "BYTES_OF_A_NAME", 1)
    resumed.show("samples", Images(IMAGES, list("abcd")), 5)
    assert files(tmp_path / "media/samples") == ["step-00000005.json", "step-00000005.png"]


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("eval/confusion", "eval/confusion"),
        ("../../etc/passwd", "etc/passwd"),
        ("/absolute", "absolute"),
        ("a:b*c\n", "a_b_c_"),
        ("..", "unnamed"),
        ("", "unnamed"),
        ("x" * 300, "x" * 80),
    ],
)
def test_no_name_leads_out_of_the_folder(name: str, folder: str) -> None:
    assert file_name(name) == folder


class Failing:
    """A value that raises whatever is asked of it."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise MemoryError("no memory\nat all")


def test_each_kind_of_bad_value_is_one_notice(tmp_path: Path) -> None:
    said: list[str] = []
    own = Gallery(tmp_path, said.append)
    for step in range(3):
        assert own.show("a", torch.zeros(32, 28, 28 + step), step) is None
        assert own.show("a", Images(Failing()), step) is None
        assert own.show("a", torch.empty(1, 3, 4, 4, device="meta"), step) is None
        assert own.show("a", IMAGES * (3 + step), step) is not None
    assert len(said) == 4, said
    assert said[0].startswith("note: show: a: not shown: shape (32, 28, 28): images are NCHW")
    assert said[1] == "note: show: a: not shown: MemoryError: no memory"
    assert said[2].startswith("note: show: a: not shown: NotImplementedError")
    assert said[3].startswith("note: show: a: values from 0 to 3 are shown as 0 to 1")
    own.show("b", torch.zeros(32, 28, 28), 0)
    assert len(said) == 5, "another name is another notice"


def test_a_folder_that_cannot_be_written_is_one_notice_and_trackers_get_the_value(
    tmp_path: Path,
) -> None:
    (tmp_path / "media").write_text("a file")
    said: list[str] = []
    own = Gallery(tmp_path, said.append)
    assert own.show("a", IMAGES, 1) is not None and own.show("a", IMAGES, 2) is not None
    assert len(said) == 1 and "a: not written: " in said[0]
