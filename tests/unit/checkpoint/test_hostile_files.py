"""A stranger's checkpoint: names that lead elsewhere, and what is no plain file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from forging import RANK, Forge, Noted, check_refused, listed, readers, renamed
from one_process import fit

from trainer import CheckpointError
from trainer.checkpoint import discover
from trainer.commands import cli

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


def test_weights_of_a_forged_checkpoint_are_refused(place: Path) -> None:
    renamed("parameter/nobody/0")(place / "theirs" / "step-00000002")
    with pytest.raises(CheckpointError, match=r"middle.weight: elements 0 to 15 are in no file"):
        fit(place / "new", Noted(), max_steps=4, weights=str(place / "theirs" / "step-00000002"))


def test_an_honest_checkpoint_is_taken_by_all(place: Path) -> None:
    """So that the refusals below are not those of everything."""
    for name, read in readers(place).items():
        assert not read(), name
        shutil.rmtree(place / "new", ignore_errors=True)
    assert (place / "stolen" / "words" / "note.txt").read_text() == "beside the model"
    assert cli.main(["checkpoints", str(place / "theirs")]) == 0


# Hidden ones, for a visible file in the folder that the manifest does not list by its right name is
# refused anyway.
@pytest.mark.parametrize(
    "name",
    [
        "/etc/hostname", "extras//home/.x", "extras/../../../home/secret", "../.x", "./.x", "extras/./.x", "extras/.x/",
        "extras/", "", ".", "..", "extras\\.x", "extras/.a\0b", "extras/.\x1b[2J", "extras/.\ud800",
        "extras/" + "x/" * 3000 + "x",
    ],
    ids=lambda name: ascii(name)[:30],
)  # fmt: skip
def test_names_that_lead_elsewhere_are_refused(name: str, place: Path) -> None:
    check_refused(place, listed(name))


def test_the_absolute_name_of_a_file_of_mine_is_refused(place: Path) -> None:
    """The prefix taken off, ``extras//home/me/.bashrc`` is an absolute path: an export would write
    there.
    """
    check_refused(place, listed(f"extras/{place / 'home' / '.bashrc'}"))


# -- links, pipes ----------------------------------------------------------------------------------


def file_link(path: Path) -> None:
    (path / "extras" / "more").symlink_to(path.parent.parent / "home" / "secret")
    listed("extras/more")(path)


def folder_link(path: Path) -> None:
    (path / "extras" / "more").symlink_to(path.parent.parent / "home")
    listed("extras/more/secret")(path)


def replaced_by_link(name: str) -> Forge:
    def forge(path: Path) -> None:
        moved = path.parent.parent / "home" / "moved"
        (path / name).rename(moved)
        (path / name).symlink_to(moved)

    forge.__name__ = f"{name}_is_a_link"
    return forge


def unlisted_link(path: Path) -> None:
    (path / "extras" / "more").symlink_to("words")


def pipe(path: Path) -> None:
    (path / "extras/words/note.txt").unlink()
    os.mkfifo(path / "extras/words/note.txt")


def manifest_pipe(path: Path) -> None:
    (path / discover.MANIFEST).unlink()
    os.mkfifo(path / discover.MANIFEST)


def folder_for_file(path: Path) -> None:
    (path / "extras/words/note.txt").unlink()
    (path / "extras/words/note.txt").mkdir()


LINKS = [
    file_link,
    folder_link,
    *map(replaced_by_link, (discover.MANIFEST, discover.STATE, RANK, "extras", "extras/words")),
]


@pytest.mark.parametrize(
    "forge", [*LINKS, unlisted_link, pipe, manifest_pipe, folder_for_file], ids=lambda f: f.__name__
)
def test_what_is_no_plain_file_is_refused(forge: Forge, place: Path) -> None:
    check_refused(place, forge)
