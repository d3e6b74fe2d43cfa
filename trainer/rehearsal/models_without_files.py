"""Pretrained models without their files, in 4 bits too: bitsandbytes has kernels of shapes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from .cuda import replace_in


def build_alone() -> None:
    """Let an imported language task build models without files. For the rest of the process."""
    module: Any = sys.modules.get("trainer.language.base")
    if module:
        # The lengths of DoRA have their sizes already.
        replace_in(module, build_on_meta=_build, set_lengths=lambda model, stored: None)


def _build(
    name: str,
    attention: str | None,
    cache_dir: str,
    auto_class: str,
    ignored: Any,
    quantize: str | None,
    changes: Any,
    vocabulary: int,
    **options: Any,
) -> tuple[Any, set[str], Callable[[Any], list[Any]]]:
    """Build a model, as ``build_on_meta`` does from the files. The arguments are the same."""
    import transformers

    from ..language.configuration import changed_configuration

    config = changed_configuration(name, changes, **options)
    with torch.device("meta"):
        model = getattr(transformers, auto_class).from_config(
            config, attn_implementation=attention, dtype=config.dtype or torch.float32
        )
        if model.get_input_embeddings().num_embeddings < vocabulary:
            model.resize_token_embeddings(vocabulary, mean_resizing=False)
    for module in model.modules():
        for key, buffer in module._buffers.items():
            if buffer is not None and key not in module._non_persistent_buffers_set:
                module._buffers[key] = torch.zeros_like(buffer, device="cpu")
    if quantize:
        _quantize(model, quantize)
    return model.train(), set(), lambda model: []


def _quantize(model: Any, quantize: str) -> None:
    """Give a model of the meta device parameters on the GPU, of linear layers in 4 bits."""
    from bitsandbytes.nn import Linear4bit, Params4bit, modules
    from transformers.quantizers import AutoHfQuantizer

    from ..language.quantized import follow_autocast, placement_in_4_bits

    modules.fix_4bit_weight_quant_state_from_module = _find_state
    config = placement_in_4_bits(quantize)["quantization_config"]
    quantizer = AutoHfQuantizer.from_config(config, pre_quantized=False)
    quantizer._process_model_before_weight_loading(model, device_map=None)
    model.to_empty(device="cuda")
    for module in model.modules():
        if isinstance(module, Linear4bit):
            Params4bit._quantize(module.weight, "cuda")  # whose class is that of a fake tensor
    model.tie_weights()
    model.is_loaded_in_4bit = True
    follow_autocast(model)


def _find_state(layer: Any) -> None:
    """Give a weight that FSDP2 has gathered the scales of its layer, for bitsandbytes' own way."""
    layer.weight.quant_state = layer.quant_state
