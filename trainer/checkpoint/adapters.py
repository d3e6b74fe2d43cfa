"""Models of the peft library: what of them is the adapter, and how it is written so that peft loads it.

https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from ..strategies.tensors import canonical_state


def adapter_names(model: nn.Module) -> dict[str, str]:
    """Return what the tensors of an unprepared model's active adapter are called in a file of peft, by their names.

    Empty for a model in which more learns than the adapter's file could hold: such a model is written as a whole.
    """
    from peft.utils import get_peft_model_state_dict

    tensors = dict(canonical_state(model))
    # Whether an embedding was resized is asked of the hub otherwise; one that learns is looked for below.
    found = get_peft_model_state_dict(
        model, state_dict=dict(tensors), adapter_name=_active(model), save_embedding_layers=False
    )
    ours = {id(tensor): name for name, tensor in reversed(tensors.items())}
    if any(id(tensor) not in ours for tensor in found.values()):
        return {}
    names = {ours[id(tensor)]: name for name, tensor in found.items()}
    learns = {ours[id(tensor)] for tensor in tensors.values() if tensor.requires_grad}
    return names if learns <= names.keys() else {}


def save_adapter_config(model: Any, directory: Path) -> None:
    """Write ``adapter_config.json``, as ``PeftModel.save_pretrained`` does."""
    config = model.peft_config[_active(model)]
    if config.base_model_name_or_path is None:
        config.base_model_name_or_path = getattr(model.get_base_model(), "name_or_path", None) or None
    mode, config.inference_mode = config.inference_mode, True
    base = type(model.get_base_model())
    mapping = {"base_model_class": base.__name__, "parent_library": base.__module__}
    config.save_pretrained(str(directory), auto_mapping_dict=None if config.task_type else mapping)
    config.inference_mode = mode


def _active(model: Any) -> str:
    return str(model.active_adapter)
