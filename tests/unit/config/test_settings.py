"""Settings of tasks: every type, every wrong value with its one line, and what a run writes of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field

from trainer.config.documents import to_yaml
from trainer.config.load import check_settings, load_config
from trainer.config.plain import plain
from trainer.errors import ConfigError


class Activation(Enum):
    RELU = "relu"
    GELU = "gelu"


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: Annotated[float, Field(ge=0, lt=1)] = 0.0
    kind: Literal["relu", "no"] = "relu"


@dataclass(frozen=True, kw_only=True)
class Task:
    registry: ClassVar[dict[str, int]] = {}
    memory: list[int] = field(default_factory=list, init=False, compare=False)
    width: Annotated[int, Field(ge=1)]
    name: str = "x"
    sizes: tuple[int, ...] = (1,)
    pair: tuple[int, str] = (1, "a")
    limit: Literal["auto"] | int = "auto"
    files: str | list[str] = "a"
    shares: list[Annotated[float, Field(le=1)]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    anything: Any = None
    inner: Inner = field(default_factory=Inner)
    layers: list[Inner | int] = field(default_factory=list)
    root: Path = Path("data")
    tags: frozenset[str] = frozenset({"b", "a"})
    activation: Activation = Activation.RELU
    others: tuple[Activation, ...] = ()
    names: Sequence[str] | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    bound: Annotated[float, Field(ge=0)] = -math.inf  # a default that a file cannot give
    dtype: type | None = None

    def __post_init__(self) -> None:
        if self.width == 13:
            raise ValueError("13 channels bring bad luck")


def settings(text: str, *argv: str) -> Task:
    """The task, and again that of the config which its run leaves."""
    Path("train.yaml").write_text(f"task: a:B\nepochs: 1\ntask_settings: {text}\n")
    loaded = load_config(["--config=train.yaml", *argv])
    task = check_settings(Task, loaded.config.task_settings, loaded)

    left = replace(loaded.config, task_settings=plain(task))
    Path("config.yaml").write_text(to_yaml(vars(left)))
    again = load_config(["--config=config.yaml"])
    assert again.config == left
    assert check_settings(Task, again.config.task_settings, again) == task
    assert json.loads(json.dumps(left.task_settings, allow_nan=False)) == left.task_settings
    return task


def test_settings_of_every_type(here: Path) -> None:
    assert settings("{width: 4}") == Task(width=4)
    task = settings(
        "{width: 4, name: y, sizes: [1, 2], pair: [2, b], limit: 7, files: [a], shares: [1, 0.5], counts: {a: 1}, "
        "anything: {b: [1]}, inner: {rate: 0}, layers: [{kind: 'no'}, 3], root: x, tags: [c, c], activation: gelu, "
        "others: [relu, gelu], names: [a, b], rates: {stem: 1}, bound: 2}"
    )
    assert task == Task(
        width=4,
        name="y",
        sizes=(1, 2),
        pair=(2, "b"),
        limit=7,
        files=["a"],
        shares=[1.0, 0.5],
        counts={"a": 1},
        anything={"b": [1]},
        layers=[Inner(kind="no"), 3],
        root=Path("x"),
        tags=frozenset({"c"}),
        activation=Activation.GELU,
        others=(Activation.RELU, Activation.GELU),
        names=["a", "b"],
        rates={"stem": 1.0},
        bound=2.0,
    )


def test_the_type_of_a_setting_decides_how_its_argument_is_read(here: Path) -> None:
    words = ["name=007", "inner.kind=no", "limit=5", "root=2024", "inner.rate=0.25"]
    argv = [f"--task_settings.{word}" for word in words]
    expected = Task(
        width=4, name="007", limit=5, root=Path("2024"), inner=Inner(rate=0.25, kind="no")
    )
    assert settings("{width: 4, inner: {rate: 0.5}}", *argv) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("widht: 4", ".widht: 4: unknown key; did you mean 'width'?"),
        ("width: 0", ".width: 0: must be greater than or equal to 1"),
        ("width: 13", ": 13 channels bring bad luck"),
        ("width: '3'", ".width: '3': must be a valid integer"),
        ("width: true", ".width: true: must be a valid integer"),
        ("sizes: [1, 2.5]", ".sizes.1: 2.5: must be a valid integer"),
        ("pair: [1, 2]", ".pair.1: 2: must be a valid string"),
        ("limit: soon", ".limit: 'soon': must be 'auto' or must be a valid integer"),
        ("shares: [1e999]", ".shares.0: 'inf': must be a valid number"),
        ("counts: {a: b}", ".counts.a: 'b': must be a valid integer"),
        ("inner: 3", ".inner: 3: must be an object"),
        ("inner: {rate: 1}", ".inner.rate: 1: must be less than 1"),
        ("inner: {kind: no}", ".inner.kind: false: must be 'relu' or 'no'"),
        ("layers: [a]", ".layers.0: 'a': must be an object or must be a valid integer"),
        ("registry: {}", ".registry: {}: unknown key; known: activation, anything, bound"),
        ("memory: []", ".memory: []: unknown key; known: activation, anything, bound"),
        ("activation: RELU", ".activation: 'RELU': must be 'relu' or 'gelu'"),
        ("bound: -2", ".bound: -2: must be greater than or equal to 0"),
        ("dtype: int", ".dtype: 'int': must be a type"),
    ],
)  # fmt: skip
def test_wrong_settings(here: Path, text: str, message: str) -> None:
    rest = "" if text.startswith("wid") else "width: 1, "
    with pytest.raises(ConfigError) as caught:
        settings(f"{{{rest}{text}}}")
    told = str(caught.value).splitlines()[-1 if text.startswith("widht") else 0]
    assert told.startswith(f"train.yaml:3: task_settings{message}")


def test_all_wrong_settings_are_told_at_once_each_where_it_was_set(here: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(
            "{inner: {rate: x}, shares: [2, 3]}",
            "--task_settings.nme",
            "y",
            "task_settings.limit=no",
        )
    assert sorted(str(caught.value).splitlines()) == [
        "command line: task_settings.limit: false: must be 'auto' or must be a valid integer",
        "command line: task_settings.nme: 'y': unknown key; did you mean 'name'?",
        "train.yaml:3: task_settings.inner.rate: 'x': must be a valid number",
        "train.yaml:3: task_settings.shares.0: 2: must be less than or equal to 1",
        "train.yaml:3: task_settings.shares.1: 3: must be less than or equal to 1",
        "train.yaml:3: task_settings.width: is required",
    ]
