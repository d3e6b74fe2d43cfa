"""Frozen weights in 4 bits below adapters (Dettmers et al. 2023, "QLoRA"), by bitsandbytes.

``from_pretrained`` quantizes each weight as soon as the weight is read, on the device of the
training. So no process ever has the model in the precision of the files, and the values are the
same on every layout.
"""

from __future__ import annotations

from typing import Any

import torch

from ..private.accelerate import is_connected


def placement_in_4_bits(quantize: str) -> dict[str, Any]:
    """Return the arguments of ``from_pretrained`` that load a model in 4 bits.

    Scales are quantized as well (double quantization).
    """
    from transformers import BitsAndBytesConfig

    how = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type=quantize, bnb_4bit_use_double_quant=True
    )
    return {"quantization_config": how, "device_map": {"": training_device()}}


def follow_autocast(model: Any) -> None:
    """Make layers in 4 bits compute in the dtype of autocast, or else of the input, in place."""
    from bitsandbytes.nn import Linear4bit

    for layer in model.modules():
        if isinstance(layer, Linear4bit):
            # On some CPUs the layer would otherwise repack its weight in evaluation, compute other
            # numbers, and not be trainable any more afterwards.
            layer.support_avx512bf16_for_cpu = False
            layer.compute_type_is_set = True
            layer.register_forward_pre_hook(_set_compute_dtype)


def training_device() -> torch.device:
    """Return the device that a model will be trained on: the CPU if nothing is launched."""
    from accelerate import PartialState

    return PartialState().device if is_connected() else torch.device("cpu")


def dtype_of_products(inputs: torch.Tensor) -> torch.dtype:
    """Return the dtype in which a linear layer computes: that of autocast, or else of its input."""
    device = inputs.device.type
    autocast = torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if autocast else inputs.dtype


def _set_compute_dtype(layer: Any, inputs: tuple[torch.Tensor]) -> None:
    layer.compute_dtype = dtype_of_products(*inputs)
