"""Models of transformers from a configuration alone, and checks of sizes against a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..text import did_you_mean
from .meta_model import CAUSAL
from .problems import first_line, setting_error


def from_configuration(
    config: Mapping[str, Any],
    attention: str | None,
    defaults: Mapping[str, Any],
    auto_class: str = CAUSAL,
) -> Any:
    """Build a model on the meta device, without values: its task draws the first values.

    Args:
        config: ``model_type`` and keys of its configuration class.
        defaults: of keys that ``config`` does not set, before the defaults of the class.

    Raises:
        ConfigError: the configuration class does not know a key, or refuses a value.
    """
    import transformers

    kind, given = config.get("model_type"), {**defaults, **config}
    try:
        built = transformers.AutoConfig.for_model(**given)
        with torch.device("meta"):
            model = getattr(transformers, auto_class).from_config(
                built, attn_implementation=attention
            )
    except Exception as error:  # a configuration's own checks, sizes that do not divide
        raise setting_error("config", kind, first_line(error)) from None

    known = {"model_type", *type(built)().to_dict(), *built.attribute_map}
    for key in config.keys() - known:
        rule = f"unknown key; {did_you_mean(key, known)}"
        raise setting_error(f"config.{key}", config[key], rule)
    return model


def check_sizes(model: Any, vocabulary: int, tokenizer: str | None, length: int) -> None:
    """Check that the tokenizer and the length of a row fit the model's embeddings.

    Args:
        vocabulary: the largest token plus 1.
        tokenizer: the tokenizer's name, for messages.
        length: positions of a row.

    Raises:
        ConfigError: the model has no embedding for some tokens or positions.
    """
    positions = getattr(model.config, "max_position_embeddings", None) or length
    if 0 < positions < length:  # XLNet says -1: no end
        rule = f"the model has {positions:,} positions; lower it"
        raise setting_error("sequence_length", length, rule)

    rows = model.get_input_embeddings().num_embeddings
    if vocabulary > rows:
        rule = f"has tokens up to {vocabulary - 1:,}, and the model's embedding has {rows:,} rows"
        raise setting_error("tokenizer", tokenizer, rule)


def checkpoint_activations(model: Any, every: int) -> None:
    """Recompute the activations of every n-th layer in the backward pass instead of keeping them.

    Args:
        model: changed in place.

    Raises:
        ConfigError: the model's layers cannot recompute.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    # transformers 5.23 has renamed the method, and warns of the name that 5.17 has.
    enable = getattr(model, "activation_checkpointing_enable", None)
    enable = enable or model.gradient_checkpointing_enable
    try:
        enable({"use_reentrant": False})
    except ValueError as error:
        raise setting_error("activation_checkpointing", every, first_line(error)) from None

    modules = model.modules()
    layers = [module for module in modules if isinstance(module, GradientCheckpointingLayer)]
    for number, layer in enumerate(layers):
        layer.gradient_checkpointing = number % every == 0
