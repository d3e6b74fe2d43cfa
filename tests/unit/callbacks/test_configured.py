"""Callbacks that the training config names: found, checked, made, saved, and told at a resume."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from brought_tasks import Plain
from launchers import json_in
from one_process import fit
from pydantic import Field

import trainer
from trainer import Callback, ConfigError, Run, StepInfo, TrainConfig, load_config, load_task
from trainer.callbacks.configured import configured_callbacks
from trainer.row import row_of

MADE: list[str] = []


@pytest.fixture(autouse=True)
def nothing_made() -> Iterator[None]:
    MADE.clear()
    yield
    MADE.clear()


@dataclass
class Thaw(Callback):
    """A dataclass, whose fields are its settings."""

    at: Annotated[int, "step", Field(ge=1)]
    layers: str = "stem.*"
    rates: list[float] = field(default_factory=list)
    seen: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.layers == "":
            raise ValueError("layers names none")

    def on_step(self, run: Run, info: StepInfo) -> None:
        self.seen += 1

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: Any) -> None:
        self.seen = state["seen"]


class Words(Callback):
    """A plain class, whose settings are the arguments of its ``__init__``."""

    def __init__(self, text: str, times: int = 1, *, tags: tuple[str, ...] = ()) -> None:
        MADE.append(text)
        self.text, self.times, self.tags = text, times, tags

    def on_step(self, run: Run, info: StepInfo) -> None:
        run.say(f"{self.text} {info.step}")


class Loud(Words):
    """Inherits its ``__init__``."""


class Silent(Callback):
    """Takes no settings."""


HERE = __name__


def named(*entries: Any) -> list[Callback]:
    return configured_callbacks(list(entries), {})


def problems(*entries: Any) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        configured_callbacks(list(entries), {})
    return [str(problem) for problem in raised.value.problems]


def test_classes_are_made_with_their_settings_in_the_order_of_the_list() -> None:
    silent, thaw, words, loud = named(
        f"{HERE}:Silent",
        {f"{HERE}:Thaw": {"at": 3, "rates": [1, 0.5]}},
        {f"{HERE}:Words": {"text": "a", "tags": ["b"]}},
        {f"{HERE}:Loud": {"text": "c", "times": 2}},
    )
    assert isinstance(silent, Silent)
    assert isinstance(thaw, Thaw) and (thaw.at, thaw.rates) == (3, [1.0, 0.5])
    assert isinstance(words, Words) and (words.text, words.times, words.tags) == ("a", 1, ("b",))
    assert isinstance(loud, Loud) and (loud.text, loud.times) == ("c", 2)


@pytest.mark.parametrize(
    ("entry", "rule"),
    [
        (f"{HERE}:Thow", "did you mean 'Thaw'?"),
        ({f"{HERE}:Thaw": {"at": 3, "layer": "x"}}, "unknown key; did you mean 'layers'?"),
        ({f"{HERE}:Thaw": {"at": "3"}}, "must be a valid integer"),
        ({f"{HERE}:Thaw": {"at": 1, "layers": ""}}, "layers names none"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_the_place(entry: Any, rule: str) -> None:
    [problem] = problems(f"{HERE}:Silent", entry)
    assert rule in problem and "callbacks.1" in problem, problem


def test_a_check_makes_dataclasses_alone() -> None:
    both = [{f"{HERE}:Words": {"text": "a"}}, {f"{HERE}:Thaw": {"at": 1}}]
    configured_callbacks(both, {}, only_check=True)
    assert MADE == []
    with pytest.raises(ConfigError, match="layers names none"):
        configured_callbacks([{f"{HERE}:Thaw": {"at": 1, "layers": ""}}], {}, only_check=True)


def test_they_come_behind_those_of_the_code_and_before_the_checkpoint() -> None:
    config = TrainConfig(task="m:T", max_steps=1, callbacks=[f"{HERE}:Silent"])
    row = row_of(config, [Words("code")], {})
    names = [type(hook).__name__ for hook in row]
    assert names[-4:] == ["Words", "Silent", "SanityEvaluation", "SaveCheckpoints"]


# -- files ----------------------------------------------------------------------------------------

MODULE = """
from dataclasses import dataclass
import torch
import trainer

class Line(trainer.Task):
    def build_data(self):
        return trainer.Data(train=torch.randn(16, 2))

    def build_model(self):
        return torch.nn.Linear(2, 1)

    def training_step(self, model, batch):
        return model(batch).pow(2).mean()

@dataclass
class Thaw(trainer.Callback):
    at: int
    layers: str = "stem.*"
"""


@pytest.fixture
def config_file(module_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of one's own beside a training config that names its callback."""
    monkeypatch.syspath_prepend(module_folder)
    (module_folder / "line.py").write_text(MODULE)
    path = module_folder / "train.yaml"
    path.write_text("task: line:Line\nmax_steps: 2\ncallbacks:\n  - line:Thaw:\n      at: 3\n")
    return path


def test_a_wrong_setting_is_told_with_its_line_before_anything_starts(config_file: Path) -> None:
    text = config_file.read_text()
    config_file.write_text(text.replace("at: 3", "at: 3\n      layer: x"))
    with pytest.raises(ConfigError) as raised:
        load_task(load_config([str(config_file)]))
    place = f"{config_file}:6: callbacks.0.line:Thaw.layer"
    assert str(raised.value) == f"{place}: 'x': unknown key; did you mean 'layers'?"


def test_the_saved_config_names_them_and_reads_back(tmp_path: Path) -> None:
    named = [f"{HERE}:Silent", {f"{HERE}:Thaw": {"at": 3}}]
    fit(tmp_path, callbacks=named)
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["callbacks"] == named
    assert load_config([str(tmp_path / "config.yaml")]).config.callbacks == named
    assert json_in(tmp_path / "plan.json")["callbacks"] == named


# -- runs -----------------------------------------------------------------------------------------


def test_a_loop_of_ones_own_refuses_what_it_would_not_call(tmp_path: Path) -> None:
    config = TrainConfig(
        task="brought_tasks:Plain",
        output_dir=str(tmp_path),
        max_steps=1,
        callbacks=[f"{HERE}:Silent"],
    )
    with pytest.raises(ConfigError, match=r"callbacks: .*: needs Trainer's loop"):
        trainer.build(Plain(), config)
    exact = replace(config, callbacks=[], same_bits=True, global_batch_size=8)
    with pytest.raises(ConfigError, match="same_bits: true: needs Trainer's loop"):
        trainer.build(Plain(), exact)
    trainer.build(Plain(), replace(config, callbacks=[])).close()
