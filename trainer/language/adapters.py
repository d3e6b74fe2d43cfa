"""Low-rank adapters (Hu et al. 2021, "LoRA") by the peft library, on a model that is frozen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ..private.transformers import loader_of
from ..strategies.tensors import canonical_state
from ..task import SavedPart
from ..text import listed
from .configuration import changed_configuration
from .pretrained import configure
from .problems import first_line, setting_error

FILE = "adapter_model.safetensors"


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """Settings of low-rank adapters.

    Args:
        alpha: the output of an adapter is multiplied by alpha / r.
        dropout: of an adapter's input. Each layout draws other numbers.
        targets: the ends of the names of layers, such as q_proj, or ``all-linear``: all but the
            head.
        quantize: ``nf4`` stores the frozen weights of linear layers in 4 bits (QLoRA).
    """

    r: Annotated[int, Field(ge=1)] = 16
    alpha: Annotated[float, Field(gt=0)] = 32.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    targets: Literal["all-linear"] | list[str] = "all-linear"
    quantize: Literal["nf4"] | None = None


def add_adapter(model: Any, adapter: Adapter, task_type: str | None) -> Any:
    """Add adapters to a model, in place. All other weights are frozen.

    ``task_type`` is peft's name, or None for a task that peft does not know. Raises ``ConfigError``
    if there is no layer for the targets, or a layer takes no dropout.
    """
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    config = LoraConfig(
        r=adapter.r,
        lora_alpha=adapter.alpha,  # a factor
        lora_dropout=adapter.dropout,
        target_modules=adapter.targets,
        # GPT-2 stores its weights transposed.
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in model.modules()),
        task_type=task_type,
    )
    try:
        # The matrices stay on the meta device and get the same first values on every layout.
        return get_peft_model(model, config, low_cpu_mem_usage=True)
    except ValueError as error:
        raise setting_error("adapter", adapter.targets, first_line(error)) from None


def adapter_part(model: Any, changes: Mapping[str, Any] | None = None) -> SavedPart:
    """Return the adapter of a peft model as the part that is saved, in peft's file format.

    https://huggingface.co/docs/peft/developer_guides/checkpoint. ``changes`` are keys of the base
    model's configuration that differ from its files. Raises ``ConfigError`` if the file cannot hold
    some trained tensor.
    """
    from peft import PeftModel
    from peft.utils import get_peft_model_state_dict

    base = model.get_base_model()
    settings = model.active_peft_config
    tensors = dict(canonical_state(model))
    # Checkpoints hold a shared tensor under the first of its names.
    first_name = {tensor: name for name, tensor in reversed(tensors.items())}

    # With "auto" peft would ask the Hub whether an embedding was resized.
    in_file = get_peft_model_state_dict(
        model,
        state_dict=dict(tensors),
        adapter_name=model.active_adapter,
        save_embedding_layers=False,
    )
    names = {first_name[t]: name for name, t in in_file.items() if t in first_name}
    trained = {first_name[tensor] for tensor in tensors.values() if tensor.requires_grad}
    # A computed tensor, or a further name of a tensor, would not load again.
    lost = sorted((trained - names.keys()) | (in_file.keys() - names.values()))
    if lost:
        raise setting_error(
            "adapter",
            settings.peft_type.value,
            f"the file of an adapter cannot hold {listed(lost)}; train the adapter alone, and tie "
            "no saved modules",
        )

    uses = Counter(tensors.values())
    tied = [name for name, t in tensors.items() if ".base_layer." in name and uses[t] > 1]
    if tied:
        raise setting_error(
            "adapter",
            tied[0],
            "belongs to two layers (tied embeddings), so that a merge would change both; leave the "
            "layer out of targets",
        )

    part = SavedPart(file=FILE, names=names, save_config=settings.save_pretrained)
    source = settings.base_model_name_or_path
    load_base = loader_of(base)
    if not load_base or not source or hasattr(base, "hf_quantizer"):
        return part

    text = base.config.get_text_config()
    rows = type(base.config).from_pretrained(source).get_text_config().vocab_size
    if rows != text.vocab_size:
        raise setting_error(
            "adapter",
            source,
            f"has {rows} tokens and the model {text.vocab_size}, which no adapter's file holds; "
            "save the model with all tokens first, and load that",
        )

    def load(folder: Path) -> Any:
        """Return the adapter of a folder on the model of its files."""
        labels = base.config.num_labels
        config = changed_configuration(source, changes or {}, num_labels=labels)
        loaded = load_base(source, config=config)
        configure(loaded, pad_token_id=text.pad_token_id)
        return PeftModel.from_pretrained(loaded, folder)

    return replace(part, load=load)
