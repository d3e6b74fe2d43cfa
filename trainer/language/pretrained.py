"""Models of the transformers library: from a folder, a GGUF file in a folder, the Hub, or from a
configuration.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..text import did_you_mean, listed
from .meta_model import Stored, converted, find_stored, matches
from .problems import first_line, setting_error

UNEXPECTED = "_keys_to_ignore_on_load_unexpected"
# Buffers that files of former versions hold; transformers' from_pretrained overlooks them in all
# models.
FORMER_BUFFERS = [r"rotary_emb\.inv_freq", r"(^|\.)position_ids$"]


def build_blank(
    name: str,
    attention: str | None,
    cache_dir: str,
    auto_class: str = "AutoModelForCausalLM",
    ignored: Sequence[str] = (),
    **options: Any,
) -> tuple[Any, Stored | None]:
    """Build a pretrained model without its values, and say where they stand; a whole one without
    safetensors files.

    Args:
        name, attention, auto_class, ignored: as of ``load_pretrained``.
        cache_dir: for what a GGUF file, or a tensor for each expert, is converted to.
        options: of the configuration.

    Raises:
        ConfigError: as ``load_pretrained``.
    """
    import torch
    import transformers

    folder = _local(name)
    gguf = _checked(name, folder).get("gguf_file")
    try:
        if gguf:
            folder = converted(folder / gguf, cache_dir, lambda: load_pretrained(name, None))
        config = transformers.AutoConfig.from_pretrained(str(folder), **options)
        config._name_or_path = name
        with torch.device("meta"):
            model = getattr(transformers, auto_class).from_config(
                config, attn_implementation=attention
            )
        stored = find_stored(model, folder, cache_dir, ignored)
        if (folder / "generation_config.json").is_file() and model.can_generate():
            model.generation_config = transformers.GenerationConfig.from_pretrained(str(folder))
    except ConfigError:
        raise
    except Exception as error:  # OSError, ValueError, ImportError and more, of four libraries
        raise _not_loaded(name, attention, error) from None
    if stored is None:
        return load_pretrained(name, attention, auto_class, ignored, **options), None
    _hold_to_files(name, model, stored.missing(model), stored.unused, auto_class, ignored)
    apart = stored.tied_apart(model)
    if apart:
        rule = (
            f"its files hold different values for {listed(apart)}, which its configuration makes one tensor; set "
            "tie_word_embeddings: false in its config.json"
        )
        raise setting_error("model", name, rule)
    stored.keep_precision(model)
    return model, stored


def load_pretrained(
    name: str,
    attention: str | None,
    auto_class: str = "AutoModelForCausalLM",
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

    folder = _local(name)
    options |= _checked(name, folder)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # one for each rank
    try:
        model, info = getattr(transformers, auto_class).from_pretrained(
            str(folder), attn_implementation=attention, output_loading_info=True, **options
        )
    except Exception as error:  # OSError, ValueError, ImportError and more, of four libraries
        raise _not_loaded(name, attention, error) from None
    _hold_to_files(
        name,
        model,
        sorted(info["missing_keys"]),
        sorted(info["unexpected_keys"]),
        auto_class,
        ignored,
    )
    return model


def _local(name: str) -> Path:
    """Return the folder of a model; of one on the Hub the copy that is fetched once on each
    machine.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise setting_error(
            "model", name, "no such folder; give a folder of safetensors or a name on the Hub"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                name, allow_patterns=["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]
            )
        )
    except Exception as error:  # no network, no such model, no right to it
        raise _not_loaded(name, None, error) from None


def _hold_to_files(
    name: str,
    model: Any,
    missing: list[str],
    unused: list[str],
    auto_class: str,
    ignored: Sequence[str],
) -> None:
    """Hold a model to have all that its files hold, and the files all that it has, but for what is
    known to differ.

    That is what the model's class names (buffers of former versions, layers that predict further
    tokens), and the heads of other tasks on an encoder.

    Raises:
        ConfigError: a tensor of one of them is not in the other.
    """
    missing = [key for key in missing if not _found(model, "_keys_to_ignore_on_load_missing", key)]
    unused = [
        key for key in unused if not matches(key, ignored) and not _found(model, UNEXPECTED, key)
    ]
    if (
        auto_class != "AutoModelForCausalLM"
    ):  # what some encoders pool with, and their last layers, are of one task
        unused = [key for key in unused if _in_body(model, key)]
    if auto_class == "AutoModelForSequenceClassification":  # its last layer begins anew
        missing = [key for key in missing if _in_body(model, key)]

    if missing:
        rule = f"its files lack {listed(missing)}, which would begin as random numbers; copy the whole folder"
        if unused:
            rule += f" (they hold {listed(unused)}, which the model does not know)"
        raise setting_error("model", name, rule)
    if unused:
        rule = (
            f"its files hold {listed(unused)}, which {type(model).__name__} does not know: it would be another model "
            "than theirs; if it is to do without them, name them in ignore_tensors (patterns such as 'mtp.*')"
        )
        raise setting_error("model", name, rule)


def _found(model: Any, attribute: str, key: str) -> bool:
    """Tell whether one of the patterns that a model's class keeps stands for a tensor."""
    patterns = [*(getattr(model, attribute, None) or ())]
    patterns += FORMER_BUFFERS if attribute == UNEXPECTED else []
    return any(re.search(pattern, key) for pattern in patterns)


def _in_body(model: Any, key: str) -> bool:
    return key.startswith(f"{model.base_model_prefix}.") and "pooler" not in key


def from_configuration(
    config: Mapping[str, Any],
    attention: str | None,
    defaults: Mapping[str, Any],
    auto_class: str = "AutoModelForCausalLM",
) -> Any:
    """Build a model without values, on the meta device: its task draws them.

    Args:
        config: ``model_type`` and keys of its configuration class.
        defaults: of keys that it does not set; the class has others.

    Raises:
        ConfigError: a key or a value is not the configuration's.
    """
    import torch
    import transformers

    given, known_types = dict(config), transformers.CONFIG_MAPPING
    kind = given.pop("model_type", None)
    if kind not in known_types:
        rule = f"no such model type; {did_you_mean(str(kind), known_types)}"
        raise setting_error("config.model_type", kind, rule)
    cls = known_types[kind]
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
        raise setting_error("config", kind, first_line(error)) from None


def check_sizes(model: Any, vocabulary: int, named: str | None, length: int) -> None:
    """Hold the tokenizer and the length of a row against the model's embeddings.

    Args:
        vocabulary: one more than the largest token.
        named: the tokenizer.

    Raises:
        ConfigError: there are tokens or positions that the model has not learnt.
    """
    positions = getattr(model.config, "max_position_embeddings", None)
    for (
        name,
        module,
    ) in model.named_modules():  # RoBERTa counts positions from behind the one of fillers
        if (
            name.endswith("position_embeddings")
            and getattr(module, "padding_idx", None) is not None
        ):
            positions = module.num_embeddings - module.padding_idx - 1
    if positions is not None and 0 < positions < length:  # XLNet says -1: no end
        raise setting_error(
            "sequence_length", length, f"the model has {positions:,} positions; lower it"
        )
    rows = model.get_input_embeddings().num_embeddings
    if vocabulary > rows:
        rule = f"has tokens up to {vocabulary - 1:,}, and the model's embedding ends at {rows - 1:,}; give the model's own"
        raise setting_error("tokenizer", named, rule)


def checkpoint_activations(model: Any, every: int) -> None:
    """Compute the activations of every n-th layer anew in the backward pass instead of keeping
    them.

    Raises:
        ConfigError: the model's layers cannot.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    # transformers 5.23 has renamed it, and warns of the name that 5.17 has.
    enable = (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )
    try:
        enable({"use_reentrant": False})
    except ValueError as error:
        raise setting_error("activation_checkpointing", every, first_line(error)) from None
    layers = [
        module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
    ]
    for number, layer in enumerate(layers):
        layer.gradient_checkpointing = number % every == 0


def _checked(name: str, folder: Path) -> dict[str, Any]:
    """Hold the files of a folder against each other; return what ``from_pretrained`` needs to know
    of them.

    Raises:
        ConfigError: a file is cut off; the folder holds no model.
    """
    from safetensors import SafetensorError, safe_open

    if (folder / "adapter_config.json").is_file():
        raise setting_error(
            "model", name, "holds an adapter; give the model that it belongs to, or merge the two"
        )
    if (folder / "config.json").is_file():
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if "quantization_config" in config:
            rule = "is quantized; give the model of full weights: adapter.quantize holds them in 4 bits"
            raise setting_error("model", name, rule)
    elif ggufs := sorted(folder.glob("*.gguf")):
        import transformers

        # 5.23 leaves weights packed where it has a kernel for it, and such weights do not learn.
        whole = getattr(transformers, "GgufConfig", None)
        options = {} if whole is None else {"quantization_config": whole(dequantize=True)}
        return {"gguf_file": ggufs[0].name, **options}
    else:
        raise setting_error("model", name, "holds neither config.json nor a GGUF file")
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except SafetensorError as error:
            raise setting_error(
                "model", name, f"{path.name} is cut off or damaged: {first_line(error)}"
            ) from None
    return {}


def _not_loaded(name: str, attention: str | None, error: BaseException) -> Exception:
    text = first_line(error)
    if "attn_implementation" in str(error) or "attention implementation" in str(error).lower():
        return setting_error("attention", attention, text)
    if Path(name).expanduser().is_dir():
        return setting_error("model", name, f"cannot be loaded: {text}")
    return setting_error(
        "model", name, f"no such folder here, and it cannot be loaded from the Hub: {text}"
    )
