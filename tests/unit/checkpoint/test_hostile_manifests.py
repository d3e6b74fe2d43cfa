"""A stranger's checkpoint: manifests, states and values of another form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from forging import Forge, Noted, check_refused, fact, sealed, stated
from one_process import fit, reseal

from trainer import CheckpointError
from trainer.checkpoint import discover
from trainer.checkpoint.contents import _STATE

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


@pytest.mark.parametrize(
    "changes",
    [
        {"bytes": -1},
        {"bytes": True},
        {"bytes": "12"},
        {"bytes": 12.5},
        {"bytes": 10**30},
        {"xxh3": 7},
    ],
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
        (path / name).write_bytes(
            state.replace('"samples": 48', f'"samples": {text}').encode("latin-1")
        )
        reseal(path)

    check_refused(place, forge, at_a_glance=name == discover.MANIFEST)


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


@pytest.mark.parametrize(
    "forge", [stated(lambda state: [state]), stated(lambda state: {**state, "step": 4})]
)
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
def test_values_that_nobody_encoded_are_refused_at_resume(
    changes: dict[str, Any], place: Path
) -> None:
    path = place / "theirs" / "step-00000002"
    settings = (
        {"schedule": "torch:ExponentialLR", "schedule_settings": {"gamma": 0.9}}
        if "schedule" in changes
        else {}
    )
    stated(lambda state: {**state, **changes})(path)
    with pytest.raises(CheckpointError):
        fit(
            place / "new",
            Noted(),
            max_steps=4,
            ema_decay=0.9,
            allow_config_change=True,
            resume=str(path),
            **settings,
        )
