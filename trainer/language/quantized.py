"""The frozen weights below adapters in 4 bits (Dettmers et al. 2023, "QLoRA"), by the bitsandbytes
library.

Each weight is read from the model's files and quantized at once, where the model will be: no
process ever holds the model in the precision of its files, and what is read is the same on every
layout.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..checkpoint.ranges import of_model_folder
from .meta_model import Stored, bare_name
from .problems import first_line, setting_error

KEY = "adapter.quantize"


def hold_in_4_bits(model: Any, quantize: str, stored: Stored | None) -> None:
    """Put layers of 4 bits, yet without values, in the place of a model's linear layers: of its
    body, not of its head.

    Args:
        model: before it gets adapters.
        quantize: nf4, as bitsandbytes calls it. Its scales are quantized as well (double
            quantization).
        stored: files with the values; layers that they lack, which are to learn, stay as they are.

    Raises:
        ConfigError: bitsandbytes is not installed, or the model has no such layer.
    """
    try:
        from bitsandbytes.nn import Linear4bit, Params4bit
    except ImportError as error:
        rule = f"needs bitsandbytes ({first_line(error)}): pip install 'bitsandbytes>=0.50'"
        raise setting_error(KEY, quantize, rule) from None
    if stored is None and any(one.is_meta for one in model.parameters()):
        raise setting_error(
            KEY, quantize, "there are no files with weights to quantize; leave it out"
        )
    body, head = set(model.base_model.modules()), model.get_output_embeddings()
    layers = [
        (name, layer)
        for name, layer in model.named_modules()
        if type(layer) is nn.Linear and layer in body and layer is not head
        if stored is None or f"{name}.weight" in stored.names.values()
    ]
    if not layers:
        raise setting_error(
            KEY, quantize, f"{type(model).__name__} has no linear layers; leave it out"
        )
    for name, layer in layers:
        with torch.device("meta"):
            quantized = Linear4bit(
                layer.in_features, layer.out_features, bias=False, quant_type=quantize
            )
        quantized.weight = Params4bit(layer.weight.data, quant_type=quantize, module=quantized)
        quantized.bias = layer.bias
        # On some CPUs it would otherwise compute with other numbers in evaluation, and never learn
        # again afterwards.
        quantized.support_avx512bf16_for_cpu = False
        quantized.compute_type_is_set = True
        quantized.register_forward_pre_hook(_compute_as_others_do)
        model.set_submodule(name, quantized)
    model.is_loaded_in_4bit = True  # by which peft knows the layers for what they are


def quantize_weights(model: nn.Module, stored: Stored | None) -> None:
    """Quantize the weights of layers of 4 bits, those without values as they stand in the files."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    device = _device()
    store = None if stored is None else of_model_folder(stored.folder, stored.names)[0]
    for name, layer in model.named_modules():
        if not isinstance(layer, Linear4bit):
            continue
        weight: Any = layer.weight
        if weight.is_meta:
            assert store is not None, "what is not in files has values"
            values = torch.empty_like(weight.data, device=device)
            store.read("parameter", bare_name(f"{name}.weight"), 0, values.view(-1))
            weight = Params4bit(values, quant_type=weight.quant_type, module=layer)
        layer.weight = weight.to(device)
        layer.weight._is_hf_initialized = True  # transformers draws no first values for it


def _device() -> torch.device:
    """Return where a model will be trained; the CPU where nothing is launched, as while files are
    checked.
    """
    from accelerate import PartialState

    return PartialState().device if PartialState._shared_state else torch.device("cpu")


def _compute_as_others_do(layer: Any, inputs: tuple[torch.Tensor]) -> None:
    """Have a layer of 4 bits compute in the dtype of autocast, or else of its input; by itself it
    knows neither.
    """
    kind = inputs[0].device.type
    autocast = torch.is_autocast_enabled(kind)
    layer.compute_dtype = torch.get_autocast_dtype(kind) if autocast else inputs[0].dtype
