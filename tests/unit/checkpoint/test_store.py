"""Checkpoints on disk, in this process: killed between any two operations, and damaged in every
way.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer import CheckpointError
from trainer.checkpoint import discover, disk, ranges, store
from trainer.checkpoint.contents import state_text
from trainer.checkpoint.disk import write_file
from trainer.checkpoint.ranges import Key, of_model_folder, of_rank_files, write_pieces
from trainer.checkpoint.safetensors_io import DTYPES


def save(folder: Path, step: int, *, world: int = 2, keep_last: int = 2, **kept: Any) -> None:
    """As the ranks and the main process do it, with values that differ from step to step."""
    store.begin(folder, step)
    temporary = store.temporary_of(folder, step)
    files = []
    for rank in range(world):
        values = torch.arange(100 * rank, 100 * rank + 100) + float(step)
        pieces = [(str(Key(kind="parameter", name="w", start=100 * rank)), values)]
        files.append(write_pieces(temporary / f"rank-{rank:05d}.safetensors", pieces))
    (temporary / "extras").mkdir()
    files.append(write_file(temporary / discover.STATE, [state_text(state(step, world))]))
    files.append(
        write_file(temporary / "extras" / "config.json", [f"{step}".encode()], "extras/config.json")
    )
    facts = {
        "world_size": world,
        "strategy": "any",
        "samples": 8 * step,
        "created": "2026-11-21T12:00:00+00:00",
    }
    store.commit(folder, step, facts, files)
    store.prune(
        folder,
        keep_last=keep_last,
        keep_every=kept.get("keep_every"),
        pinned=kept.get("pinned", ()),
    )


def state(step: int, world: int = 2) -> dict[str, Any]:
    """The state.json of a model of one parameter, of which each process owns a hundred elements."""
    return {
        "step": step, "samples": 8 * step, "data": {"samples": 8 * step}, "skipped_steps": 0, "skipped_in_a_row": 0,
        "schedule": {"kind": "LambdaLR", "steps": step, "lr": [0.1], "own": {}}, "scaler": {}, "group_settings": [{}],
        "mathematics": {"optimizer": "SGD", "optimizer_groups": [{"names": [], "settings": {}}]},
        "task": {}, "callbacks": {},
        "last_evaluation": {}, "model": [["w", [world, 100], "float32"]],
    }  # fmt: skip


def loaded(path: Path) -> torch.Tensor:
    found = discover.verify(discover.inspect(path))
    assert not found.problem, found
    return of_rank_files(path / name for name in found.files if name.endswith("tensors")).whole(
        "parameter", "w"
    )


def steps(folder: Path) -> list[int]:
    return [found.step for found in discover.listing(folder)]


# -- what stays ------------------------------------------------------------------------------------


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
        (tmp_path / "step-00000005" / discover.STATE).write_text(f"{attempt}")
        store.set_aside(discover.listing(tmp_path))
    assert os.listdir(tmp_path) == ["step-00000005.damaged"]
    assert (tmp_path / "step-00000005.damaged" / discover.STATE).read_text() == "1"


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
    """A file whose writes are operations as well; half of what a killed one should write is there."""

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


# -- damaged ---------------------------------------------------------------------------------------


FILES = [
    discover.MANIFEST,
    discover.STATE,
    "rank-00000.safetensors",
    "rank-00001.safetensors",
    "extras/config.json",
]


def delete(path: Path, other: Path) -> None:
    path.unlink()


def cut_at(share: float) -> Callable[[Path, Path], None]:
    def cut(path: Path, other: Path) -> None:
        os.truncate(path, int(path.stat().st_size * share))

    cut.__name__ = f"cut_at_{share:.0%}"
    return cut


def flip(at: float) -> Callable[[Path, Path], None]:
    def flipped(path: Path, other: Path) -> None:
        content = bytearray(path.read_bytes())
        content[int(at * (len(content) - 1))] ^= 1
        path.write_bytes(content)

    flipped.__name__ = f"flip_at_{at:.0%}"
    return flipped


def swap(path: Path, other: Path) -> None:
    shutil.copy(other, path)


DAMAGES = [delete, *map(cut_at, (0.1, 0.5, 0.99)), *map(flip, (0, 0.3, 0.6, 1)), swap]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", FILES)
def test_damage_is_found_and_named(
    name: str, damage: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    for step in (7, 8):
        save(tmp_path, step)
    good, bad = (tmp_path / store.name_of(step) for step in (7, 8))
    damage(bad / name, good / name)
    found = discover.verify(discover.inspect(bad))
    assert name in found.problem
    assert loaded(good) is not None


def test_every_single_bit_of_the_manifest_counts(tmp_path: Path) -> None:
    save(tmp_path, 8)
    path = tmp_path / store.name_of(8) / discover.MANIFEST
    whole = path.read_bytes()
    for at in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            assert discover.inspect(path.parent).problem, (at, bit)


def test_another_version_of_the_format_is_named(tmp_path: Path) -> None:
    save(tmp_path, 8)
    path = tmp_path / store.name_of(8)
    (path / discover.MANIFEST).write_text(
        discover.sealed({**discover.inspect(path).manifest, "version": 2})
    )
    assert discover.inspect(path).problem == "has version 2 of the format; this program reads 1"


# -- ranges ----------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(data=st.data(), size=st.integers(1, 200), dtype=st.sampled_from(sorted(DTYPES)))
def test_any_range_of_any_pieces(
    data: st.DataObject, size: int, dtype: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("ranges")
    values = torch.randint(0, 2, (size,)).to(DTYPES[dtype])
    cuts = sorted({0, size, *data.draw(st.lists(st.integers(0, size), max_size=5))})
    paths = []
    for number, (low, high) in enumerate(itertools.pairwise(cuts)):
        paths.append(folder / f"{number}")
        write_pieces(
            paths[-1], [(str(Key(kind="k", name="a/b.c", start=low)), values[low:high].clone())]
        )
    whole = of_rank_files(data.draw(st.permutations(paths)))
    low, high = sorted((data.draw(st.integers(0, size)), data.draw(st.integers(0, size))))
    out = torch.empty(high - low, dtype=DTYPES[dtype])
    whole.read("k", "a/b.c", low, out)
    assert torch.equal(out, values[low:high])
    assert whole.whole("k", "a/b.c").numel() == size


def test_tensors_larger_than_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (disk, ranges):
        monkeypatch.setattr(module, "CHUNK", 64)
    values = torch.randn(1000)
    fact = write_pieces(tmp_path / "file", [("k/w/0", values)])
    assert (
        fact.xxh3 == disk.hash_file(tmp_path / "file")
        and fact.bytes == (tmp_path / "file").stat().st_size
    )
    out = torch.empty(777)
    of_rank_files([tmp_path / "file"]).read("k", "w", 111, out)
    assert torch.equal(out, values[111:888])


def test_a_model_folder_is_a_store_as_well(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    weights = {"a.weight": torch.randn(4, 3), "b": torch.randn(5).to(torch.bfloat16)}
    save_file({"a.weight": weights["a.weight"]}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": weights["b"]}, tmp_path / "model-00002-of-00002.safetensors")
    folder, shapes = of_model_folder(tmp_path)
    assert shapes == {"a.weight": (4, 3), "b": (5,)}
    out = torch.empty(5)
    folder.read("parameter", "a.weight", 4, out)
    assert torch.equal(out, weights["a.weight"].flatten()[4:9])
    folder.read("parameter", "b", 0, out)
    assert torch.equal(out, weights["b"].float()), "bfloat16 widens"
    with pytest.raises(CheckpointError, match="elements 5 to 6 are in no file"):
        folder.read("parameter", "b", 1, out)


def test_our_files_open_with_the_safetensors_library(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    values = torch.arange(6.0)
    write_pieces(
        tmp_path / "f", [("parameter/w/0", values), ("optimizer.step/w/0", torch.tensor(3.0))]
    )
    assert {k: v.tolist() for k, v in load_file(tmp_path / "f").items()} == {
        "parameter/w/0": values.tolist(),
        "optimizer.step/w/0": 3.0,
    }
