"""Models of transformers: from a folder, the Hub, or from a configuration alone."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..errors import ConfigError
from ..private.transformers import may_be_missing, may_be_unused
from ..text import did_you_mean, listed
from .meta_model import StoredWeights, find_stored
from .problems import first_line, setting_error

CAUSAL = "AutoModelForCausalLM"
# Buffers in the files of former versions, which from_pretrained ignores in all models.
FORMER_BUFFERS = [r"rotary_emb\.inv_freq", r"(^|\.)position_ids$"]
FILES_OF_A_MODEL = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]


def build_on_meta(
    name: str,
    attention: str | None,
    cache_dir: str,
    auto_class: str = CAUSAL,
    ignored: Sequence[str] = (),
    **options: Any,
) -> tuple[Any, StoredWeights]:
    """Build a pretrained model without its values, and find the files that hold them.

    Args:
        name: a folder of safetensors or a name on the Hub.
        attention: as transformers calls it; None for the choice of the model's class.
        cache_dir: for the converted tensors of experts.
        auto_class: of transformers, that knows the model's class.
        ignored: patterns of tensors of the files that the model may lack.
        options: of the configuration.

    Raises:
        ConfigError: a file is missing, damaged or of another kind; the Hub cannot be reached.
    """
    folder = Path(name).expanduser()
    try:
        if not folder.is_dir():
            from huggingface_hub import snapshot_download

            folder = Path(snapshot_download(name, allow_patterns=FILES_OF_A_MODEL))
        model = _empty_model(name, folder, attention, auto_class, options)
        stored = find_stored(model, folder, cache_dir, ignored)
    except ConfigError:
        raise
    except Exception as error:  # OSError, ValueError, ImportError and more, of four libraries
        raise setting_error("model", name, f"cannot be loaded: {first_line(error)}") from None

    _check_tensors(name, model, stored, auto_class)
    stored.keep_precision(model)
    return model, stored


def _empty_model(
    name: str, folder: Path, attention: str | None, auto_class: str, options: Mapping[str, Any]
) -> Any:
    """Build the model of a folder on the meta device, with the way in which it generates."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(str(folder), **options)
    config.name_or_path = name
    with torch.device("meta"):
        model = getattr(transformers, auto_class).from_config(config, attn_implementation=attention)

    if (folder / "generation_config.json").is_file() and model.can_generate():
        model.generation_config = transformers.GenerationConfig.from_pretrained(str(folder))
    return model


def _check_tensors(name: str, model: Any, stored: StoredWeights, auto_class: str) -> None:
    """Check that a model and its files have the same tensors, but for known differences.

    Known are those that the model's class names (buffers of former versions, layers that predict
    further tokens), and the heads of other tasks on an encoder.

    Raises:
        ConfigError: another tensor is missing or unused.
    """
    missing = _unknown(stored.for_model(model).new, may_be_missing(model))
    unused = _unknown(stored.unused, [*may_be_unused(model), *FORMER_BUFFERS])
    # An encoder's pooling and its last layers belong to one task each. A classifier's are new.
    of_body = re.compile(rf"{model.base_model_prefix}\.(?!.*pooler)")
    if auto_class != CAUSAL:
        unused = list(filter(of_body.match, unused))
    if auto_class == "AutoModelForSequenceClassification":
        missing = list(filter(of_body.match, missing))

    if missing:
        rule = f"its files lack {listed(missing)}, which would begin as random numbers"
        raise setting_error("model", name, rule)
    if unused:
        rule = (
            f"its files hold {listed(unused)}, which {type(model).__name__} does not know; if the "
            "model is not to have them, name them in ignore_tensors (patterns such as 'mtp.*')"
        )
        raise setting_error("model", name, rule)


def _unknown(keys: Collection[str], patterns: Sequence[str]) -> list[str]:
    """Return the names of tensors in which no regular expression is found."""
    return [key for key in keys if not any(re.search(pattern, key) for pattern in patterns)]


# -- from a configuration, and what fits a model --------------------------------------------------


def from_configuration(
    config: Mapping[str, Any],
    attention: str | None,
    defaults: Mapping[str, Any],
    auto_class: str = CAUSAL,
) -> Any:
    """Build a model on the meta device, without values: its task draws the first ones.

    Args:
        config: ``model_type`` and keys of its configuration class.
        defaults: of keys that ``config`` does not set, before those of the class.

    Raises:
        ConfigError: a key or a value is not one of the configuration class.
    """
    import transformers

    given = dict(config)
    kind = given.pop("model_type", None)
    if kind not in transformers.CONFIG_MAPPING:
        raise setting_error("config.model_type", kind, "transformers has no such model type")

    cls = transformers.CONFIG_MAPPING[kind]
    known = {*cls().to_dict(), *cls.attribute_map}
    for key in given.keys() - known:
        rule = f"unknown key; {did_you_mean(key, known)}"
        raise setting_error(f"config.{key}", given[key], rule)

    try:
        built = cls(**{**defaults, **given})
        with torch.device("meta"):
            build = getattr(transformers, auto_class).from_config
            return build(built, attn_implementation=attention)
    except Exception as error:  # a configuration's own checks, sizes that do not divide
        raise setting_error("config", kind, first_line(error)) from None


def check_sizes(model: Any, vocabulary: int, tokenizer: str | None, length: int) -> None:
    """Check that the tokenizer and the length of a row fit the model's embeddings.

    Args:
        vocabulary: one more than the largest token.
        tokenizer: its name, for messages.
        length: positions of a row.

    Raises:
        ConfigError: there are tokens or positions that the model has no embedding for.
    """
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and 0 < positions < length:  # XLNet says -1: no end
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
        ConfigError: the model's layers cannot.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    # transformers 5.23 has renamed it, and warns of the name that 5.17 has.
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
