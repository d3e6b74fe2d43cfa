"""Frozen weights in 4 bits below adapters (Dettmers et al. 2023, "QLoRA"), by bitsandbytes.

Each weight is read from the model's files and quantized at once, on the device of the model. No
process ever has the model in the precision of its files, and the same values are read on every
layout.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..checkpoint.ranges import of_model_folder
from ..private.accelerate import is_connected
from ..private.transformers import mark_initialized
from .meta_model import StoredWeights, bare_name
from .problems import first_line, setting_error

KEY = "adapter.quantize"


def put_4_bit_layers(model: Any, quantize: str, stored: StoredWeights | None) -> None:
    """Replace the linear layers of a model's body by layers of 4 bits, still without values.

    Args:
        model: before it gets adapters; changed in place. Its head stays as it is.
        quantize: nf4, as bitsandbytes calls it. Its scales are quantized as well (double
            quantization).
        stored: files with the values; layers that are not in them, which are trained, stay.

    Raises:
        ConfigError: bitsandbytes is not installed, or the model has no such layer.
    """
    try:
        from bitsandbytes.nn import Linear4bit, Params4bit
    except ImportError as error:
        rule = f"needs bitsandbytes ({first_line(error)}): pip install 'bitsandbytes>=0.50'"
        raise setting_error(KEY, quantize, rule) from None

    layers = _layers_to_quantize(model, stored)
    if not layers:
        rule = f"{type(model).__name__} has no linear layers; leave it out"
        raise setting_error(KEY, quantize, rule)

    for name, layer in layers.items():
        with torch.device("meta"):
            quantized = Linear4bit(
                layer.in_features, layer.out_features, bias=False, quant_type=quantize
            )
        quantized.weight = Params4bit(layer.weight.data, quant_type=quantize, module=quantized)
        quantized.bias = layer.bias
        # On some CPUs it would otherwise repack its weight in evaluation, compute other numbers,
        # and not be trainable any more afterwards.
        quantized.support_avx512bf16_for_cpu = False
        quantized.compute_type_is_set = True
        quantized.register_forward_pre_hook(_set_compute_dtype)
        model.set_submodule(name, quantized)
    model.is_loaded_in_4bit = True  # peft asks for it


def _layers_to_quantize(model: Any, stored: StoredWeights | None) -> dict[str, nn.Linear]:
    body = set(model.base_model.modules())
    head = model.get_output_embeddings()
    in_files = None if stored is None else set(stored.names.values())

    layers = {}
    for name, layer in model.named_modules():
        is_in_files = in_files is None or f"{name}.weight" in in_files
        if type(layer) is nn.Linear and layer in body and layer is not head and is_in_files:
            layers[name] = layer
    return layers


def quantize_weights(model: nn.Module, stored: StoredWeights | None) -> None:
    """Quantize the weights of layers of 4 bits; weights without values are read from the files.

    Args:
        model: with ``put_4_bit_layers``, and adapters; changed in place.

    Raises:
        ConfigError: there is a weight without a value, and there are no files.
    """
    from bitsandbytes.nn import Linear4bit, Params4bit

    device = training_device()
    store = None if stored is None else of_model_folder(stored.folder, stored.names)[0]
    for name, layer in model.named_modules():
        if not isinstance(layer, Linear4bit):
            continue

        weight: Any = layer.weight
        if weight.is_meta:
            if store is None:
                rule = "there are no files with weights to quantize; leave it out"
                raise setting_error(KEY, weight.quant_type, rule)
            values = torch.empty_like(weight.data, device=device)
            store.read("parameter", bare_name(f"{name}.weight"), 0, values.view(-1))
            weight = Params4bit(values, quant_type=weight.quant_type, module=layer)
        layer.weight = weight.to(device)
        mark_initialized(layer.weight)


def training_device() -> torch.device:
    """Return where a model will be trained; the CPU where nothing is launched, as in a check."""
    from accelerate import PartialState

    return PartialState().device if is_connected() else torch.device("cpu")


def _set_compute_dtype(layer: Any, inputs: tuple[torch.Tensor]) -> None:
    """Make a layer of 4 bits compute in the dtype of autocast, or else of its input.

    By itself it uses neither.
    """
    device = inputs[0].device.type
    autocast = torch.is_autocast_enabled(device)
    layer.compute_dtype = torch.get_autocast_dtype(device) if autocast else inputs[0].dtype
