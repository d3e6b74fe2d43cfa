"""The ``optimizer`` and ``scheduler`` of a DeepSpeed JSON, by keys of the training config.

DeepSpeed checks their ``params`` nowhere. The models below list the settings of the classes that
DeepSpeed would build, with their defaults. Of a type with a single value, no other value can run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ...config.documents import Document
from ...errors import Sourced
from ..findings import Findings
from ..request import Section

_Rate = Annotated[float, Field(gt=0, strict=True)]
_Fraction = Annotated[float, Field(ge=0, lt=1, strict=True)]
_Decay = Annotated[float, Field(ge=0, strict=True)]
_Steps = Annotated[int, Field(ge=0, strict=True)]


class _Params(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _AnyOptimizer(_Params):
    """Settings of every optimizer. Those of type Any choose a kernel and not the mathematics."""

    lr: _Rate = 1e-3
    weight_decay: _Decay = 0.0
    foreach: Any = None
    fused: Any = None
    capturable: Any = None
    maximize: Literal[False] = False
    differentiable: Literal[False] = False


class _Adam(_AnyOptimizer):
    betas: Annotated[list[_Fraction], Field(min_length=2, max_length=2)] = [0.9, 0.999]
    eps: _Rate = 1e-8
    adam_w_mode: bool = True
    amsgrad: Literal[False] = False
    bias_correction: Literal[True] = True
    torch_adam: Any = None
    set_grad_none: Any = None
    fp32_optimizer_states: Any = None


class _SGD(_AnyOptimizer):
    momentum: _Fraction = 0.0
    dampening: Literal[0] = 0
    nesterov: Literal[False] = False


class _Warmup(_Params):
    warmup_min_lr: Literal[0] = 0
    warmup_max_lr: _Rate | None = None
    warmup_num_steps: _Steps = 1000
    warmup_type: Literal["linear", "log"] = "log"
    last_batch_iteration: Literal[-1] = -1


class _WarmupDecay(_Warmup):
    total_num_steps: _Steps | None = None


class _WarmupCosine(_Params):
    total_num_steps: _Steps | None = None
    warmup_min_ratio: Literal[0] = 0
    warmup_num_steps: _Steps = 1000
    cos_min_ratio: _Fraction = 1e-4
    warmup_type: Literal["linear", "log"] = "log"
    last_batch_iteration: Literal[-1] = -1


# Our name and the settings of each type. Those of optimizers are in small letters.
_TYPES: dict[str, dict[str, tuple[str, type[_Params]]]] = {
    "optimizer": {"adamw": ("adamw", _Adam), "adam": ("adamw", _Adam), "sgd": ("sgd", _SGD)},
    "scheduler": {
        "WarmupLR": ("constant", _Warmup),
        "WarmupDecayLR": ("linear", _WarmupDecay),
        "WarmupCosineLR": ("cosine", _WarmupCosine),
    },
}
# The training config's key for each setting that has one.
_CONFIG_KEYS = {
    **{key: key for key in ("lr", "betas", "eps", "weight_decay", "momentum", "warmup_type")},
    "warmup_num_steps": "warmup_steps",
    "cos_min_ratio": "final_lr_ratio",
    "warmup_max_lr": "lr",
    "total_num_steps": "max_steps",
}


def read_section(doc: Document, key: str, check: Findings) -> Section | None:
    """Return the section ``optimizer`` or ``scheduler`` by keys of the training config.

    None if there is no section, or if the section cannot run.
    """
    typed = doc.at(f"{key}.type")
    if typed is None:
        return None
    kind = typed.value.lower() if key == "optimizer" else typed.value
    name, model = _TYPES[key].get(kind, ("", _Params))
    if not name:
        names = ", ".join(_TYPES[key])
        check.refuse(typed, f"must be one of {names}; or set {key} in the training config")
        return None

    written = doc.data[key].get("params") or {}
    given = {}
    for setting, value in written.items():
        if value != "auto" and not setting.startswith("_"):
            given[setting] = value
    read = check.read(model, given, lambda setting: doc.origin(f"{key}.params.{setting}"))
    silent = set(_CONFIG_KEYS) - set(written)
    if kind == "adam" and given.get("adam_w_mode") is False:
        name = "adam"
    elif given.get("torch_adam"):
        silent.discard("weight_decay")  # torch's AdamW has the default of the training config

    values = {}
    for setting in silent | set(given):
        value = getattr(read, setting, None)
        if setting in _CONFIG_KEYS and value is not None:
            origin = doc.origin(f"{key}.params.{setting}")
            origin = replace(origin, is_default=setting in silent)
            values[_CONFIG_KEYS[setting]] = Sourced(value, origin)
    return Section(name=Sourced(name, doc.origin(key)), values=values)
