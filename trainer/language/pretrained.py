"""Models of transformers from a configuration alone, and recomputed activations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .configuration import check_keys
from .model_files import CAUSAL
from .problems import setting_errors


def from_configuration(
    config: Mapping[str, Any],
    attention: str | None,
    defaults: Mapping[str, Any],
    auto_class: str = CAUSAL,
) -> Any:
    """Build a model on the meta device, for values that its task draws.

    Raises ``ConfigError`` if the configuration's class does not know a key, or refuses a value.
    """
    import transformers

    with setting_errors("config", config.get("model_type"), "is refused"), torch.device("meta"):
        built = transformers.AutoConfig.for_model(**{**defaults, **config})
        model = getattr(transformers, auto_class).from_config(built, attn_implementation=attention)

    check_keys("config", config, {"model_type", *type(built)().to_dict(), *built.attribute_map})
    return model


def configure(model: Any, **values: Any) -> None:
    """Set values of a model's configuration, and in that of the text part if there are several."""
    model.config.update(values)
    model.config.get_text_config().update(values)


def checkpoint_activations(model: Any, every: int) -> None:
    """Recompute the activations of every n-th layer in the backward pass. 0: of no layer."""
    if not every:
        return
    from transformers.modeling_layers import GradientCheckpointingLayer

    # transformers 5.23 has renamed the method of 5.17, and warns if the old name is used.
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
    layers = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
    for number, layer in enumerate(layers):
        layer.gradient_checkpointing = number % every == 0
