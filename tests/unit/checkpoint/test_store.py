"""The folder of checkpoints: what is kept, and that a kill at any moment loses nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from written_checkpoints import loaded, save

from trainer import CheckpointError
from trainer.checkpoint import discover, disk, store


def steps(folder: Path) -> list[int]:
    return [found.step for found in discover.listing(folder)]


def test_the_newest_stay_and_the_marked_ones(tmp_path: Path) -> None:
    for step in range(1, 11):
        save(tmp_path, step, keep_every=4, pinned={3})
    assert steps(tmp_path) == [10, 9, 8, 4, 3]
    assert sorted(os.listdir(tmp_path)) == [store.name_of(step) for step in (3, 4, 8, 9, 10)], (
        "nothing else is left"
    )


def test_a_name_that_exists_is_never_written_over(tmp_path: Path) -> None:
    save(tmp_path, 5)
    with pytest.raises(CheckpointError, match="step-00000005: exists already"):
        store.begin(tmp_path, 5)


def test_damaged_ones_make_room_and_stay_to_be_looked_at(tmp_path: Path) -> None:
    for attempt in range(2):
        save(tmp_path, 5)
        (tmp_path / "step-00000005" / store.STATE).write_text(f"{attempt}")
        store.set_aside(store.named(tmp_path))
    assert os.listdir(tmp_path) == ["step-00000005.damaged"]
    assert (tmp_path / "step-00000005.damaged" / store.STATE).read_text() == "1"


# -- killed ----------------------------------------------------------------------------------------


class Killed(BaseException):
    """Nothing in the package catches it, as nothing catches SIGKILL."""


OPERATIONS = ("mkdir", "rename", "fsync", "unlink", "rmdir")


@pytest.fixture
def killed_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], list[str]]]:
    """Arms a kill at the n-th operation on the disk; the list tells which were done."""

    def arm(number: int) -> list[str]:
        done: list[str] = []

        def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
            def operation(*args: Any, **kwargs: Any) -> Any:
                if len(done) >= number:
                    raise Killed(name)
                done.append(name)
                return real(*args, **kwargs)

            return operation

        for name in OPERATIONS:
            monkeypatch.setattr(os, name, counted(name, getattr(os, name)))
        opened = open
        monkeypatch.setattr(
            disk,
            "open",
            lambda *args, **kwargs: Cut(opened(*args, **kwargs), counted),
            raising=False,
        )
        return done

    yield arm
    monkeypatch.undo()


class Cut:
    """A file whose writes are operations as well; a killed one writes half of its bytes."""

    def __init__(self, file: Any, counted: Callable[..., Any]) -> None:
        self.file, self.write_ = file, counted("write", file.write)

    def __enter__(self) -> Cut:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, data: memoryview) -> int:
        try:
            return int(self.write_(data))
        except Killed:
            self.file.write(data[: len(data) // 2])
            raise


def test_a_kill_between_any_two_operations_loses_nothing(
    tmp_path: Path, killed_at: Callable[[int], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    number, finished = 0, False
    while not finished:
        folder = tmp_path / str(number)
        for step in (1, 2):
            save(folder, step)
        done = killed_at(number)
        try:
            save(folder, 3)
            finished = True
        except Killed:
            pass
        monkeypatch.undo()
        seen = steps(folder)
        assert seen in ([2, 1], [3, 2, 1], [3, 2]), (number, done[-1:])
        for step in seen:  # whatever can be seen is whole
            assert torch.equal(loaded(folder / store.name_of(step)), torch.arange(200.0) + step)
        store.clean(folder)
        assert sorted(os.listdir(folder)) == [store.name_of(step) for step in sorted(seen)]
        if 3 not in seen:
            save(folder, 3)  # the next run writes it
        assert steps(folder)[0] == 3
        number += 1
    assert number > 20 and set(done) == {*OPERATIONS, "write"}
