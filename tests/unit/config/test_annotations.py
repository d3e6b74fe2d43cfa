"""Settings of dataclasses: every type, and every wrong value with its one line."""

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

from trainer.config.dump import to_yaml
from trainer.config.load import Loaded, check_settings, load_config
from trainer.config.plain import plain
from trainer.config.train_config import TrainConfig
from trainer.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: Annotated[float, Field(description="dropped share", ge=0, lt=1)] = 0.0
    kind: Literal["relu", "no"] = "relu"


@dataclass(frozen=True, kw_only=True)
class Task:
    registry: ClassVar[dict[str, int]] = {}
    width: Annotated[int, Field(description="channels", ge=1)]
    name: str = "x"
    sizes: tuple[int, ...] = (1,)
    pair: tuple[int, str] = (1, "a")
    limit: Literal["auto"] | int = "auto"
    words: list[str] = field(default_factory=list)
    shares: list[Annotated[float, Field(le=1)]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    anything: Any = None
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self) -> None:
        if self.width == 13:
            raise ValueError("13 channels bring bad luck")


class Activation(Enum):
    RELU = "relu"
    GELU = "gelu"


@dataclass(frozen=True, kw_only=True)
class Rich:
    """Fields that ordinary dataclasses have, and defaults that a file could not set."""

    root: Path = Path("data")
    cache: Path | None = None
    tags: frozenset[str] = frozenset({"b", "a"})
    levels: set[int] = field(default_factory=set)
    activation: Activation = Activation.RELU
    others: tuple[Activation, ...] = ()
    names: Sequence[str] | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    limit: float = math.inf
    bound: Annotated[int, Field(ge=0)] = -1
    phase: complex = 1j
    pair: tuple[int, int] = (1, 2)


def rich(text: str, *argv: str) -> tuple[Rich, TrainConfig]:
    """The task, and the config of its run as it is read from the file that the run leaves."""
    Path("train.yaml").write_text(f"task: a:B\nepochs: 1\ntask_settings: {text}\n")
    loaded = load_config(["--config=train.yaml", *argv])
    task = check_settings(Rich, loaded.config.task_settings, loaded)
    left = replace(loaded.config, task_settings=plain(task))
    Path("config.yaml").write_text(to_yaml(left))
    again = load_config(["--config=config.yaml"])
    assert again.config == left
    assert check_settings(Rich, again.config.task_settings, again) == task
    assert json.loads(json.dumps(left.task_settings, allow_nan=False)) == left.task_settings, (
        "checkpoints hold it"
    )
    return task, left


def test_fields_of_ordinary_dataclasses(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, left = rich("{}")
    assert task == Rich()
    assert left.task_settings == {
        "root": "data", "cache": None, "tags": ["a", "b"], "levels": [], "activation": "RELU", "others": [],
        "names": None, "rates": {},
        "limit": "inf", "bound": -1, "phase": "1j", "pair": [1, 2],
    }  # fmt: skip
    monkeypatch.setenv("HOME", "/home/me")
    text = "{root: ~/x, cache: y, tags: [c, c], levels: [3, 1], activation: GELU, others: [RELU, GELU], limit: 2}"
    task, _ = rich(text, "--task_settings.cache=2024")
    assert task == Rich(
        root=Path("/home/me/x"),
        cache=Path("2024"),
        tags=frozenset({"c"}),
        levels={1, 3},
        activation=Activation.GELU,
        others=(Activation.RELU, Activation.GELU),
        limit=2.0,
    )


def test_abstract_collections_are_lists_and_mappings_in_a_file(here: Path) -> None:
    task, _ = rich("{names: [a, b], rates: {stem: 1}}")
    assert task == Rich(names=["a", "b"], rates={"stem": 1.0})
    with pytest.raises(ConfigError, match=r"task_settings.names.1: 3: must be text"):
        rich("{names: [a, 3]}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{root: 2024}", "task_settings.root: 2024: must be text; put it in quotes"),
        ("{tags: a}", "task_settings.tags: 'a': must be a list such as [a, b]"),
        ("{levels: [[1]]}", "task_settings.levels.0: [1]: must be a whole number"),
        (
            "{activation: relu}",
            "task_settings.activation: 'relu': must be one of 'RELU', 'GELU'; did you mean 'RELU'?",
        ),
        (
            "{activation: GELLU}",
            "task_settings.activation: 'GELLU': must be one of 'RELU', 'GELU'; did you mean 'GELU'?",
        ),
        ("{bound: -2}", "task_settings.bound: -2: must be at least 0"),
        ("{limit: .nan}", "task_settings.limit: nan: must be a finite number"),
        (
            "{phase: 2j}",
            "task_settings.phase: '2j': must be set in code: a file cannot give the type <class 'complex'>",
        ),
    ],
)
def test_wrong_values_of_such_fields(here: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rich(text)
    assert str(caught.value) == f"train.yaml:3: {message}"


def settings(text: str, *argv: str) -> Task:
    Path("train.yaml").write_text(f"task: a:B\nepochs: 1\ntask_settings:\n{text}\n")
    loaded = load_config(["--config=train.yaml", *argv])
    return check_settings(Task, loaded.config.task_settings, loaded)


def test_settings_of_every_type(here: Path) -> None:
    text = (
        "  width: 4\n  name: y\n  sizes: [1, 2, 3]\n  pair: [2, b]\n  limit: 7\n  words: [a]\n"
        "  counts: {a: 1}\n  anything: {b: [1]}\n  inner: {rate: 0}"
    )
    expected = Task(
        width=4,
        name="y",
        sizes=(1, 2, 3),
        pair=(2, "b"),
        limit=7,
        words=["a"],
        counts={"a": 1},
        anything={"b": [1]},
        inner=Inner(rate=0.0),
    )
    assert settings(text) == expected


def test_the_type_of_a_setting_decides_how_its_argument_is_read(here: Path) -> None:
    task = settings(
        "  width: 4\n  inner: {rate: 0.5}",
        "--task_settings.name=007",
        "--task_settings.inner.kind=no",
        "--task_settings.limit",
        "5",
    )
    assert task == Task(width=4, name="007", limit=5, inner=Inner(rate=0.5, kind="no"))
    assert settings("  width: 4", "--task_settings.limit=auto").limit == "auto"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("  widht: 4", "4: task_settings.widht: 4: unknown key; did you mean 'width'?"),
        ("  name: y", "3: task_settings.width: is required: channels"),
        ("  width: 0", "4: task_settings.width: 0: must be at least 1"),
        ("  width: 13", "3: task_settings: 13 channels bring bad luck"),
        ("  width: 1\n  name: no", "5: task_settings.name: false: must be text; put it in quotes"),
        ("  width: 1\n  sizes: [1, 2.5]", "5: task_settings.sizes.1: 2.5: must be a whole number"),
        ("  width: 1\n  pair: [1]", "5: task_settings.pair: [1]: must be a list of 2 values"),
        (
            "  width: 1\n  pair: [1, 2]",
            "5: task_settings.pair.1: 2: must be text; put it in quotes",
        ),
        ("  width: 1\n  shares: [1, 2]", "5: task_settings.shares.1: 2: must be at most 1"),
        ("  width: 1\n  words: a", "5: task_settings.words: 'a': must be a list such as [a, b]"),
        ("  width: 1\n  counts: {a: b}", "5: task_settings.counts.a: 'b': must be a whole number"),
        ("  width: 1\n  inner: 3", "5: task_settings.inner: 3: must be a mapping"),
        (
            "  width: 1\n  inner:\n    rate: 1",
            "6: task_settings.inner.rate: 1: must be less than 1",
        ),
        (
            "  width: 1\n  inner:\n    rat: 1",
            "6: task_settings.inner.rat: 1: unknown key; did you mean 'rate'?",
        ),
        (
            "  width: 1\n  registry: {}",
            "5: task_settings.registry: {}: unknown key; "
            "known: anything, counts, inner, limit, name, pair, shares, sizes, width, words",
        ),
    ],
)
def test_wrong_settings(here: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(text)
    assert str(caught.value) == f"train.yaml:{message}"


def test_wrong_settings_of_the_command_line(here: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(
            "  width: 1",
            "--task_settings.inner.rate=x",
            "--task_settings.nme",
            "y",
            "--task_settings.width",
            "3.0",
        )
    assert str(caught.value).splitlines() == [
        "command line: task_settings.width: 3.0: must be a whole number; write 3",
        "command line: task_settings.inner.rate: 'x': must be a number",
        "command line: task_settings.nme: 'y': unknown key; did you mean 'name'?",
    ]


def message_of(cls: type, given: dict[str, Any]) -> str:
    loaded = Loaded(config=TrainConfig(task="a:B", epochs=1, task_settings=given), origins={})
    with pytest.raises(ConfigError) as caught:
        check_settings(cls, given, loaded)
    return str(caught.value)


def test_mistakes_of_whoever_wrote_the_task() -> None:
    class Undecorated(Task):
        depth: int = 3

    @dataclass(frozen=True, kw_only=True)
    class Unresolved:
        path: NowhereToBeFound  # type: ignore[name-defined]  # noqa: F821

    @dataclass(frozen=True, kw_only=True)
    class Unreadable:
        scale: complex = 1j

    @dataclass(frozen=True, kw_only=True)
    class Bare:
        pass

    home = f"{__name__}:test_mistakes_of_whoever_wrote_the_task.<locals>"
    assert message_of(Undecorated, {"width": 1}) == (
        f"{home}.Undecorated: put @dataclass(frozen=True, kw_only=True) above the class: depth cannot be set without"
    )
    assert message_of(Unresolved, {"path": "x"}) == (
        f"{home}.Unresolved: annotations must exist at run time, outside of TYPE_CHECKING: "
        "name 'NowhereToBeFound' is not defined"
    )
    assert message_of(Unreadable, {"scale": 2}) == (
        "TrainConfig: task_settings.scale: 2: must be set in code: a file cannot give the type <class 'complex'>"
    )
    assert (
        message_of(Bare, {"x": 1})
        == "TrainConfig: task_settings.x: 1: unknown key; there are no settings here"
    )
