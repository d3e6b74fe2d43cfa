"""Checkpoints that a stranger made up: refused by whatever reads them, and nothing is written by it anywhere."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from one_process import checkpoint, fit, reseal
from resuming import Odd

from trainer import CheckpointError, TrainerError
from trainer.checkpoint import discover
from trainer.checkpoint.contents import _STATE
from trainer.checkpoint.safetensors_io import header, raw, read_header
from trainer.commands import cli
from trainer.reporting.lock import LOCK

pytestmark = pytest.mark.usefixtures("fresh_accelerate")
RANK = "rank-00000.safetensors"
Forge = Callable[[Path], None]


class Noted(Odd):
    def save_extras(self, directory: Path) -> None:
        (directory / "words").mkdir()
        (directory / "words" / "note.txt").write_text("beside the model")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("honest")
    fit(folder / "run", Noted(), max_steps=2, ema_decay=0.9)
    return checkpoint(folder / "run", 2)


@pytest.fixture
def place(honest: Path, tmp_path: Path) -> Path:
    """A stranger's checkpoint beside a file that is not his."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "secret").write_text("private")
    shutil.copytree(honest, tmp_path / "theirs" / honest.name)
    return tmp_path


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Each file below a folder with its content, and links and pipes as what they are; without a new run's lock."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        if (not path.is_dir() or path.is_symlink()) and path != folder / "new" / LOCK:
            found[str(path)] = mode, path.read_bytes() if path.is_file() and not path.is_symlink() else b""
    return found


def readers(place: Path) -> dict[str, Callable[[], Any]]:
    """Whatever reads a checkpoint; each raises or returns something true where it does not take it."""
    theirs = place / "theirs"
    path = theirs / "step-00000002"

    def refused(work: Callable[[], Any]) -> str:
        try:
            work()
        except TrainerError as error:
            return str(error)
        return ""

    return {
        "verify": lambda: cli.main(["checkpoints", str(theirs), "--verify"]),
        "export": lambda: cli.main(["export", str(path), "--to", str(place / "stolen")]),
        "resume": lambda: refused(lambda: fit(place / "new", Noted(), max_steps=4, ema_decay=0.9, resume=str(path))),
    }


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


def check_refused(place: Path, forge: Forge, *, at_a_glance: bool = True) -> None:
    """Hold every reader to refusing it; ``at_a_glance``: a listing that reads no tensors does so as well."""
    path = place / "theirs" / "step-00000002"
    forge(path)
    before = everything(place)
    for name, read in readers(place).items():
        assert read(), name
        assert everything(place) == before, f"{name} has written something"
    assert cli.main(["checkpoints", str(place / "theirs")]) == int(at_a_glance)


# -- names -----------------------------------------------------------------------------------------


def listed(name: str) -> Forge:
    """The manifest lists a file by this name, and one is where it leads to, if that is below the stranger's folder."""

    def forge(path: Path) -> None:
        content = b"owned"
        if path.parent in Path(os.path.normpath(path / name)).parents and "\0" not in name and len(name) < 200:
            with contextlib.suppress(OSError, ValueError):
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                (path / name).write_bytes(content)
        elif os.path.isfile(path / name):
            content = (path / name).read_bytes()
        manifest = json.loads((path / discover.MANIFEST).read_text())
        fact = {"bytes": len(content), "xxh3": xxhash.xxh3_128_hexdigest(content)}
        (path / discover.MANIFEST).write_text(discover.sealed({**manifest, "files": {**manifest["files"], name: fact}}))

    return forge


# Hidden ones, for a visible file in the folder that the manifest does not list by its right name is refused anyway.
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
    """The prefix taken off, ``extras//home/me/.bashrc`` is an absolute path: an export would write there."""
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


# -- the manifest ----------------------------------------------------------------------------------


def fact(**changes: Any) -> Forge:
    def forge(path: Path) -> None:
        manifest = json.loads((path / discover.MANIFEST).read_text())
        files = {**manifest["files"], discover.STATE: {**manifest["files"][discover.STATE], **changes}}
        (path / discover.MANIFEST).write_text(discover.sealed({**manifest, "files": files}))

    return forge


@pytest.mark.parametrize(
    "changes",
    [{"bytes": -1}, {"bytes": True}, {"bytes": "12"}, {"bytes": 12.5}, {"bytes": 10**30}, {"xxh3": 7}],
    ids=str,
)
def test_sizes_and_digests_that_are_none_are_refused(changes: dict[str, Any], place: Path) -> None:
    check_refused(place, fact(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"step": -2}, {"step": "2"}, {"step": 3}, {"step": 2.0}, {"step": None}, {"samples": []}, {"world_size": 0},
        {"world_size": 2}, {"world_size": 10**12}, {"strategy": 3}, {"strategy": "\x1b[2J"}, {"created": "yesterday"},
        {"created": "2026-11-21T12:00:00"}, {"created": 5}, {"files": []}, {"files": {}}, {"files": {"state.json": 3}},
        {"version": 2}, {"version": 0}, {"version": "1"}, {"version": None}, {"format": "another"},
    ],
    ids=str,
)  # fmt: skip
def test_manifests_of_another_form_are_refused(changes: dict[str, Any], place: Path) -> None:
    def forge(path: Path) -> None:
        manifest = json.loads((path / discover.MANIFEST).read_text())
        (path / discover.MANIFEST).write_text(discover.sealed({**manifest, **changes}))

    check_refused(place, forge)


def sealed(text: str) -> str:
    """A manifest with something in it that ``_sealed`` does not write, and the checksum of that."""
    digest = xxhash.xxh3_128_hexdigest(json.dumps({"x": 0}, sort_keys=True).replace("0", text).encode())
    return json.dumps({"checksum": digest, "x": 0}, indent=1).replace(" 0", f" {text}") + "\n"


JSON = [
    "NaN",
    "-Infinity",
    "1e999",
    "[" * 100_000,
    "[" * 5000 + "]" * 5000,
    "[" * 300 + "]" * 300,
    "9" * 5000,
    '"\\ud800',
]


@pytest.mark.parametrize("text", [*JSON, "\xff"], ids=lambda text: text[:9])
@pytest.mark.parametrize("name", [discover.MANIFEST, discover.STATE])
def test_json_that_would_surprise_is_refused(name: str, text: str, place: Path) -> None:
    def forge(path: Path) -> None:
        if name == discover.MANIFEST:
            (path / name).write_bytes(sealed(text).encode("latin-1"))
            return
        state = (path / name).read_text()
        (path / name).write_bytes(state.replace('"samples": 48', f'"samples": {text}').encode("latin-1"))
        reseal(path)

    check_refused(place, forge, at_a_glance=name == discover.MANIFEST)


# -- state.json ------------------------------------------------------------------------------------


def stated(change: Callable[[dict[str, Any]], Any]) -> Forge:
    def forge(path: Path) -> None:
        state = json.loads((path / discover.STATE).read_text())
        (path / discover.STATE).write_text(json.dumps(change(state) or state))
        reseal(path)

    return forge


@pytest.mark.parametrize("value", ["x", -1, [[]], {"x": None}], ids=str)
@pytest.mark.parametrize("key", sorted(_STATE))
def test_state_of_another_form_is_refused(key: str, value: Any, place: Path) -> None:
    if _STATE[key](value):
        value = None
    check_refused(place, stated(lambda state: {**state, key: value}), at_a_glance=False)


@pytest.mark.parametrize(
    "entry",
    [
        ["scale", [-1], "float32"], ["scale", [True], "float32"], ["scale", [1.0], "float32"], ["scale", 1, "float32"],
        ["scale", [2], "float32"], ["scale", [1 << 62, 4], "float32"], ["scale", [1], "load"], ["scale", [1], "Tensor"],
        ["scale", [1], "complex64"], ["scale", [1], None], ["scale", [1]], "scale", ["other", [1], "float32"],
        ["middle.bias", [3], "float32"],
    ],
    ids=str,
)  # fmt: skip
def test_models_that_the_files_do_not_hold_are_refused(entry: Any, place: Path) -> None:
    def change(state: dict[str, Any]) -> None:
        [number] = [number for number, one in enumerate(state["model"]) if one[0] == "scale"]
        state["model"][number] = entry

    check_refused(place, stated(change), at_a_glance=False)


@pytest.mark.parametrize("forge", [stated(lambda state: [state]), stated(lambda state: {**state, "step": 4})])
def test_state_of_another_checkpoint_is_refused(forge: Forge, place: Path) -> None:
    check_refused(place, forge, at_a_glance=False)


WRONG = [
    {"task": {"steps": {"$tensor": ["nowhere", [1]]}}},
    {"task": {"steps": {"$tensor": ["task.last", [3, 3]]}}},
    {"task": {"steps": {"$tensor": [["task.last"], [2, 2]]}}},
    {"task": {"steps": {"$number": "1e5"}}},
    {"task": {"steps": {"$tuple": 3}}},
    {"task": {"steps": {"$run": "rm"}}},
    {"data": {"samples": 48, "$tuple": []}},
    {"last_evaluation": {"loss": {"$tensor": "task.last"}}},
    {"group_settings": [{"betas": "x"}]},
    {"group_settings": [{"params": [1]}, {"betas": [0.1], "lr": 3, "weight_decay": [1]}]},
    {
        "schedule": {
            "kind": "ExponentialLR",
            "steps": 2,
            "lr": [0.05, 0.05],
            "own": {"_schedulers": [{}], "lr_lambdas": 1},
        }
    },
]


@pytest.mark.parametrize("changes", WRONG, ids=str)
def test_values_that_nobody_encoded_are_refused_at_resume(changes: dict[str, Any], place: Path) -> None:
    path = place / "theirs" / "step-00000002"
    settings = {"schedule": "torch:ExponentialLR", "schedule_settings": {"gamma": 0.9}} if "schedule" in changes else {}
    stated(lambda state: {**state, **changes})(path)
    with pytest.raises(CheckpointError):
        fit(place / "new", Noted(), max_steps=4, ema_decay=0.9, allow_config_change=True, resume=str(path), **settings)


# -- headers ---------------------------------------------------------------------------------------


def headed(change: Callable[[dict[str, Any]], Any]) -> Forge:
    """The header of the tensors is another one, before the same bytes."""

    def forge(path: Path) -> None:
        content = (path / RANK).read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        told = json.loads(content[8:end])
        text = json.dumps(change(told) or told).encode()
        (path / RANK).write_bytes(len(text).to_bytes(8, "little") + text + content[end:])
        reseal(path)

    return forge


def entry(**changes: Any) -> Forge:
    return headed(lambda told: told["parameter/middle.weight/0"].update(changes))


def renamed(name: str) -> Forge:
    return headed(lambda told: told.update({name: told.pop("parameter/middle.weight/0")}))


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
    content, begin = (path / RANK).read_bytes(), min(e.begin for e in read_header(path / RANK).values())
    more = torch.zeros(3)
    told = header([*tensors, ("parameter/middle.weight/2", (3,), torch.float32)], {})
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


def test_a_missing_tensor_is_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    renamed("parameter/nobody/0")(place / "theirs" / "step-00000002")
    assert cli.main(["checkpoints", str(place / "theirs"), "--verify"]) == 1
    assert "damaged: parameter middle.weight: elements 0 to 15 are in no file" in capsys.readouterr().out


def test_a_file_beside_the_model_cannot_stand_in_for_it(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = place / "theirs" / "step-00000002"
    (path / "extras" / "model.safetensors").write_bytes(b"owned")
    listed("extras/model.safetensors")(path)
    assert cli.main(["export", str(path), "--to", str(place / "model")]) == 1
    assert "is the model's own name" in capsys.readouterr().err
    assert sorted(os.listdir(place)) == ["home", "theirs"]


# -- other programs' -------------------------------------------------------------------------------


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
    change: Callable[[Any], None], said: str, distributed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [data] = [path for path in distributed.iterdir() if not path.name.startswith(".")]
    shutil.copy(data, tmp_path / "elsewhere")
    (distributed / "link").symlink_to(tmp_path / "elsewhere")
    assert cli.main(["import", str(distributed.parent), "--to", str(tmp_path / "honest")]) == 0
    described(distributed, change)
    assert cli.main(["import", str(distributed.parent), "--to", str(tmp_path / "model")]) == 1
    assert said in capsys.readouterr().err
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "honest", "theirs"]
