"""The config that a task completes: its defaults for a start from pretrained weights lie below all
that is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainer import load_config, load_task
from trainer.config.load import Loaded

FULL = {
    "lr": 2e-5,
    "weight_decay": 0.0,
    "schedule": "linear",
    "warmup_fraction": 0.03,
    "max_grad_norm": 1.0,
}
SCRATCH = {
    "lr": 1e-3,
    "weight_decay": 0.01,
    "schedule": None,
    "warmup_fraction": None,
    "max_grad_norm": None,
}
OWN = """
import trainer
from trainer.language import CausalLM
class OwnOptimizer(CausalLM):
    def build_optimizer(self, model, plan): ...
class OwnSchedule(CausalLM):
    def build_schedule(self, optimizer, plan, total_steps): ...
class Plain(trainer.Task):
    def fine_tuning_defaults(self):
        return {"lr": 0.5}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with tasks of one's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("own_tasks_here.py").write_text(OWN)
    return tmp_path


def words(task: str, settings: Mapping[str, Any], *more: str, **keys: Any) -> list[str]:
    config = {"task": task, "task_settings": dict(settings), "max_steps": 10, **keys}
    Path("train.yaml").write_text(yaml.safe_dump(config))
    return ["train.yaml", *more]


def loaded_with(
    task: str, settings: Mapping[str, Any], *more: str, **keys: Any
) -> tuple[dict[str, Any], Loaded]:
    """The values that a run would have, and what was read."""
    loaded = load_config(words(task, settings, *more, **keys))
    config = load_task(loaded)[1]
    return {key: getattr(config, key) for key in FULL}, loaded


@pytest.mark.parametrize("name", ["CausalLM", "MaskedLM", "SequenceClassifier"])
def test_a_start_from_a_model_has_a_fine_tuners_defaults(name: str, here: Path) -> None:
    task, given = f"trainer.language:{name}", {"data": "a.txt", "model": "m"}
    found, loaded = loaded_with(task, given)
    assert found == FULL
    assert {key: str(loaded.origins[key]) for key in FULL} == {
        key: f"default of {name} ({key})" for key in FULL
    }
    assert loaded_with(task, {**given, "adapter": {}})[0] == {**FULL, "lr": 2e-4}


def test_a_start_from_scratch_has_those_of_the_config(here: Path) -> None:
    given = {"data": "a.txt", "config": {"model_type": "llama"}, "tokenizer": "t"}
    found, loaded = loaded_with("trainer.language:CausalLM", given)
    assert found == SCRATCH
    assert not [key for key in FULL if key in loaded.origins]


def test_yaml_and_command_line_go_before_the_tasks_defaults(here: Path) -> None:
    """Also with the config's own default, and with null: it was said."""
    given = {"data": "a.txt", "model": "m"}
    found, loaded = loaded_with(
        "trainer.language:CausalLM", given, "--weight_decay", "0.01", lr=1e-3, max_grad_norm=None
    )
    assert found == {**FULL, "lr": 1e-3, "weight_decay": 0.01, "max_grad_norm": None}
    assert {key: loaded.origins[key].source for key in ("lr", "weight_decay", "schedule")} == {
        "lr": "train.yaml",
        "weight_decay": "command line",
        "schedule": "default of CausalLM",
    }
    again = load_task(loaded)[1]
    assert {key: getattr(again, key) for key in FULL} == found, "asked a second time"


@pytest.mark.parametrize(
    ("said", "changed"),
    [
        ({"schedule": "cosine"}, {"schedule": "cosine", "warmup_fraction": None}),
        ({"warmup_steps": 3}, {"warmup_fraction": None}),
        ({"warmup_samples": 8}, {"warmup_fraction": None}),
        ({"warmup_fraction": 0.5}, {"warmup_fraction": 0.5}),
        ({"final_lr_ratio": 0.1}, {}),
    ],
)
def test_a_warm_up_goes_with_its_schedule(
    said: dict[str, Any], changed: dict[str, Any], here: Path
) -> None:
    found, _ = loaded_with("trainer.language:CausalLM", {"data": "a.txt", "model": "m"}, **said)
    assert found == {**FULL, **changed}


@pytest.mark.parametrize(
    ("name", "left"),
    [("OwnOptimizer", {"weight_decay"}), ("OwnSchedule", {"schedule", "warmup_fraction"})],
)
def test_what_a_task_builds_itself_has_no_defaults(name: str, left: set[str], here: Path) -> None:
    found, _ = loaded_with(f"own_tasks_here:{name}", {"data": "a.txt", "model": "m"})
    assert found == {key: SCRATCH[key] if key in left else value for key, value in FULL.items()}


def test_any_task_may_have_defaults(here: Path) -> None:
    found, loaded = loaded_with("own_tasks_here:Plain", {})
    assert found == {**SCRATCH, "lr": 0.5}
    assert loaded.origins["lr"].place == "default of Plain"
