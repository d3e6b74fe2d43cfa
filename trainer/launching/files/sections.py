"""The ``optimizer`` and ``scheduler`` of a DeepSpeed JSON, by keys of the training config.

The signature of DeepSpeed's class has the settings and defaults, which DeepSpeed does not check.
"""

from __future__ import annotations

import inspect
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
_CHOICES: dict[str, Any] = {
    "adam_w_mode": (bool, True),
    "torch_adam": (bool, False),
    **dict.fromkeys(("foreach", "fused", "set_grad_none", "fp32_optimizer_states"), (Any, None)),
}


def _model(key: str, kind: str) -> type[BaseModel]:
    """Return the settings of a type with their defaults. Those without a config key are fixed."""
    from deepspeed.ops.adam import FusedAdam
    from deepspeed.runtime import lr_schedules
    from torch.optim import SGD

    optimizer = SGD if kind == "sgd" else FusedAdam
    cls = optimizer if key == "optimizer" else getattr(lr_schedules, kind)
    _, *parameters = inspect.signature(cls).parameters.values()
    fields: dict[str, Any] = {}
    for parameter in parameters:
        name, default = parameter.name, parameter.default
        if name in ("total_num_steps", "warmup_max_lr"):
            default = None  # the training config decides
        fields[name] = (_TYPES.get(_CONFIG_KEYS.get(name, name), Literal[default]), default)
    if key == "optimizer":
        fields |= _CHOICES
    return create_model("Params", __config__=ConfigDict(extra="forbid", strict=True), **fields)


def read_sections(doc: Document) -> dict[str, Sourced[Any]]:
    """Return the settings of both sections by keys of the config."""
    settings = _read(doc, "scheduler", "schedule")
    merge(settings, _read(doc, "optimizer", "optimizer"))
    return settings


def _read(doc: Document, key: str, config_key: str) -> dict[str, Sourced[Any]]:
    """Return the settings of a section by keys of the config, with the name of the type."""
    section = doc.data.get(key)
    if not section:
        return {}
    kind = section["type"].lower() if key == "optimizer" else section["type"]
    name = _NAMES[key].get(kind)
    if name is None:
        rule = f"must be one of {', '.join(_NAMES[key])}; or set {key} in the training config"
        raise doc.origin(f"{key}.type").error(rule, section["type"])

    written = section.get("params") or {}
    given = {
        setting: value
        for setting, value in written.items()
        if value != "auto" and not setting.startswith("_")
    }

    def origin(setting: str) -> Origin:
        return replace(doc.origin(f"{key}.params.{setting}"), is_default=setting not in given)

    read = read_model(_model(key, kind), given, origin)
    found = {config_key: Sourced(name, doc.origin(key))}
    is_auto = written.keys() - given.keys()
    for setting, value in read.model_dump(exclude_none=True, exclude=is_auto).items():
        own_key = _CONFIG_KEYS.get(setting, setting)
        if own_key in _TYPES:
            found[own_key] = Sourced(value, origin(setting))
    if kind == "adam" and given.get("adam_w_mode") is False:
        found[config_key] = found[config_key].meaning("adam")
    elif given.get("torch_adam") and "weight_decay" not in given:
        found.pop("weight_decay", None)  # torch's AdamW has the default of the training config
    return found
