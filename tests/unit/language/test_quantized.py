"""Which weights are stored in 4 bits, where, and what is refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from whole_model import build_whole

from trainer import ConfigError
from trainer.language import Adapter, CausalLM
from trainer.language.quantized import placement_in_4_bits

QUANTIZED = Adapter(r=4, quantize="nf4")


def test_linear_layers_of_the_body_are_stored_in_4_bits_and_nothing_else(
    task: Callable[..., CausalLM],
) -> None:
    from bitsandbytes.nn import Linear4bit

    model: Any = build_whole(task(adapter=Adapter(r=4, targets=["q_proj"], quantize="nf4")))
    layers = [
        name
        for name, layer in model.named_modules()
        if isinstance(layer, Linear4bit) and "lora" not in name
    ]
    assert len({name.removesuffix(".base_layer") for name in layers}) == 14 and not any(
        "lm_head" in n for n in layers
    )
    whole = build_whole(task())
    plain = {f"base_model.model.{name}": value for name, value in whole.named_parameters()}
    for name, value in model.named_parameters():
        if name in plain and value.is_floating_point():
            torch.testing.assert_close(value, plain[name], rtol=0, atol=0)
    # 4 bits a weight, 8 for each scale of 64 weights, and those by their own scales.
    packed = sum(value.nbytes for value in model.parameters() if not value.is_floating_point())
    assert (
        packed
        == sum(value.numel() for name, value in whole.named_parameters() if "_proj" in name) / 2
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_in_4_bits_compute_in_the_dtype_of_autocast_or_their_input(
    dtype: torch.dtype, task: Callable[..., CausalLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    import bitsandbytes

    model, seen, original = build_whole(task(adapter=QUANTIZED)), set(), bitsandbytes.matmul_4bit

    def matmul(inputs: torch.Tensor, *others: Any, **more: Any) -> Any:
        seen.add(inputs.dtype)
        return original(inputs, *others, **more)

    monkeypatch.setattr(bitsandbytes, "matmul_4bit", matmul)
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        model(input_ids=torch.arange(8)[None])
    assert seen == {dtype}


def test_weights_are_quantized_where_the_launch_puts_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = torch.device("cuda", 1)
    monkeypatch.setattr("accelerate.PartialState._shared_state", {"device": device})
    assert placement_in_4_bits("nf4")["device_map"] == {"": device}


def test_what_cannot_be_quantized_is_refused(
    task: Callable[..., CausalLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="config: has no files"):
        task(
            model=None,
            config={"model_type": "llama"},
            tokenizer=str(task().model),
            adapter=QUANTIZED,
        )
    monkeypatch.setattr(
        "transformers.quantizers.quantizer_bnb_4bit.is_bitsandbytes_available", lambda: False
    )
    with pytest.raises(ConfigError, match=r"cannot be loaded: .*bitsandbytes"):
        task(adapter=QUANTIZED).build_model()
