"""What decides the numbers of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluated import Sign
from launchers import ROOT

import trainer
from trainer.config.fingerprint import fingerprint, task_facts, task_folder
from trainer.language import CausalLM


@dataclass(frozen=True)
class Inner:
    rate: float = 0.5
    half: float = field(init=False, default=0.25)


@dataclass(frozen=True)
class Task:
    scale: complex = 1j
    made_by: Any = math.sqrt
    inner: Inner = field(default_factory=Inner)
    seen: list[int] = field(default_factory=list, compare=False)


def test_settings_of_a_task_as_checkpoints_of_older_runs_hold_them() -> None:
    facts = task_facts(Task(), f"{__name__}:Task")
    inner = {"rate": 0.5, "half": 0.25}
    expected = {"scale": "complex", "made_by": "math.sqrt", "inner": inner}
    assert facts["task_settings"] == expected


def test_the_folder_of_a_task_is_the_one_from_which_its_module_is_imported() -> None:
    assert task_folder(Sign()) == str(ROOT / "tests/workers")
    package = Path(trainer.__file__).resolve().parents[1]
    assert task_folder(CausalLM.__new__(CausalLM)) == str(package)
    assert task_folder(object()) is None, "built into Python"


def test_float32_counts_where_it_is_not_what_runs_before_the_key_had() -> None:
    """So that their checkpoints go on."""
    assert fingerprint({"seed": 0, "float32": "exact", "max_grad_norm": None}) == {
        "seed": 0,
        "max_grad_norm": None,
    }
    assert fingerprint({"seed": 0, "float32": "tf32"}) == {"seed": 0, "float32": "tf32"}


def test_same_bits_makes_the_micro_batch_decide_the_numbers() -> None:
    facts = {"micro_batch_size": 2, "same_bits": False}
    assert fingerprint(facts) == {}
    assert fingerprint({**facts, "same_bits": True}) == {"same_bits": True, "micro_batch_size": 2}
