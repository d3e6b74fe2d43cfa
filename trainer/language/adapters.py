"""Low-rank adapters (Hu et al. 2021, "LoRA") by the peft library, on a model that is frozen."""

from __future__ import annotations

import copy
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
    # For "auto" peft would ask the hub whether an embedding was resized.
    in_file = get_peft_model_state_dict(
        model,
        state_dict=dict(tensors),
        adapter_name=str(model.active_adapter),
        save_embedding_layers=False,
    )
    name_in_file = {id(tensor): name for name, tensor in in_file.items()}
    names: dict[str, str] = {}
    held: set[int] = set()
    wrong = []
    for name, tensor in tensors.items():
        if id(tensor) in name_in_file:  # a shared tensor by its first name
            names[name] = name_in_file.pop(id(tensor))
            held.add(id(tensor))
        elif tensor.requires_grad and id(tensor) not in held:
            wrong.append(name)

    wrong += name_in_file.values()
    if wrong:
        rule = f"the file of an adapter cannot hold {listed(wrong)}; train the adapter alone"
        raise setting_error("adapter", "", rule)
    return SavedPart(file=FILE, names=names, save_config=partial(_save_config, model))


def _save_config(model: Any, directory: Path) -> None:
    """Write adapter_config.json as peft does, and generation_config.json with the end tokens."""
    config = copy.copy(model.peft_config[str(model.active_adapter)])
    config.inference_mode = True
    if config.base_model_name_or_path:
        base = Path(config.base_model_name_or_path).expanduser()
        if base.is_dir():
            config.base_model_name_or_path = str(base.absolute())  # found from anywhere
    config.save_pretrained(str(directory))

    generation_config = getattr(model.get_base_model(), "generation_config", None)
    if generation_config is not None:
        generation_config.save_pretrained(directory)
