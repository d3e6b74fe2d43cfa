"""The ``optimizer`` and ``scheduler`` sections of a DeepSpeed JSON, in the words of the training config.

Which settings a type takes, and what it takes where the section is silent, is read off the signatures of the classes
that DeepSpeed itself would build.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any

from ...config.documents import Document
from ...config.train_config import TrainConfig
from ...config.validate import Checker
from ...text import nearest
from ..request import Given, Section
from .check import Check, lookup, unknown

# DeepSpeed's `Adam` decouples the weight decay unless told otherwise (adam_w_mode), which makes it AdamW.
_OPTIMIZERS = {"adamw": "adamw", "adam": "adamw", "sgd": "sgd"}
# DeepSpeed's own classes for the kernels behind its "AdamW".
_KERNELS_OF_ADAM = ("fusedadam", "cpuadam", "deepspeedcpuadam")
_SETTINGS = ("lr", "betas", "eps", "weight_decay", "momentum")
# Which kernel computes, and how it keeps its memory: not which mathematics.
_ANY_VALUE = ("torch_adam", "set_grad_none", "fp32_optimizer_states", "foreach", "fused", "capturable")

_SCHEDULES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
_OF_SCHEDULES = {
    "warmup_num_steps": "warmup_steps",
    "cos_min_ratio": "final_lr_ratio",
    "warmup_max_lr": "lr",
    "total_num_steps": "max_steps",
    "warmup_type": "warmup_type",
}


def read_optimizer(doc: Document, check: Check) -> Section | None:
    """Read the optimizer that the JSON asks for; None where it asks for none, or for one that cannot run."""
    place, typed, params = _type_and_params(doc, "optimizer", check)
    if place is None or typed is None:
        return None
    name = str(typed.value).lower()
    if name in _KERNELS_OF_ADAM:
        check.fail(typed, 'is the class behind DeepSpeed\'s type "AdamW"; write that')
        return None
    if name not in _OPTIMIZERS:
        rule = "not offered from a DeepSpeed JSON (AdamW, Adam, SGD are)"
        check.fail(typed, f"{rule}; build it in Task.build_optimizer, and remove this section")
        return None
    mode, by_torch = params.pop("adam_w_mode", None), params.get("torch_adam")
    decoupled = name == "adamw" or check.switch(mode, quoted=False) is not False
    ours = _OPTIMIZERS[name] if decoupled else "adam"
    taken = _signature(_optimizer_class(ours, by_torch=bool(by_torch and by_torch.value is True)))
    if name != "sgd":
        taken |= dict.fromkeys(("torch_adam", "fp32_optimizer_states"))
    return _section(place, ours, typed, params, taken, dict(zip(_SETTINGS, _SETTINGS, strict=True)), check)


def read_scheduler(doc: Document, check: Check) -> Section | None:
    """Read the schedule that the JSON asks for; None where it asks for none, or for one that cannot run."""
    from deepspeed.runtime import lr_schedules

    place, typed, params = _type_and_params(doc, "scheduler", check)
    if place is None or typed is None:
        return None
    if typed.value not in _SCHEDULES:
        near = nearest(str(typed.value), _SCHEDULES)
        hint = f"did you mean {near!r}?" if near else "remove this section, and set schedule in the training config"
        check.fail(typed, f"not offered ({', '.join(_SCHEDULES)} are); {hint}")
        return None
    kind = params.get("warmup_type")
    if kind is not None and kind.value not in ("linear", "log", "auto"):
        check.fail(kind, 'must be "linear" or "log"')
    taken = _signature(getattr(lr_schedules, str(typed.value)))
    return _section(place, _SCHEDULES[typed.value], typed, params, taken, _OF_SCHEDULES, check)


def _type_and_params(doc: Document, key: str, check: Check) -> tuple[Given | None, Given | None, dict[str, Given]]:
    """Return a section's place, its type and its settings; None where there is no section that can be read."""
    section, typed = lookup(doc, (key,)), lookup(doc, (key, "type"))
    if section is None or section.value is None:
        return None, None, {}
    params = section.value.get("params") if isinstance(section.value, dict) else []
    params = {} if params is None else params
    if typed is None or not isinstance(typed.value, str) or not isinstance(params, dict):
        if not any(problem.key.startswith(f"{key}.") for problem in check.problems):
            check.fail(section, 'must be {"type": name, "params": {...}}')
        return None, None, {}
    found = {name: lookup(doc, (key, "params", name)) for name in params if not name.startswith("_")}
    place = Given(value=typed.value, where=section.where, key=key)
    return place, typed, {name: given for name, given in found.items() if given is not None}


def _optimizer_class(ours: str, *, by_torch: bool) -> type:
    """Return the class that DeepSpeed would build, for its defaults: torch's AdamW decays weights, its own does not."""
    import torch

    if ours == "sgd":
        return torch.optim.SGD
    if by_torch:
        return torch.optim.AdamW if ours == "adamw" else torch.optim.Adam
    from deepspeed.ops.adam import FusedAdam

    found: type = FusedAdam
    return found


def _signature(cls: type) -> dict[str, Any]:
    """Return the settings that a class takes, with their defaults; its first argument is what it works on."""
    _, *settings = inspect.signature(cls).parameters.values()
    return {one.name: None if one.default is one.empty else one.default for one in settings}


def _section(
    place: Given,
    name: str,
    typed: Given,
    params: Mapping[str, Given],
    taken: Mapping[str, Any],
    ours: Mapping[str, str],
    check: Check,
) -> Section:
    """Return the section in our words; what has none must be as this run is anyway.

    Args:
        taken: the settings of the class that the section names, with their defaults.
        ours: the training config's key for each setting that has one.
    """
    values: dict[str, Given] = {}
    for key, given in params.items():
        if key == "max_grad_norm" and key not in taken:
            check.fail(given, 'is no setting of an optimizer; write "gradient_clipping" at the top level')
        elif key not in taken:
            check.problems.append(unknown(given, key, taken.keys(), f"DeepSpeed's {typed.value}"))
        elif given.value == "auto" or key in _ANY_VALUE:
            continue
        elif key in ours:
            if ours[key] == "warmup_type" or _fits(given, ours[key], check):
                values[ours[key]] = given
        elif given.value != taken[key]:
            check.fail(given, f"only {json.dumps(taken[key])} is offered; remove it")
    defaults = {
        ours[key]: Given(value=_listed(default), where=typed.where, key=f"{place.key}.params.{key}")
        for key, default in taken.items()
        if key in ours and key not in params and default is not None
    }
    return Section(name=name, typed=typed, place=place, values=values, defaults=defaults)


def _fits(given: Given, ours: str, check: Check) -> bool:
    """Tell whether a value could stand in the training config under the name of ``ours``."""
    checker = Checker(lambda _: "")
    checker.settings(TrainConfig, {ours: given.value})
    for problem in checker.problems:
        check.fail(given, problem.rule)
    return not checker.problems


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
