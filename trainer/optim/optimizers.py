"""The optimizer that a config names: adamw, adam, sgd, or a class of torch or another package."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn, optim

from ..config.named_class import find_class
from ..config.rules import OPTIMIZERS, WITH_KEYS
from ..errors import Origin, origin_of

if TYPE_CHECKING:
    from ..run_plan import Plan


def _class_of(name: str, origin: Origin) -> Any:
    """Return the class of an optimizer by its short name or its full name."""
    return find_class(OPTIMIZERS.get(name, name), optim.Optimizer, origin)


def check_class(
    name: str,
    settings: Mapping[str, Any],
    origins: Mapping[str, Origin],
    *,
    lr: float,
    decay: float,
    decay_given: bool,
) -> dict[str, Any]:
    """Make a class with its settings over a small parameter. Return all settings but the rate.

    Args:
        decay_given: whether the user has set the weight decay. Not every class takes one.

    Raises:
        ConfigError: there is no such class, or the class does not take the settings.
    """
    cls = _class_of(name, origin_of(origins, "optimizer"))
    if "weight_decay" in settings:
        raise origin_of(origins, "optimizer_settings.weight_decay").error(
            "is the config's weight_decay; remove it", settings["weight_decay"]
        )

    complete = dict(settings)
    if decay_given or "weight_decay" in inspect.signature(cls).parameters:
        complete["weight_decay"] = decay
    try:
        cls([nn.Parameter(torch.zeros(2))], lr=lr, **_with_tuples(complete))
    except Exception as error:  # classes raise any error for settings
        short = cls.__name__.lower()
        rule = f"{name} does not take these: {error}"
        if short in OPTIMIZERS:
            rule += f"; or take optimizer: {short}"
        raise origin_of(origins, "optimizer_settings").error(rule, {"lr": lr, **complete}) from None
    return complete


def _with_tuples(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with tuples for lists, as torch wants."""
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()
    }


def build_optimizer(model: nn.Module, plan: Plan) -> optim.Optimizer:
    """Build the plan's optimizer over the trainable parameters of a model.

    Weights decay. Biases and norms (parameters of fewer than two dimensions) do not. Without a
    weight decay all are in the same group, which is a single call of a fused kernel.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    settings = _with_tuples(plan.optimizer_settings)
    groups: list[dict[str, Any]] = [{"params": trainable}]
    if settings.get("weight_decay"):
        groups = [
            {"params": [p for p in trainable if p.dim() >= 2]},
            {"params": [p for p in trainable if p.dim() < 2], "weight_decay": 0.0},
        ]

    cls = _class_of(plan.optimizer, plan.origin("optimizer"))
    if plan.optimizer in WITH_KEYS:
        # Fused if torch can: 106 against 119 ms a step of AdamW. That of SGD was not measured.
        # Complex tensors have no fused kernel.
        settings["fused"] = plan.optimizer != "sgd" and not any(p.is_complex() for p in trainable)
    elif hasattr(cls, "groups_of"):
        groups = cls.groups_of(model, plan)
    optimizer: optim.Optimizer = cls(groups, lr=plan.lr, **settings)
    return optimizer
