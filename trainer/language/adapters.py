"""Low-rank adapters (Hu et al. 2021, "LoRA") by the peft library, on a model that is frozen."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ..strategies.tensors import canonical_state
from ..task import SavedPart
from ..text import listed
from .meta_model import StoredWeights
from .problems import setting_error
from .quantized import put_4_bit_layers, quantize_weights

ALL = "all-linear"
FILE = "adapter_model.safetensors"


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """Settings of low-rank adapters.

    Args:
        r: rank of each.
        alpha: the output of an adapter is multiplied by alpha / r.
        dropout: of an adapter's input; it draws other numbers on every layout.
        targets: the layers that get one by the ends of their names, such as q_proj; or all-linear,
            all but the head.
        quantize: nf4: the frozen weights of linear layers are stored in 4 bits (QLoRA), by
            bitsandbytes.
    """

    r: Annotated[int, Field(ge=1)] = 16
    alpha: Annotated[float, Field(gt=0)] = 32.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    targets: str | list[str] = ALL
    quantize: Literal["nf4"] | None = None


def add_adapter(
    model: Any,
    adapter: Adapter,
    stored: StoredWeights | None = None,
    task_type: str | None = "CAUSAL_LM",
) -> Any:
    """Return the model with adapters, everything else frozen.

    Args:
        model: changed in place.
        stored: the files with the values of a model that was built without them.
        task_type: as peft calls it; None for a task that it does not know.

    Raises:
        ConfigError: a target is no layer of the model, or it cannot be quantized.
    """
    from peft import LoraConfig, get_peft_model
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    layers = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | Conv1D):
            layers[name] = module
    targets = [adapter.targets] if isinstance(adapter.targets, str) else adapter.targets
    for target in targets:
        if target != ALL and not any(f".{name}".endswith(f".{target}") for name in layers):
            raise setting_error("adapter.targets", target, "the model has no such linear layer")

    config = LoraConfig(
        r=adapter.r,
        lora_alpha=adapter.alpha,  # type: ignore[arg-type]  # a factor
        lora_dropout=adapter.dropout,
        target_modules=ALL if ALL in targets else targets,
        # GPT-2 stores its weights transposed.
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in layers.values()),
        task_type=task_type,
    )
    if adapter.quantize is not None:
        put_4_bit_layers(model, adapter.quantize, stored)
    adapted = get_peft_model(model, config)
    if adapter.quantize is not None and stored is not None:
        quantize_weights(adapted, stored)
    return adapted


def adapter_part(model: Any) -> SavedPart:
    """Return the adapter of a peft model as the part that is saved, as peft loads it.

    https://huggingface.co/docs/peft/developer_guides/checkpoint

    Args:
        model: not prepared yet.

    Raises:
        ConfigError: something is trained that the file of an adapter cannot hold.
    """
    from peft.utils import get_peft_model_state_dict

    tensors = dict(canonical_state(model))
    own_names: dict[int, str] = {}
    for name, tensor in tensors.items():
        own_names.setdefault(id(tensor), name)  # a shared one by its first name

    # For "auto" peft would ask the hub whether an embedding was resized.
    in_file = get_peft_model_state_dict(
        model,
        state_dict=dict(tensors),
        adapter_name=str(model.active_adapter),
        save_embedding_layers=False,
    )
    names = {}
    for name_in_file, tensor in in_file.items():
        names[own_names.get(id(tensor), name_in_file)] = name_in_file

    trained = {own_names[id(tensor)] for tensor in tensors.values() if tensor.requires_grad}
    wrong = sorted((trained - names.keys()) | (names.keys() - tensors.keys()))
    if wrong:
        rule = f"the file of an adapter cannot hold {listed(wrong)}; train the adapter alone"
        raise setting_error("adapter", "", rule)
    return SavedPart(file=FILE, names=names, save_config=partial(save_adapter_config, model))


def save_adapter_config(model: Any, directory: Path) -> None:
    """Write adapter_config.json as peft does, and generation_config.json with the end tokens."""
    config = model.peft_config[str(model.active_adapter)]
    base_model = model.get_base_model()

    base = config.base_model_name_or_path or getattr(base_model, "name_or_path", None)
    if base and Path(base).expanduser().is_dir():
        base = str(Path(base).expanduser().absolute())  # so that it is found from anywhere
    config.base_model_name_or_path = base or None

    mapping = None
    if not config.task_type:
        base_class = type(base_model)
        mapping = {"base_model_class": base_class.__name__, "parent_library": base_class.__module__}
    mode = config.inference_mode
    config.inference_mode = True
    config.save_pretrained(str(directory), auto_mapping_dict=mapping)
    config.inference_mode = mode

    generation_config = getattr(base_model, "generation_config", None)
    end_tokens = getattr(generation_config, "eos_token_id", None)
    if end_tokens is not None:
        text = json.dumps({"eos_token_id": end_tokens}) + "\n"
        (directory / "generation_config.json").write_text(text, encoding="utf-8")
