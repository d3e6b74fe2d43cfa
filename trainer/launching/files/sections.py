"""The ``optimizer`` and ``scheduler`` of a DeepSpeed JSON, by keys of the training config.

Which settings a type takes, and its defaults where the section is silent, are those of the class
that DeepSpeed itself would build.
"""

from __future__ import annotations

import inspect
import json
from typing import Any, Literal

from ...config.annotations import annotations_of
from ...config.documents import Document
from ...config.train_config import TrainConfig
from ...config.validate import Validator
from ...errors import Sourced
from ...text import did_you_mean
from ..request import Section
from .deepspeed_schema import constructor_defaults
from .deepspeed_values import OWNER

# Our name for each type of optimizer, in small letters. DeepSpeed's `Adam` decouples the weight
# decay unless adam_w_mode is false, which makes it AdamW.
_OPTIMIZERS = {"adamw": "adamw", "adam": "adamw", "sgd": "sgd"}

# Our name for each type of schedule.
_SCHEDULES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}

# The training config's key for each setting that has one.
_CONFIG_KEYS = {
    "optimizer": {
        "lr": "lr",
        "betas": "betas",
        "eps": "eps",
        "weight_decay": "weight_decay",
        "momentum": "momentum",
    },
    "scheduler": {
        "warmup_num_steps": "warmup_steps",
        "cos_min_ratio": "final_lr_ratio",
        "warmup_max_lr": "lr",
        "total_num_steps": "max_steps",
        "warmup_type": "warmup_type",
    },
}

# Settings that say which kernel computes, and how it keeps its memory: not which mathematics.
_ANY_VALUE = (
    "torch_adam",
    "set_grad_none",
    "fp32_optimizer_states",
    "foreach",
    "fused",
    "capturable",
)

# What to write instead of other types of optimizers, in small letters.
_WHOLE_PARAMETERS = (
    "looks at whole parameters, of which ZeRO gives each process parts: write AdamW, or remove "
    "this section and name a class of it as optimizer in the training config, which runs under "
    "DDP or in one process"
)
_COMPRESSED = "is Adam with compressed communication, which is not offered; write AdamW"
_KERNEL = "names a kernel and not an optimizer; write AdamW"
_OTHER_OPTIMIZERS = {
    "muon": "steps whole matrices, of which ZeRO gives each process parts: write AdamW",
    "lamb": _WHOLE_PARAMETERS,
    "onebitlamb": _WHOLE_PARAMETERS,
    "lion": "remove this section, and set optimizer: lion_pytorch.Lion in the training config",
    "onebitadam": _COMPRESSED,
    "zerooneadam": _COMPRESSED,
    "fusedadam": _KERNEL,
    "cpuadam": _KERNEL,
    "deepspeedcpuadam": _KERNEL,
}
_OTHER_OPTIMIZER = (
    "remove this section, and name a class in the training config, such as optimizer: "
    "torch.optim.NAdam"
)


def read_section(doc: Document, key: str, check: Validator) -> Section | None:
    """Return the section ``optimizer`` or ``scheduler`` by keys of the training config.

    A setting without such a key must have the value that this program runs with. None where there
    is no section, and where it asks for what cannot run.
    """
    typed, params = _type_and_params(doc, key, check)
    if typed is None:
        return None
    if key == "scheduler":
        name, settings = _schedule(typed, check)
    else:
        name, settings = _optimizer(typed, params, check)
    if not name:
        return None

    config_keys = _CONFIG_KEYS[key]
    values = _values(key, params, settings, check)
    defaults = {}
    for setting, config_key in config_keys.items():
        default = settings.get(setting)
        if setting not in params and default is not None:
            origin = typed.origin.named(f"{key}.params.{setting}")
            defaults[config_key] = Sourced(default, origin)
    return Section(
        name=name, typed=typed, origin=doc.origin((key,)), values=values, defaults=defaults
    )


def _values(
    key: str, params: dict[str, Sourced[Any]], settings: dict[str, Any], check: Validator
) -> dict[str, Sourced[Any]]:
    """Return the values of a section by key of the training config; refuse what cannot run."""
    annotations = {**annotations_of(TrainConfig), "warmup_type": Literal["linear", "log"]}
    config_keys = _CONFIG_KEYS[key]

    values = {}
    for setting, found in params.items():
        if setting not in settings:
            if setting == "max_grad_norm":
                rule = 'is no setting of an optimizer; write "gradient_clipping" at the top level'
                check.refuse(found, rule)
            else:
                check.unknown(found, settings, (key, "params", setting), owner=OWNER)
        elif found.value == "auto" or setting in _ANY_VALUE:
            continue
        elif setting in config_keys:
            config_key = config_keys[setting]
            if check.read(annotations[config_key], found) is not None:
                values[config_key] = found
        elif found.value != settings[setting]:
            check.refuse(found, f"only {json.dumps(settings[setting])} is offered; remove it")
    return values


def _optimizer(
    typed: Sourced[str], params: dict[str, Sourced[Any]], check: Validator
) -> tuple[str, dict[str, Any]]:
    """Return our name of an optimizer, and the settings of its class with their defaults.

    The name is "" where it cannot run.
    """
    kind = typed.value.lower()
    if kind not in _OPTIMIZERS:
        instead = _OTHER_OPTIMIZERS.get(kind, _OTHER_OPTIMIZER)
        check.refuse(typed, f"not offered from a DeepSpeed JSON (AdamW, Adam, SGD are); {instead}")
        return "", {}
    if kind == "sgd":
        return "sgd", _torch_defaults("sgd")

    mode = params.pop("adam_w_mode", None)
    is_decoupled = kind == "adamw" or check.read(bool, mode) is not False
    name = "adamw" if is_decoupled else "adam"

    # torch's AdamW decays weights by default, DeepSpeed's own does not.
    by_torch = params.get("torch_adam")
    if by_torch is not None and by_torch.value is True:
        settings = _torch_defaults(name)
    else:
        settings = _as_json(constructor_defaults("ops/adam/fused_adam.py", "FusedAdam"))
    return name, settings | {"torch_adam": None, "fp32_optimizer_states": None}


def _schedule(typed: Sourced[str], check: Validator) -> tuple[str, dict[str, Any]]:
    """Return our name of a schedule, and the settings of its class with their defaults.

    The name is "" where it cannot run.
    """
    if typed.value not in _SCHEDULES:
        hint = "or set schedule in the training config, and remove this section"
        check.refuse(typed, f"not offered; {did_you_mean(typed.value, _SCHEDULES)} ({hint})")
        return "", {}
    settings = constructor_defaults("runtime/lr_schedules.py", typed.value)
    return _SCHEDULES[typed.value], _as_json(settings)


def _torch_defaults(name: str) -> dict[str, Any]:
    """Return the settings of torch's optimizer with their defaults, without its parameters."""
    from torch import optim

    cls = {"adamw": optim.AdamW, "adam": optim.Adam, "sgd": optim.SGD}[name]
    _, *parameters = inspect.signature(cls).parameters.values()
    defaults = {}
    for parameter in parameters:
        is_required = parameter.default is parameter.empty
        defaults[parameter.name] = None if is_required else parameter.default
    return _as_json(defaults)


def _as_json(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings with lists for tuples, as a JSON has them."""
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()
    }


def _type_and_params(
    doc: Document, key: str, check: Validator
) -> tuple[Sourced[str] | None, dict[str, Sourced[Any]]]:
    """Return a section's type and its settings; None where there is no section that can be read."""
    section = doc.at(key)
    if section is None or section.value is None:
        return None, {}

    typed = doc.at(key, "type")
    params = section.value.get("params") if isinstance(section.value, dict) else []
    if params is None:
        params = {}
    if typed is None or not isinstance(typed.value, str) or not isinstance(params, dict):
        is_reported = any(problem.key.startswith(f"{key}.") for problem in check.problems)
        if not is_reported:
            check.refuse(section, 'must be {"type": name, "params": {...}}')
        return None, {}

    settings = {}
    for name, value in params.items():
        if not name.startswith("_"):
            settings[name] = Sourced(value, doc.origin((key, "params", name)))
    return typed, settings
