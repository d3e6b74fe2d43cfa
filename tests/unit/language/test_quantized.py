"""Which weights are stored in 4 bits, where, and what is refused in one line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_language import save_model

from trainer import ConfigError
from trainer.commands.whole_model import build_whole
from trainer.language import Adapter, CausalLM

QUANTIZED = Adapter(r=4, quantize="nf4")


def test_linear_layers_of_the_body_are_stored_in_4_bits_and_nothing_else(
    task: Callable[..., CausalLM],
) -> None:
    from bitsandbytes.nn import Linear4bit

    model: Any = build_whole(task(adapter=Adapter(r=4, targets="q_proj", quantize="nf4")))
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
    task: Callable[..., CausalLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bitsandbytes.nn import Params4bit

    seen = set()

    def to(weight: Any, device: Any, *others: Any, **more: Any) -> Any:
        seen.add(torch.device(device))
        return weight

    # A GPU as the launch would name it; the tensors themselves are left where they can be.
    monkeypatch.setattr("accelerate.PartialState._shared_state", {"device": torch.device("meta")})
    monkeypatch.setattr(Params4bit, "to", to)
    task(adapter=QUANTIZED).build_model()
    assert seen == {torch.device("meta")}


def test_what_cannot_be_quantized_is_refused(
    task: Callable[..., CausalLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpt2 = save_model(tmp_path / "gpt2", "gpt2")
    with pytest.raises(
        ConfigError, match=r"adapter\.quantize: 'nf4': there are no files with linear layers"
    ):
        task(model=str(gpt2), adapter=QUANTIZED).build_model()
    scratch = {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": 16,
        "num_attention_heads": 2,
    }
    with pytest.raises(ConfigError, match=r"adapter\.quantize: 'nf4': there are no files"):
        task(
            model=None, config=scratch, tokenizer=str(task().model), adapter=QUANTIZED
        ).build_model()
    monkeypatch.setitem(sys.modules, "bitsandbytes.nn", None)
    with pytest.raises(
        ConfigError, match=r"adapter\.quantize: 'nf4': needs bitsandbytes .*: pip install"
    ):
        task(adapter=QUANTIZED).build_model()
