"""Low-rank adapters (Hu et al. 2021, "LoRA") by the peft library, on a model that is frozen."""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from ..text import did_you_mean
from .ends import read_ends
from .meta_model import StoredWeights
from .pretrained import load_pretrained
from .problems import first_line, setting_error
from .quantized import put_4_bit_layers, quantize_weights

if TYPE_CHECKING:
    from torch import nn

ALL = "all-linear"


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
    from transformers.pytorch_utils import Conv1D

    layers = _linear_layers(model)
    targets = [adapter.targets] if isinstance(adapter.targets, str) else adapter.targets
    _check_targets(targets, layers)

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
    if adapter.quantize is not None:
        quantize_weights(adapted, stored)
    return adapted


def _linear_layers(model: nn.Module) -> dict[str, nn.Module]:
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    modules = model.named_modules()
    return {name: module for name, module in modules if isinstance(module, nn.Linear | Conv1D)}


def _check_targets(targets: Sequence[str], layers: Collection[str]) -> None:
    """Refuse a target that is not the end of a layer's name."""
    for target in targets:
        if target == ALL or any(f".{name}".endswith(f".{target}") for name in layers):
            continue
        known = {name.rpartition(".")[2] for name in layers}
        rule = f"the model has no such linear layer; {did_you_mean(target, known)}"
        raise setting_error("adapter.targets", target, rule)


def load_adapted(folder: str, base: str | None = None) -> Any:
    """Load an exported model; an adapter is loaded onto the model that it belongs to.

    Args:
        base: of an adapter, where its model is now; by default where it was.

    Raises:
        ConfigError: a file is missing or damaged, or the model that the adapter names is gone.
    """
    config = Path(folder).expanduser() / "adapter_config.json"
    if not config.is_file():
        if base is not None:
            rule = "holds no adapter, and --base is the model of one"
            raise setting_error("model", folder, rule)
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

    model = load_pretrained(base, "sdpa", ignored=["*"])
    try:
        with warnings.catch_warnings():
            # peft 0.21 gives fused experts, which are parameters, their rank by a pattern, and then
            # looks for it among modules only. The rank is right: else the shapes would not fit.
            ignored = "The following (rank|alpha)_pattern keys did not match any targeted module"
            warnings.filterwarnings("ignore", ignored, RuntimeWarning)
            adapted = PeftModel.from_pretrained(model, str(config.parent))
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        rule = f"the adapter cannot be loaded: {first_line(error)}"
        raise setting_error("model", folder, rule) from None
    read_ends(config.parent, adapted.get_base_model())
    return adapted
