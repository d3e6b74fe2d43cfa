"""Models of the peft library: what of them is the adapter, and how it is written so that peft loads
it.

https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..strategies.tensors import canonical_state


def adapter_names(model: Any) -> dict[str, str]:
    """Return what the tensors of an unprepared model's active adapter are called in a file of peft,
    by their names.

    Empty for a model in which more learns than the adapter's file could hold: such a model is
    written as a whole.
    """
    from peft.utils import get_peft_model_state_dict

    tensors = dict(canonical_state(model))
    # Whether an embedding was resized is asked of the hub otherwise; one that learns is looked for
    # below.
    found = get_peft_model_state_dict(
        model,
        state_dict=dict(tensors),
        adapter_name=str(model.active_adapter),
        save_embedding_layers=False,
    )
    ours = {id(tensor): name for name, tensor in reversed(tensors.items())}
    if any(id(tensor) not in ours for tensor in found.values()):
        return {}
    names = {ours[id(tensor)]: name for name, tensor in found.items()}
    learns = {ours[id(tensor)] for tensor in tensors.values() if tensor.requires_grad}
    return names if learns <= names.keys() else {}


def save_adapter_config(model: Any, directory: Path) -> None:
    """Write ``adapter_config.json``, as ``PeftModel.save_pretrained`` does, and the tokens that end
    a text.
    """
    config = model.peft_config[str(model.active_adapter)]
    base = (
        config.base_model_name_or_path
        or getattr(model.get_base_model(), "name_or_path", None)
        or None
    )
    if (
        base is not None and Path(base).expanduser().is_dir()
    ):  # from another folder it is to be found as well
        base = str(Path(base).expanduser().absolute())
    config.base_model_name_or_path = base
    mode, config.inference_mode = config.inference_mode, True
    base = type(model.get_base_model())
    mapping = {"base_model_class": base.__name__, "parent_library": base.__module__}
    config.save_pretrained(str(directory), auto_mapping_dict=None if config.task_type else mapping)
    config.inference_mode = mode
    ends = getattr(getattr(model.get_base_model(), "generation_config", None), "eos_token_id", None)
    if ends is not None:
        (directory / "generation_config.json").write_text(
            json.dumps({"eos_token_id": ends}) + "\n", encoding="utf-8"
        )
