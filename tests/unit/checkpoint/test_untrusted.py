"""Forged checkpoints: whatever reads one refuses it in one line and writes nothing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from launchers import json_in
from one_process import checkpoint, fit, reseal
from resuming import Odd
from safetensors.torch import load_file, save_file

from trainer import CheckpointError
from trainer.checkpoint import disk, store
from trainer.commands import cli

RANK = "rank-00000.safetensors"
WEIGHT = "parameter/middle.weight/0"


class WithNote(Odd):
    def save_extras(self, directory: Path) -> None:
        (directory / "words").mkdir()
        (directory / "words/note.txt").write_text("beside the model")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("honest")
    fit(folder / "run", WithNote(), max_steps=2)
    return checkpoint(folder / "run", 2)


@pytest.fixture
def forged(honest: Path, tmp_path: Path) -> Path:
    """A copy of a checkpoint, for a test to change, beside a file that is private."""
    (tmp_path / "secret").write_text("private")
    path = tmp_path / "theirs" / honest.name
    shutil.copytree(honest, path)
    return path


def exported(path: Path) -> int:
    return cli.main(["export", str(path), "--to", str(path.parent.parent / "stolen")])


def check_refused(path: Path, message: str) -> None:
    """Check that a checkpoint is refused by resume and by export, before anything is written."""
    before = sorted(path.parent.parent.rglob("*"))
    with pytest.raises(CheckpointError, match=message):
        fit(path.parent.parent / "new", WithNote(), max_steps=4, resume=str(path))
    shutil.rmtree(path.parent.parent / "new")  # the lock of a run that was not to be
    assert cli.main(["checkpoints", str(path.parent), "--verify"]) == 1
    assert exported(path) == 1
    assert sorted(path.parent.parent.rglob("*")) == before


def test_an_honest_checkpoint_is_accepted(forged: Path) -> None:
    """Otherwise the refusals below would prove nothing."""
    assert cli.main(["checkpoints", str(forged.parent), "--verify"]) == 0
    assert exported(forged) == 0
    note = forged.parent.parent / "stolen/words/note.txt"
    assert note.read_text() == "beside the model"


# -- paths -----------------------------------------------------------------------------------------


def add_to_manifest(path: Path, name: str, content: bytes) -> None:
    manifest = json_in(path / store.MANIFEST)
    digest = xxhash.xxh3_128_hexdigest(content)
    manifest["files"][name] = {"bytes": len(content), "xxh3": digest}
    (path / store.MANIFEST).write_text(store.sealed(manifest))


@pytest.mark.parametrize(
    "name",
    [
        "/etc/hostname",
        "extras/../../../secret",
        "../x",
        "extras//x",
        "",
        "extras\\x",
        "extras/a\0b",
    ],
)
def test_a_path_outside_the_folder_is_refused(name: str, forged: Path) -> None:
    add_to_manifest(forged, name, b"private")
    check_refused(forged, "is no plain file inside the folder")


@pytest.mark.parametrize("name", [store.STATE, RANK, "extras"])
def test_a_link_out_of_the_folder_is_refused(name: str, forged: Path) -> None:
    moved = forged.parent.parent / "moved"
    (forged / name).rename(moved)
    (forged / name).symlink_to(moved)
    check_refused(forged, "is no plain file")


def test_a_pipe_is_refused_and_not_waited_for(forged: Path) -> None:
    (forged / "extras/words/note.txt").unlink()
    os.mkfifo(forged / "extras/words/note.txt")
    check_refused(forged, "is no plain file")


def test_a_file_beside_the_model_cannot_replace_it(forged: Path) -> None:
    (forged / "extras/model.safetensors").write_bytes(b"forged")
    add_to_manifest(forged, "extras/model.safetensors", b"forged")
    assert exported(forged) == 1
    assert not (forged.parent.parent / "stolen").exists()


# -- manifest.json and state.json ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": "2"}, r"manifest.json: step: '2': Input should be a valid integer"),
        ({"files": []}, r"manifest.json: files: '\[\]': Input should be an object"),
        (
            {"files": {"state.json": 3}},
            r"manifest.json: files.state.json: '3': Input should be an object",
        ),
    ],
)
def test_a_manifest_of_another_form_is_refused(
    change: dict[str, Any], message: str, forged: Path
) -> None:
    manifest = json_in(forged / store.MANIFEST)
    (forged / store.MANIFEST).write_text(store.sealed({**manifest, **change}))
    check_refused(forged, message)


@pytest.mark.parametrize("text", ["5", "[]", "null", "{}", "{", "\udcff", "[" * 100_000])
def test_a_state_that_is_no_mapping_of_the_format_is_refused(text: str, forged: Path) -> None:
    (forged / store.STATE).write_bytes(text.encode(errors="surrogateescape"))
    reseal(forged)
    check_refused(forged, "state.json")


@pytest.mark.parametrize("dtype", ["load", "complex64", 3])
def test_a_model_with_an_unknown_dtype_is_refused(dtype: Any, forged: Path) -> None:
    change_state(forged, lambda state: state["model"][0].__setitem__(2, dtype))
    check_refused(forged, r"state.json: .*(should match pattern|should be a valid string)")


def test_json_above_the_limit_is_not_parsed(forged: Path) -> None:
    os.truncate(forged / store.MANIFEST, disk.LARGEST_JSON + 1)
    check_refused(forged, "manifest.json cannot be read: more than")


# -- tensors ---------------------------------------------------------------------------------------


def change_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(path / RANK)
    change(tensors)
    save_file(tensors, path / RANK)
    reseal(path)


def test_a_tensor_of_another_length_is_refused(forged: Path) -> None:
    change_tensors(forged, lambda tensors: tensors.update({WEIGHT: torch.zeros(16)}))
    check_refused(forged, r"parameter middle.weight: .*15")


@pytest.mark.parametrize("change", [1 << 40, {"shape": [16]}, {"dtype": "Q8"}], ids=str)
def test_a_header_that_does_not_fit_its_bytes_is_refused(
    change: int | dict[str, Any], forged: Path
) -> None:
    content = (forged / RANK).read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header[WEIGHT] |= change if isinstance(change, dict) else {}
    text = json.dumps(header).encode()
    length = len(text) if isinstance(change, dict) else change
    (forged / RANK).write_bytes(length.to_bytes(8, "little") + text + content[end:])
    reseal(forged)
    check_refused(forged, "safetensors")


# -- values ----------------------------------------------------------------------------------------


def change_state(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    state = json_in(path / store.STATE)
    change(state)
    (path / store.STATE).write_text(json.dumps(state))
    reseal(path)


def check_not_resumed(path: Path, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        fit(path.parent.parent / "new", WithNote(), max_steps=4, resume=str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("spent", {"tokens": 1.0}, "spent.seconds: .*Field required"),
        ("export", {"file": "../x", "names": {}}, "state.json: export.file: .*match pattern"),
        ("samples", 10**400, "state.json: samples: .*less than"),
        ("data", {"samples": 2**63}, "state.json: data.samples: .*less than"),
        ("task", {"$tensor": ["task.nothing", [1]]}, r"no run writes: KeyError\(.*task.nothing"),
        ("task", {"$tuple": 5}, r"no run writes: TypeError\("),
        ("callbacks", {"Best": {"$number": "x"}}, r"no run writes: ValueError\("),
    ],
)
def test_a_state_that_no_run_writes_is_refused_by_a_resume(
    key: str, value: Any, message: str, forged: Path
) -> None:
    change_state(forged, lambda state: state.update({key: value}))
    check_not_resumed(forged, message)


@pytest.mark.parametrize(
    ("key", "value"),
    [("amsgrad", True), ("eps", "1"), ("differentiable", 1), ("betas", 5), ("betas", [0.9])],
)
def test_settings_of_the_optimizer_that_are_no_numbers_are_refused_if_they_changed(
    key: str, value: Any, forged: Path
) -> None:
    change_state(forged, lambda state: state["group_settings"][0].update({key: value}))
    check_not_resumed(forged, f"group_settings: {key}: .* only numbers may change")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rng.torch/0/0", r"no run writes: KeyError\('torch'\)"),
        ("rng.python/0/0", r"no run writes: KeyError\('python'\)"),
        (
            "optimizer.step/middle.weight/0",
            r"middle.weight: .* only \['exp_avg', 'exp_avg_sq'\] is there",
        ),
        (
            "optimizer.exp_avg/middle.weight/0",
            r"middle.weight: .* only \['exp_avg_sq', 'step'\] is there",
        ),
    ],
)
def test_a_resume_refuses_a_checkpoint_that_lacks_a_state(
    name: str, message: str, forged: Path
) -> None:
    def rename(tensors: dict[str, torch.Tensor]) -> None:
        kind, rest = name.split("/", 1)
        tensors[f"{kind}x/{rest}"] = tensors.pop(name)
        if kind == "rng.torch":
            tensors["rng.torch/7/0"] = torch.zeros(3, dtype=torch.uint8)  # one rank wrote it

    change_tensors(forged, rename)
    check_not_resumed(forged, message)
