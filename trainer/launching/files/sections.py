"""The ``optimizer`` and ``scheduler`` of a DeepSpeed JSON, by keys of the training config.

The signature of DeepSpeed's class has the settings and defaults, which DeepSpeed does not check.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, create_model

from ...config.annotations import annotations_of
from ...config.documents import Document
from ...config.train_config import TrainConfig
from ...errors import Origin, Sourced
from .accelerate_keys import merge, read_model

# Our name of each type. Those of optimizers are in small letters.
_NAMES = {
    "optimizer": {"adamw": "adamw", "adam": "adamw", "sgd": "sgd"},
    "scheduler": {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"},
}
# The training config's keys of settings that have another name there.
_CONFIG_KEYS = {
    "warmup_num_steps": "warmup_steps",
    "cos_min_ratio": "final_lr_ratio",
    "warmup_max_lr": "lr",
    "total_num_steps": "max_steps",
}
_TYPES = {**annotations_of(TrainConfig), "warmup_type": Literal["linear", "log"]}
# Settings that choose the kernel, or AdamW.
_CHOICES = (
    "adam_w_mode", "torch_adam", "foreach", "fused", "set_grad_none", "fp32_optimizer_states",
)  # fmt: skip


def _model(key: str, kind: str) -> type[BaseModel]:
    """Return the settings of a type with their defaults. Those without a config key are fixed."""
    from deepspeed.ops.adam import FusedAdam
    from deepspeed.runtime import lr_schedules
    from torch.optim import SGD

    cls = {**vars(lr_schedules), "sgd": SGD}.get(kind, FusedAdam)
    _, *parameters = inspect.signature(cls).parameters.values()
    fields: Any = {}
    for setting in parameters:
        kinds = _TYPES.get(_CONFIG_KEYS.get(setting.name, setting.name), Literal[setting.default])
        fields[setting.name] = (kinds, setting.default)
    if key == "optimizer":
        fields |= dict.fromkeys(_CHOICES, (bool | None, None))
    return create_model("Params", __config__=ConfigDict(extra="forbid", strict=True), **fields)


def read_sections(doc: Document, data: Mapping[str, Any]) -> dict[str, Sourced[Any]]:
    """Return the settings of both sections by keys of the config. ``data`` are those that count."""
    settings = _read(doc, data, "scheduler", "schedule")
    merge(settings, _read(doc, data, "optimizer", "optimizer"))
    return settings


def _read(
    doc: Document, data: Mapping[str, Any], key: str, config_key: str
) -> dict[str, Sourced[Any]]:
    """Return the settings of a section by keys of the config, with the name of the type."""
    section = data.get(key)
    if not section:
        return {}
    kind = section["type"].lower() if key == "optimizer" else section["type"]
    names = _NAMES[key]
    if kind not in names:
        rule = f"must be one of {', '.join(names)}; or set {key} in the training config"
        raise doc.origin(f"{key}.type").error(rule, section["type"])

    written = doc.data[key].get("params") or {}
    given = section.get("params") or {}

    def origin(setting: str) -> Origin:
        return replace(doc.origin(f"{key}.params.{setting}"), is_default=setting not in given)

    read = read_model(_model(key, kind), given, origin)
    found = {config_key: Sourced(names[kind], doc.origin(key))}
    # "auto", and settings without a default of DeepSpeed's that counts
    left_out = {*written, "total_num_steps", "warmup_max_lr"} - given.keys()
    for setting, value in read.model_dump(exclude_none=True, exclude=left_out).items():
        own_key = _CONFIG_KEYS.get(setting, setting)
        if own_key in _TYPES:
            found[own_key] = Sourced(value, origin(setting))
    if kind == "adam" and given.get("adam_w_mode") is False:
        found[config_key] = found[config_key].meaning("adam")
    elif given.get("torch_adam") and "weight_decay" not in given:
        found.pop("weight_decay", None)  # torch's AdamW has the default of the training config
    return found
