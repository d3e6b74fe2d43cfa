"""Models of transformers: from a folder, a GGUF file, the Hub, or from a configuration alone."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..errors import ConfigError
from ..private.transformers import may_be_missing, may_be_unused
from ..text import did_you_mean, listed
from .meta_model import StoredWeights, converted, find_stored, matches
from .problems import first_line, setting_error

CAUSAL = "AutoModelForCausalLM"
# Buffers in the files of former versions, which from_pretrained ignores in all models.
FORMER_BUFFERS = [r"rotary_emb\.inv_freq", r"(^|\.)position_ids$"]
# In the errors of transformers about the attention that was asked for, in small letters: it is not
# known, the model does not have it, or its package is not installed.
ABOUT_ATTENTION = (
    "attn_implementation",
    "attention implementation",
    "flash attention",
    "flashattention",
    "`kernels`",
)
FILES_OF_A_MODEL = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]


def build_on_meta(
    name: str,
    attention: str | None,
    cache_dir: str,
    auto_class: str = CAUSAL,
    ignored: Sequence[str] = (),
    **options: Any,
) -> tuple[Any, StoredWeights | None]:
    """Build a pretrained model without its values, and find the files that hold them.

    Args:
        name, attention, auto_class, ignored: as of ``load_pretrained``.
        cache_dir: for what a GGUF file, or a tensor for each expert, is converted to.
        options: of the configuration.

    Returns:
        The model, and its files. Without safetensors files the model has its values, and its files
        are None.

    Raises:
        ConfigError: as ``load_pretrained``.
    """
    folder = _local_folder(name)
    load_options = _check_folder(name, folder)
    try:
        if "gguf_file" in load_options:
            gguf_file = folder / load_options["gguf_file"]
            folder = converted(gguf_file, cache_dir, lambda: load_pretrained(name, None))
        model = _empty_model(name, folder, attention, auto_class, options)
        stored = find_stored(model, folder, cache_dir, ignored)
    except ConfigError:
        raise
    except Exception as error:  # OSError, ValueError, ImportError and more, of four libraries
        raise _not_loaded(name, attention, error) from None

    if stored is None:
        return load_pretrained(name, attention, auto_class, ignored, **options), None

    _check_tensors(name, model, stored.missing(model), stored.unused, auto_class, ignored)
    apart = stored.tied_apart(model)
    if apart:
        rule = (
            f"its files hold different values for {listed(apart)}, which its configuration makes "
            "one tensor; set tie_word_embeddings: false in its config.json"
        )
        raise setting_error("model", name, rule)
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


def load_pretrained(
    name: str,
    attention: str | None,
    auto_class: str = CAUSAL,
    ignored: Sequence[str] = (),
    **options: Any,
) -> Any:
    """Load a pretrained model, every weight of it.

    Args:
        name: a folder or a name on the Hub.
        attention: as transformers calls it: sdpa, eager, flash_attention_2; None for what the
            model's class takes.
        auto_class: of transformers, that knows the model's class.
        ignored: patterns of tensors of the files that the model may lack.
        options: of ``from_pretrained``.

    Raises:
        ConfigError: a file is missing, damaged or of another kind; the Hub cannot be reached.
    """
    import transformers

    folder = _local_folder(name)
    options |= _check_folder(name, folder)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # one a rank
    try:
        model, info = getattr(transformers, auto_class).from_pretrained(
            str(folder), attn_implementation=attention, output_loading_info=True, **options
        )
    except Exception as error:  # OSError, ValueError, ImportError and more, of four libraries
        raise _not_loaded(name, attention, error) from None

    missing, unused = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
    _check_tensors(name, model, missing, unused, auto_class, ignored)
    return model


# -- files ----------------------------------------------------------------------------------------


def _local_folder(name: str) -> Path:
    """Return the folder of a model; for one on the Hub, the copy downloaded once per machine."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        rule = "no such folder; give a folder of safetensors or a name on the Hub"
        raise setting_error("model", name, rule)

    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=FILES_OF_A_MODEL))
    except Exception as error:  # no network, no such model, no right to it
        raise _not_loaded(name, None, error) from None


def _check_folder(name: str, folder: Path) -> dict[str, Any]:
    """Check the files of a folder; return options that ``from_pretrained`` needs to load it.

    Raises:
        ConfigError: the folder holds no model, or a file is cut off.
    """
    if (folder / "adapter_config.json").is_file():
        rule = "holds an adapter; give the model that it belongs to, or merge the two"
        raise setting_error("model", name, rule)

    if not (folder / "config.json").is_file():
        return _gguf_options(name, folder)

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if "quantization_config" in config:
        rule = (
            "is quantized; give the model of full weights: adapter.quantize stores them in 4 bits"
        )
        raise setting_error("model", name, rule)
    _check_safetensors(name, folder)
    return {}


def _gguf_options(name: str, folder: Path) -> dict[str, Any]:
    import transformers

    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise setting_error("model", name, "holds neither config.json nor a GGUF file")

    options: dict[str, Any] = {"gguf_file": files[0].name}
    # transformers 5.23 leaves weights packed where it has a kernel for it, and such weights are not
    # trainable.
    if hasattr(transformers, "GgufConfig"):
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    return options


def _check_safetensors(name: str, folder: Path) -> None:
    """Open each safetensors file, to name the one that is cut off: the library does not."""
    from safetensors import SafetensorError, safe_open

    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except SafetensorError as error:
            rule = f"{path.name} is cut off or damaged: {first_line(error)}"
            raise setting_error("model", name, rule) from None


def _not_loaded(name: str, attention: str | None, error: BaseException) -> Exception:
    """Return the error for a model that a library failed to load."""
    text = first_line(error)
    if _is_about_attention(error):
        return setting_error("attention", attention, text)
    if Path(name).expanduser().is_dir():
        return setting_error("model", name, f"cannot be loaded: {text}")
    rule = f"no such folder here, and it cannot be loaded from the Hub: {text}"
    return setting_error("model", name, rule)


def _is_about_attention(error: BaseException) -> bool:
    """Return whether an error of transformers is about the attention that was asked for."""
    text = str(error).lower()
    return any(words in text for words in ABOUT_ATTENTION)


# -- tensors --------------------------------------------------------------------------------------


def _check_tensors(
    name: str,
    model: Any,
    missing: list[str],
    unused: list[str],
    auto_class: str,
    ignored: Sequence[str],
) -> None:
    """Check that a model and its files have the same tensors, but for known differences.

    Known are those that the model's class names (buffers of former versions, layers that predict
    further tokens), those of ``ignored``, and the heads of other tasks on an encoder.

    Args:
        missing: tensors of the model that no file has.
        unused: tensors of the files that the model does not have.

    Raises:
        ConfigError: another tensor is missing or unused.
    """
    missing = [key for key in missing if not _matches_any(may_be_missing(model), key)]
    known = [*may_be_unused(model), *FORMER_BUFFERS]
    unused = [key for key in unused if not _matches_any(known, key)]
    unused = [key for key in unused if not matches(key, ignored)]
    if auto_class != CAUSAL:
        # An encoder's pooling and its last layers belong to one task each.
        unused = [key for key in unused if _in_body(model, key)]
    if auto_class == "AutoModelForSequenceClassification":
        # Its last layer is new.
        missing = [key for key in missing if _in_body(model, key)]

    if missing:
        rule = f"its files lack {listed(missing)}, which would begin as random numbers; "
        rule += "copy the whole folder"
        if unused:
            rule += f" (they hold {listed(unused)}, which the model does not know)"
        raise setting_error("model", name, rule)
    if unused:
        rule = (
            f"its files hold {listed(unused)}, which {type(model).__name__} does not know: the "
            "model would be another one; if it is not to have them, name them in ignore_tensors "
            "(patterns such as 'mtp.*')"
        )
        raise setting_error("model", name, rule)


def _matches_any(patterns: Sequence[str], key: str) -> bool:
    """Return whether one of the regular expressions is found in a tensor's name."""
    return any(re.search(pattern, key) for pattern in patterns)


def _in_body(model: Any, key: str) -> bool:
    return key.startswith(f"{model.base_model_prefix}.") and "pooler" not in key


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
        rule = f"no such model type; {did_you_mean(str(kind), transformers.CONFIG_MAPPING)}"
        raise setting_error("config.model_type", kind, rule)

    cls = transformers.CONFIG_MAPPING[kind]
    known = {*cls().to_dict(), *cls.attribute_map}
    for key, value in given.items():
        if key not in known:
            rule = f"unknown key; {cls.__name__} would not use it; {did_you_mean(key, known)}"
            raise setting_error(f"config.{key}", value, rule)

    try:
        built = cls(**{**defaults, **given})
        with torch.device("meta"):
            return getattr(transformers, auto_class).from_config(
                built, attn_implementation=attention
            )
    except Exception as error:  # a configuration's own checks, sizes that do not divide
        if _is_about_attention(error):
            raise setting_error("attention", attention, first_line(error)) from None
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
    positions = _positions(model)
    if positions is not None and 0 < positions < length:  # XLNet says -1: no end
        rule = f"the model has {positions:,} positions; lower it"
        raise setting_error("sequence_length", length, rule)

    rows = model.get_input_embeddings().num_embeddings
    if vocabulary > rows:
        rule = (
            f"has tokens up to {vocabulary - 1:,}, and the model's embedding ends at {rows - 1:,}; "
            "give the model's own"
        )
        raise setting_error("tokenizer", tokenizer, rule)


def _positions(model: Any) -> int | None:
    """Return the number of positions that a model knows; None: its configuration names none."""
    positions: int | None = getattr(model.config, "max_position_embeddings", None)
    for name, module in model.named_modules():
        padding = getattr(module, "padding_idx", None)
        if name.endswith("position_embeddings") and padding is not None:
            # RoBERTa counts positions from behind that of padding.
            positions = module.num_embeddings - padding - 1
    return positions


def checkpoint_activations(model: Any, every: int) -> None:
    """Recompute the activations of every n-th layer in the backward pass instead of keeping them.

    Args:
        model: changed in place.

    Raises:
        ConfigError: the model's layers cannot.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    # transformers 5.23 has renamed it, and warns of the name that 5.17 has.
    if hasattr(model, "activation_checkpointing_enable"):
        enable = model.activation_checkpointing_enable
    else:
        enable = model.gradient_checkpointing_enable
    try:
        enable({"use_reentrant": False})
    except ValueError as error:
        raise setting_error("activation_checkpointing", every, first_line(error)) from None

    modules = model.modules()
    layers = [module for module in modules if isinstance(module, GradientCheckpointingLayer)]
    for number, layer in enumerate(layers):
        layer.gradient_checkpointing = number % every == 0
