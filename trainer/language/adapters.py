"""Low-rank adapters (Hu et al. 2021, "LoRA") by the peft library, on a model that is frozen."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import nn

from ..checkpoint.ranges import of_pretrained
from ..config.paths import LocalPath
from ..private.transformers import loader_of
from ..strategies.tensors import canonical_state, first_names
from ..task import Pretrained, SavedPart
from .configuration import changed_configuration
from .model_files import new_in
from .pretrained import configure
from .problems import first_line, setting_error

FILE = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
REFERENCE = "reference"  # the name of a frozen second adapter

# The settings of an adapter that its file of settings has under other names.
SETTINGS = {
    "r": "r",
    "alpha": "lora_alpha",
    "dropout": "lora_dropout",
    "targets": "target_modules",
    "trained": "modules_to_save",
    "rslora": "use_rslora",
    "dora": "use_dora",
    "layers": "layers_to_transform",
}


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """Settings of low-rank adapters.

    Args:
        start: a folder of an adapter, whose settings and values the training begins with.
        alpha: the output of an adapter is multiplied by alpha / r.
        dropout: of an adapter's input. Each layout draws other numbers.
        targets: the ends of the names of layers, such as q_proj, or ``all-linear``: all but the
            head.
        trained: the ends of the names of layers that are trained whole, such as embed_tokens,
            lm_head or score.
        rslora: multiply by alpha / sqrt(r) instead (Kalajdzievski 2023).
        dora: train the lengths of the weights' rows beside their directions (Liu et al. 2024).
        layers: the numbers of the layers with adapters, from 0 on. None: all. ``targets`` are then
            listed.
        quantize: ``nf4`` stores the frozen weights of linear layers in 4 bits (QLoRA).
    """

    start: LocalPath | None = None
    r: Annotated[int, Field(ge=1)] = 16
    alpha: Annotated[float, Field(gt=0)] = 32.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    targets: Literal["all-linear"] | list[str] = "all-linear"
    trained: list[str] | None = None
    rslora: bool = False
    dora: bool = False
    layers: list[int] | None = None
    quantize: Literal["nf4"] | None = None


def started(adapter: Adapter | None, model: str | None) -> tuple[Adapter | None, str | None]:
    """Return an adapter with the settings of the folder it starts with, and the model below.

    ``model`` may be that folder. Raises ``ValueError`` if the folder holds no adapter that can be
    trained further, or if a setting is neither the default nor that of the folder.
    """
    own = adapter or Adapter()
    file = Path(own.start or model or "").expanduser() / CONFIG
    if not file.is_file():
        if own.start:
            raise ValueError(f"adapter.start: {own.start} is no folder of an adapter ({CONFIG})")
        return adapter, model

    config = json.loads(file.read_text(encoding="utf-8"))
    start = str(file.parent)
    if not isinstance(config.get("init_lora_weights"), bool):
        raise ValueError(
            f"adapter.start: {start} needs a LoRA adapter with init_lora_weights true or false; "
            "merge it into its model first"
        )
    settings = {}
    for key, name in SETTINGS.items():
        default = getattr(Adapter, key)
        settings[key] = _in_order(config.get(name, default))
        if _in_order(getattr(own, key)) not in (default, settings[key]):
            raise ValueError(f"adapter.{key}: is another in {start}; leave the key out")
    base = model if own.start else config["base_model_name_or_path"] or model
    return replace(own, start=start, **settings), base


def _in_order(value: Any) -> Any:
    return sorted(value) if isinstance(value, list) else value


def add_adapter(model: Any, adapter: Adapter, task_type: str | None) -> Any:
    """Add adapters to a model, in place. All other weights are frozen.

    ``task_type`` is peft's name, or None for a task that peft does not know. Raises ``ConfigError``
    if there is no layer for the targets, or a layer takes no dropout.
    """
    from peft import LoraConfig, PeftConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    own = {name: getattr(adapter, key) for key, name in SETTINGS.items()}
    try:
        config: Any = (
            PeftConfig.from_pretrained(adapter.start) if adapter.start else LoraConfig(**own)
        )
        config.inference_mode = False
        # get_peft_model warns about another name of the model that the settings of a folder name.
        config.base_model_name_or_path = None
        # GPT-2 stores its weights transposed.
        config.fan_in_fan_out = any(isinstance(layer, Conv1D) for layer in model.modules())
        config.task_type = task_type
        # The matrices stay on the meta device and get the same first values on every layout.
        adapted = get_peft_model(model, config, low_cpu_mem_usage=True)
    except ValueError as error:
        raise setting_error("adapter", adapter.targets, first_line(error)) from None
    _refuse_tied(adapted, ".original_module.")
    return adapted


def set_lengths(model: Any, stored: Sequence[Pretrained]) -> None:
    """Give the lengths of DoRA the values of the weights below, which lie in files, in place."""
    ranges, _ = of_pretrained(stored)
    for name, layer in model.named_modules():
        for vector in getattr(layer, "lora_magnitude_vector", {}).values():
            weight = ranges.whole("parameter", f"{name}.base_layer.weight")
            weight = weight.view(layer.base_layer.weight.shape).float()
            # Both factors are those of an adapter, which adds nothing at first.
            vector.weight = nn.Parameter(vector.get_weight_norm(weight, 0.0, 0.0))


def _refuse_tied(model: Any, mark: str) -> None:
    """Raise ``ConfigError`` if a tensor with this mark in its name belongs to two layers."""
    tensors = canonical_state(model)
    uses = Counter(tensors.values())
    for name, tensor in tensors.items():
        if mark in name and uses[tensor] > 1:
            raise setting_error(
                "adapter",
                name,
                "belongs to two layers (tied embeddings), so that a merge would change both; leave "
                "the layer out of targets and trained",
            )


def add_reference(model: Any) -> None:
    """Add a frozen second adapter to a peft model, in place, for the values of the first."""
    config = copy.deepcopy(model.active_peft_config)
    config.lora_dropout = 0.0
    # peft trains the active adapter alone, which is the first.
    model.add_adapter(REFERENCE, config, low_cpu_mem_usage=True)


def with_start(model: Any, stored: Sequence[Pretrained], start: str | None) -> list[Pretrained]:
    """Return the files of a model, and of its adapters and the layers that are trained whole.

    Adapters and these layers begin with the values of the folder ``start``, if there is such a
    folder. ``stored`` are the files of the model below, if that model has no values yet.
    """
    parts = [*stored]
    if start:
        del parts[1:]  # the values of the model below for these layers
        own = _names_in_file(model).items()
        for adapter in model.peft_config:
            names = {in_file: name.replace(".default", f".{adapter}") for name, in_file in own}
            parts.append(Pretrained(folder=start, names=names))
    new = new_in(model, parts)
    return [replace(part, new=new) for part in parts]


def adapter_part(
    model: Any, changes: Mapping[str, Any] | None = None, new: Collection[str] = ()
) -> SavedPart:
    """Return the adapter of a peft model as the part that is saved, in peft's file format.

    https://huggingface.co/docs/peft/developer_guides/checkpoint. ``changes`` are keys of the base
    model's configuration that differ from its files, and ``new`` tensors that these lack. Raises
    ``ConfigError`` if the file cannot hold some trained or new tensor.
    """
    from peft import PeftModel

    base = model.get_base_model()
    settings = model.active_peft_config
    names = _names_in_file(model, new)
    _refuse_tied(model, ".base_layer.")
    part = SavedPart(file=FILE, names=names, save_config=settings.save_pretrained)
    source = settings.base_model_name_or_path
    load_base = loader_of(base)
    if not load_base or not source:
        return part

    text = base.config.get_text_config()
    rows = type(base.config).from_pretrained(source).get_text_config().vocab_size
    ends = (base.get_input_embeddings(), base.get_output_embeddings())
    if rows != text.vocab_size and not all(hasattr(end, "modules_to_save") for end in ends if end):
        raise setting_error(
            "adapter",
            source,
            f"has {rows} tokens and the model {text.vocab_size}, which the adapter's file does not "
            "hold; name the embedding and the head in adapter.trained (embed_tokens, lm_head)",
        )
    if hasattr(base, "hf_quantizer"):
        return part

    def load(folder: Path) -> Any:
        """Return the adapter of a folder on the model of its files."""
        config = changed_configuration(source, changes, num_labels=base.config.num_labels)
        loaded = load_base(source, config=config)
        if rows < text.vocab_size:
            loaded.resize_token_embeddings(text.vocab_size, mean_resizing=False)
        configure(loaded, pad_token_id=text.pad_token_id)
        return PeftModel.from_pretrained(loaded, folder)

    return replace(part, load=load)


def _names_in_file(model: Any, new: Collection[str] = ()) -> dict[str, str]:
    """Return the name of each tensor in the file of an adapter, by the name in the peft model.

    Raises ``ConfigError`` if the file cannot hold some trained tensor, or a ``new`` tensor of the
    model below.
    """
    from peft.utils import get_peft_model_state_dict

    first_name = first_names(model)  # under which checkpoints hold a shared tensor
    # With "auto" peft would ask the Hub whether an embedding was resized.
    in_file = get_peft_model_state_dict(
        model,
        state_dict=canonical_state(model),
        adapter_name=model.active_adapter,
        save_embedding_layers=False,
    )
    names = {first_name[t]: name for name, t in in_file.items() if t in first_name}
    trained = {name for tensor, name in first_name.items() if tensor.requires_grad}
    # A computed tensor, or a further name of a tensor, would not load again.
    wanted = in_file.keys() | {f"base_model.model.{name}" for name in new}
    lost = sorted((trained - names.keys()) | (wanted - {*names.values()}))
    if lost:
        raise setting_error(
            "adapter",
            lost[0],
            "cannot be held by the file of an adapter; name new layers in adapter.trained (such as "
            "pooler), train nothing else, and tie no saved modules",
        )
    return names
