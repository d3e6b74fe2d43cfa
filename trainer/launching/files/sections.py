"""The ``optimizer`` and ``scheduler`` sections of a DeepSpeed JSON, in the words of the training
config.

Which settings a type takes, and what it takes where the section is silent, are those of the class
that DeepSpeed itself would build.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from ...config.documents import Document
from ...config.train_config import TrainConfig
from ...config.validate import Validator, annotations_of
from ...errors import Sourced
from ...text import did_you_mean
from ..request import Section
from .tables import table

OWNER = "DeepSpeed's JSON"


def read_section(doc: Document, key: str, check: Validator) -> Section | None:
    """Return the section ``optimizer`` or ``scheduler`` in our words; what has none must be as this
    run is anyway.

    None where there is no such section, and where it asks for what cannot run.
    """
    typed, params = _type_and_params(doc, key, check)
    if typed is None:
        return None
    name, taken = (
        _schedule(typed, check) if key == "scheduler" else _optimizer(typed, params, check)
    )
    if not name:
        return None
    ours, any_value = table("deepspeed")["ours"][key], table("deepspeed")["any_value"]
    annotations = {**annotations_of(TrainConfig), "warmup_type": Literal["linear", "log"]}
    values: dict[str, Sourced[Any]] = {}
    for setting, found in params.items():
        if setting == "max_grad_norm" and setting not in taken:
            check.refuse(
                found, 'is no setting of an optimizer; write "gradient_clipping" at the top level'
            )
        elif setting not in taken:
            check.unknown(found, taken, (key, "params", setting), owner=OWNER)
        elif found.value == "auto" or setting in any_value:
            continue
        elif setting in ours:
            if check.read(annotations[ours[setting]], found) is not None:
                values[ours[setting]] = found
        elif found.value != taken[setting]:
            check.refuse(found, f"only {json.dumps(taken[setting])} is offered; remove it")
    silent = {
        setting: taken[setting]
        for setting in ours
        if setting not in params and taken.get(setting) is not None
    }
    defaults = {
        ours[setting]: Sourced(default, typed.origin.named(f"{key}.params.{setting}"))
        for setting, default in silent.items()
    }
    return Section(
        name=name, typed=typed, origin=doc.origin((key,)), values=values, defaults=defaults
    )


def _optimizer(
    typed: Sourced[str], params: dict[str, Sourced[Any]], check: Validator
) -> tuple[str, dict[str, Any]]:
    """Return our name of an optimizer, and the settings of its class with their defaults; "" where
    it cannot run.
    """
    name, known = typed.value.lower(), table("deepspeed")
    if name not in known["optimizers"]:
        instead = known["other_optimizers"].get(name, known["other_optimizer"])
        check.refuse(typed, f"not offered from a DeepSpeed JSON (AdamW, Adam, SGD are); {instead}")
        return "", {}
    mode, by_torch = params.pop("adam_w_mode", None), params.get("torch_adam")
    decoupled = name == "adamw" or check.read(bool, mode) is not False
    ours = known["optimizers"][name] if decoupled else "adam"
    # torch's AdamW decays weights by default, DeepSpeed's own does not.
    of_torch = {"sgd": "torch.SGD", "adamw": "torch.AdamW", "adam": "torch.Adam"}[ours]
    is_torch = name == "sgd" or (by_torch is not None and by_torch.value is True)
    taken = known["settings"][of_torch if is_torch else "FusedAdam"]
    return ours, taken if name == "sgd" else taken | dict.fromkeys(
        ("torch_adam", "fp32_optimizer_states")
    )


def _schedule(typed: Sourced[str], check: Validator) -> tuple[str, dict[str, Any]]:
    """Return our name of a schedule, and the settings of its class with their defaults; "" where it
    cannot run.
    """
    schedules = table("deepspeed")["schedules"]
    if typed.value not in schedules:
        hint = "or set schedule in the training config, and remove this section"
        check.refuse(typed, f"not offered; {did_you_mean(typed.value, schedules)} ({hint})")
        return "", {}
    return schedules[typed.value], table("deepspeed")["settings"][typed.value]


def _type_and_params(
    doc: Document, key: str, check: Validator
) -> tuple[Sourced[str] | None, dict[str, Sourced[Any]]]:
    """Return a section's type and its settings; None where there is no section that can be read."""
    section, typed = doc.at(key), doc.at(key, "type")
    if section is None or section.value is None:
        return None, {}
    params = section.value.get("params") if isinstance(section.value, dict) else []
    params = {} if params is None else params
    if typed is None or not isinstance(typed.value, str) or not isinstance(params, dict):
        if not any(problem.key.startswith(f"{key}.") for problem in check.problems):
            check.refuse(section, 'must be {"type": name, "params": {...}}')
        return None, {}
    names = (name for name in params if not name.startswith("_"))
    return typed, {name: Sourced(params[name], doc.origin((key, "params", name))) for name in names}
