"""Frozen weights in 4 bits below adapters (Dettmers et al. 2023, "QLoRA"), by bitsandbytes.

Each weight is read from the model's files and quantized at once, on the device of the training. No
process ever has the model in the precision of its files, and the same values are read on every
layout.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from ..checkpoint.ranges import of_model_folder
from ..private.accelerate import is_connected
from ..private.transformers import mark_initialized
from .meta_model import StoredWeights, bare_name
from .problems import first_line, setting_error


def put_4_bit_layers(model: Any, quantize: str, stored: StoredWeights | None) -> None:
    """Replace the linear layers of a model's body by layers of 4 bits, still without values.

    Args:
        model: before it gets adapters; changed in place. Its head stays as it is, and so do layers
            that are not in the files, which are trained.
        quantize: nf4, as bitsandbytes calls it. Its scales are quantized as well (double
            quantization).
        stored: the files with the values.

    Raises:
        ConfigError: bitsandbytes is not installed, or there is no layer to quantize.
    """
    try:
        from bitsandbytes.nn import Linear4bit, Params4bit
    except ImportError as error:
        rule = f"needs bitsandbytes ({first_line(error)}): pip install 'bitsandbytes>=0.50'"
        raise setting_error("adapter.quantize", quantize, rule) from None

    layers = _layers_to_quantize(model, set() if stored is None else stored.names)
    if not layers:
        rule = "there are no files with linear layers to quantize; leave it out"
        raise setting_error("adapter.quantize", quantize, rule)

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


def quantize_weights(model: nn.Module, stored: StoredWeights) -> None:
    """Read the weights of the layers of 4 bits from the files, and quantize them.

    Args:
        model: with ``put_4_bit_layers``, and adapters, which stay without values; changed in place.
    """
    from bitsandbytes.nn import Linear4bit, Params4bit

    store, _ = of_model_folder(stored.folder)
    device = training_device()
    for name, layer in model.named_modules():
        if isinstance(layer, Linear4bit):
            values = torch.empty_like(layer.weight.data, device=device)
            store.read("parameter", bare_name(f"{name}.weight"), 0, values.view(-1))
            weight: Any = Params4bit(values, quant_type=layer.weight.quant_type, module=layer)
            layer.weight = weight.to(device)
            mark_initialized(layer.weight)


def _layers_to_quantize(model: Any, in_files: Collection[str]) -> dict[str, nn.Linear]:
    """Return the linear layers of a model's body that are in the files, by name."""
    body = set(model.base_model.modules())
    head = model.get_output_embeddings()
    layers = {}
    for name, layer in model.named_modules():
        if type(layer) is nn.Linear and layer in body and layer is not head:
            if f"{name}.weight" in in_files:
                layers[name] = layer
    return layers


def training_device() -> torch.device:
    """Return the device that a model will be trained on; the CPU if nothing is launched."""
    from accelerate import PartialState

    return PartialState().device if is_connected() else torch.device("cpu")


def _set_compute_dtype(layer: Any, inputs: tuple[torch.Tensor]) -> None:
    """Make a layer of 4 bits compute in the dtype of autocast, or else of its input.

    By itself it uses neither.
    """
    device = inputs[0].device.type
    autocast = torch.is_autocast_enabled(device)
    layer.compute_dtype = torch.get_autocast_dtype(device) if autocast else inputs[0].dtype
