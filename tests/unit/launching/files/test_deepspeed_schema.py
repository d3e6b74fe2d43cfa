"""The keys of a DeepSpeed JSON, read from the source of the installed DeepSpeed."""

from __future__ import annotations

import inspect

import pytest
from deepspeed.monitor.config import CometConfig
from deepspeed.ops.adam import FusedAdam
from deepspeed.runtime import config as deepspeed_config
from deepspeed.runtime import lr_schedules
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig

from trainer.launching.files import deepspeed_schema, deepspeed_values
from trainer.launching.files.deepspeed_schema import (
    constructor_defaults,
    is_section,
    keys_at,
    removed_keys,
)


@pytest.mark.parametrize(
    ("section", "model"),
    [
        ("zero_optimization", DeepSpeedZeroConfig),
        ("zero_optimization.offload_optimizer", DeepSpeedZeroOffloadOptimizerConfig),
        ("fp16", DeepSpeedFP16Config),
        ("bf16", DeepSpeedBF16Config),
        ("comet", CometConfig),
    ],
)
def test_the_fields_of_a_model_are_read(section: str, model: type) -> None:
    fields = model.model_fields
    aliases = {field.alias for field in fields.values() if field.alias}
    assert set(keys_at(tuple(section.split(".")))) == set(fields) | aliases


def test_sections_and_values_of_the_top_level() -> None:
    known = keys_at()
    assert {"optimizer", "aio", "wandb", "timers", "train_batch_size", "dump_state"} <= set(known)
    assert not {"enabled", "loss_scale", "type", "auto", "grad_accum_dtype"} & set(known)
    assert {"block_size", "use_gds"} <= set(keys_at(("aio",)))
    assert "partition_activations" in keys_at(("activation_checkpointing",))
    assert set(keys_at(("timers", "throughput"))) == {"enabled", "synchronized"}
    assert is_section(("checkpoint", "writer")) and not is_section(("gradient_clipping",))


def test_removed_keys_have_deepspeeds_reason() -> None:
    removed = deepspeed_config._REMOVED_TOP_LEVEL_CONFIG_KEYS
    nested = deepspeed_config._REMOVED_ZERO_CONFIG_KEYS
    assert set(removed_keys()) == {*removed, *(f"zero_optimization.{key}" for key in nested)}
    assert removed_keys()["nebula"] == "Nebula checkpointing has been removed"


@pytest.mark.parametrize(
    ("file", "cls"),
    [
        ("ops/adam/fused_adam.py", FusedAdam),
        ("runtime/lr_schedules.py", lr_schedules.WarmupLR),
        ("runtime/lr_schedules.py", lr_schedules.WarmupDecayLR),
        ("runtime/lr_schedules.py", lr_schedules.WarmupCosineLR),
    ],
)
def test_defaults_are_those_of_the_constructor(file: str, cls: type) -> None:
    _, *parameters = inspect.signature(cls).parameters.values()
    assert constructor_defaults(file, cls.__name__) == {
        parameter.name: None if parameter.default is parameter.empty else parameter.default
        for parameter in parameters
    }


def test_own_rules_are_for_keys_that_deepspeed_has() -> None:
    names = [
        *deepspeed_schema._OWN_TYPES,
        *deepspeed_values._ONLY_VALUE,
        *deepspeed_values._AUTO,
        *deepspeed_values.UNUSED,
    ]
    for name in names:
        *section, key = name.split(".")
        assert key in keys_at(tuple(section)), name
