"""Low-rank adapters (Hu et al. 2021, "LoRA") of the peft library: the model is frozen, and only
they learn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from ..text import did_you_mean
from .ends import read_ends
from .pretrained import load_pretrained
from .problems import first_line, setting_error

if TYPE_CHECKING:
    from torch import nn

    from .meta_model import Stored

ALL = "all-linear"


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """Settings of low-rank adapters.

    Args:
        r: rank of each.
        alpha: what an adapter adds is multiplied by alpha / r.
        dropout: of an adapter's input; it draws other numbers on every layout.
        targets: the layers that get one by the ends of their names, such as q_proj; or all-linear,
            all but the head.
        quantize: nf4: the frozen weights of linear layers are held in 4 bits (QLoRA), by
            bitsandbytes.
    """

    r: Annotated[int, Field(ge=1)] = 16
    alpha: Annotated[float, Field(gt=0)] = 32.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    targets: str | list[str] = ALL
    quantize: Literal["nf4"] | None = None


def add_adapter(
    model: Any, adapter: Adapter, stored: Stored | None = None, task_type: str | None = "CAUSAL_LM"
) -> Any:
    """Return the model with adapters, everything else frozen.

    Args:
        stored: where the values of a model stand that was built without them.
        task_type: as peft calls it; None for a task of which it has no word.

    Raises:
        ConfigError: a target is no layer of the model, or it cannot be quantized.
    """
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    from .quantized import hold_in_4_bits, quantize_weights

    layers = dict(_linear_layers(model))
    targets = [adapter.targets] if isinstance(adapter.targets, str) else adapter.targets
    for target in targets:
        if target != ALL and not any(f".{name}".endswith(f".{target}") for name in layers):
            known = {name.rpartition(".")[2] for name in layers}
            rule = f"the model has no such linear layer; {did_you_mean(target, known)}"
            raise setting_error("adapter.targets", target, rule)
    config = LoraConfig(
        r=adapter.r,
        lora_alpha=adapter.alpha,  # type: ignore[arg-type]  # a factor
        lora_dropout=adapter.dropout,
        target_modules=ALL if ALL in targets else targets,
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in layers.values()),
        task_type=task_type,
    )
    if adapter.quantize is not None:
        hold_in_4_bits(model, adapter.quantize, stored)
    adapted = get_peft_model(model, config)
    if adapter.quantize is not None:
        quantize_weights(adapted, stored)
    return adapted


def load_adapted(folder: str, base: str | None = None) -> Any:
    """Load an exported model; of an adapter, the model that it belongs to with the adapter on it.

    Args:
        base: of an adapter, where its model is now; by default where it was.

    Raises:
        ConfigError: a file is missing or damaged, or the model that the adapter names is gone.
    """
    config = Path(folder).expanduser() / "adapter_config.json"
    if not config.is_file() and base is not None:
        raise setting_error("model", folder, "holds no adapter, and --base is the model of one")
    if not config.is_file():
        return load_pretrained(folder, "sdpa", ignored=["*"])
    from peft import PeftModel
    from safetensors import SafetensorError

    base = base or json.loads(config.read_text(encoding="utf-8")).get("base_model_name_or_path")
    if base is None:
        rule = "adapter_config.json does not name the model of the adapter; give it as --base"
        raise setting_error("model", folder, rule)
    if base.startswith((".", "/", "~")) and not Path(base).expanduser().is_dir():
        rule = f"its adapter belongs to {base}, which is no folder here; give the model as --base"
        raise setting_error("model", folder, rule)
    try:
        adapted = PeftModel.from_pretrained(
            load_pretrained(base, "sdpa", ignored=["*"]), str(config.parent)
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise setting_error(
            "model", folder, f"the adapter cannot be loaded: {first_line(error)}"
        ) from None
    read_ends(config.parent, adapted.get_base_model())
    return adapted


def _linear_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | Conv1D):
            yield name, module
