"""Optimizer and scheduler of a DeepSpeed JSON: what is read, and what cannot run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from launch_texts import Write, complaint
from plans import AUTO, OPTIMIZER, SCHEDULER, section

from trainer import ConfigError
from trainer.launching.files.deepspeed_file import read_deepspeed_file

NOT_OFFERED = "not offered from a DeepSpeed JSON (AdamW, Adam, SGD are)"
NO_SCHEDULE = "(or set schedule in the training config, and remove this section)"


@pytest.mark.parametrize(
    ("name", "kind", "params", "line"),
    [
        (
            "optimizer",
            "Lion",
            {},
            f"ds.json:12: optimizer.type: 'Lion': {NOT_OFFERED}; remove this section, and set "
            "optimizer: lion_pytorch.Lion in the training config",
        ),
        (
            "optimizer",
            "FusedAdam",
            {},
            f"ds.json:12: optimizer.type: 'FusedAdam': {NOT_OFFERED}; names a kernel and not an optimizer; write AdamW",
        ),
        ("optimizer", "AdamW", {"lr": -1e-4}, f"{OPTIMIZER}.lr: -0.0001: must be greater than 0"),
        (
            "optimizer",
            "AdamW",
            {"freeze_step": 3},
            f"{OPTIMIZER}.freeze_step: 3: unknown key; known: adam_w_mode, amsgrad, betas, "
            "bias_correction, eps, fp32_optimizer_states, lr, set_grad_none, torch_adam, weight_decay",
        ),
        (
            "optimizer",
            "AdamW",
            {"bias_correction": False},
            f"{OPTIMIZER}.bias_correction: false: only true is offered; remove it",
        ),
        (
            "optimizer",
            "AdamW",
            {"max_grad_norm": 1.0},
            f"{OPTIMIZER}.max_grad_norm: 1.0: is no setting of an optimizer; "
            'write "gradient_clipping" at the top level',
        ),
        (
            "scheduler",
            "WarmupDecayLr",
            {},
            f"ds.json:22: scheduler.type: 'WarmupDecayLr': not offered; did you mean 'WarmupDecayLR'? {NO_SCHEDULE}",
        ),
        (
            "scheduler",
            "WarmupLR",
            {"warmup_type": "cubic"},
            f"{SCHEDULER}.warmup_type: 'cubic': must be one of 'linear', 'log'",
        ),
        (
            "scheduler",
            "WarmupLR",
            {"total_num_steps": 10},
            f"{SCHEDULER}.total_num_steps: 10: unknown key; known: last_batch_iteration, warmup_max_lr, warmup_min_lr, "
            "warmup_num_steps, warmup_type",
        ),
    ],
)
def test_sections_that_cannot_run(name: str, kind: str, params: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        section(name, kind, params)
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("kind", "params", "name", "decay"),
    [
        ("AdamW", {}, "adamw", 0.0),
        ("AdamW", {"torch_adam": True, "adam_w_mode": True}, "adamw", 0.01),
        ("Adam", {"bias_correction": True}, "adamw", 0.0),
        ("adam", {"adam_w_mode": False}, "adam", 0.0),
        ("SGD", {"nesterov": False}, "sgd", 0),
    ],
)
def test_names_and_defaults_of_optimizers(
    kind: str, params: dict[str, Any], name: str, decay: float
) -> None:
    """The defaults are those of the class that DeepSpeed would build."""
    found = section("optimizer", kind, params)
    assert (found.name, found.values) == (name, {})
    assert found.defaults["weight_decay"].value == decay
    assert ("momentum" in found.defaults) == (name == "sgd")
    assert str(found.defaults["weight_decay"].origin) == (
        "ds.json:12 (optimizer.params.weight_decay)"
    )


def test_auto_is_neither_a_value_nor_a_default() -> None:
    found = section("optimizer", "AdamW", AUTO)
    assert (found.values, found.defaults) == ({}, {})


@pytest.mark.parametrize(
    ("kind", "name"),
    [("WarmupLR", "constant"), ("WarmupDecayLR", "linear"), ("WarmupCosineLR", "cosine")],
)
def test_names_of_schedules(kind: str, name: str) -> None:
    found = section("scheduler", kind, {"warmup_num_steps": 4})
    assert (found.name, found.values["warmup_steps"].value) == (name, 4)
    assert found.defaults["warmup_type"].value == "log"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ({"params": {}}, '{\'params\': {}}: must be {"type": name, "params": {...}}'),
        ("AdamW", "'AdamW': must be a mapping"),
    ],
)
def test_a_section_that_cannot_be_read(write: Write, content: object, line: str) -> None:
    write("ds.json", json.dumps({"zero_optimization": {"stage": 2}, "optimizer": content}))
    assert complaint(lambda: read_deepspeed_file("ds.json")) == f"ds.json:1: optimizer: {line}"
