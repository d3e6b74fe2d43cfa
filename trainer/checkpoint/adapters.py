"""Models of the peft library: which tensors are the adapter, and how they are written for peft.

https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..strategies.tensors import canonical_state


def adapter_names(model: Any) -> dict[str, str]:
    """Return the name in a file of peft of each tensor of the active adapter, by its own name.

    Empty for a model in which more is trained than the adapter's file can hold: such a model is
    written whole.

    Args:
        model: not prepared yet.
    """
    from peft.utils import get_peft_model_state_dict

    tensors = dict(canonical_state(model))
    # For "auto" peft would ask the hub whether an embedding was resized. One that is trained is
    # found below.
    found = get_peft_model_state_dict(
        model,
        state_dict=dict(tensors),
        adapter_name=str(model.active_adapter),
        save_embedding_layers=False,
    )

    own_names: dict[int, str] = {}
    for name, tensor in tensors.items():
        own_names.setdefault(id(tensor), name)  # a shared one by its first name

    names: dict[str, str] = {}
    for name_in_file, tensor in found.items():
        if id(tensor) not in own_names:
            return {}
        names[own_names[id(tensor)]] = name_in_file

    trained = {own_names[id(tensor)] for tensor in tensors.values() if tensor.requires_grad}
    return names if trained <= names.keys() else {}


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
