"""Adapters are where the settings want them, and are loaded with their model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from one_process import fit
from tiny_language import CONFIGS, save_model
from whole_model import build_whole

from trainer.language import Adapter, CausalLM


@pytest.mark.parametrize(
    ("targets", "count"),
    [("all-linear", 14), (["q_proj", "v_proj"], 4), (["layers.1.mlp.up_proj"], 1)],
)
def test_only_adapters_are_trainable_in_the_requested_layers(
    targets: Any, count: int, task: Callable[..., CausalLM]
) -> None:
    model = task(adapter=Adapter(r=4, targets=targets)).build_model()
    learning = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert all("lora_" in name for name in learning) and len(learning) == 2 * count


def test_what_peft_refuses_is_one_line(refused: Callable[..., None], tmp_path: Path) -> None:
    refused(r"adapter: \['q_prj'\]: Target modules .*not found", adapter={"targets": ["q_prj"]})
    experts = str(save_model(tmp_path / "mixtral", "mixtral"))
    rule = r"adapter: .*does not work with .*dropout != 0"
    refused(rule, model=experts, adapter={"r": 2, "dropout": 0.05})


def test_an_adapter_on_embeddings_begins_as_nothing(task: Callable[..., CausalLM]) -> None:
    model = build_whole(task(adapter={"r": 2, "targets": ["q_proj", "embed_tokens"]}))
    [first] = [p for name, p in model.named_parameters() if "lora_embedding_A" in name]
    [second] = [p for name, p in model.named_parameters() if "lora_embedding_B" in name]
    assert not first.any() and second.all()


def test_rank_stabilized_adapters_and_chosen_layers(task: Callable[..., CausalLM]) -> None:
    adapter = {"r": 4, "alpha": 8, "rslora": True, "targets": ["q_proj"], "layers": [1]}
    model: Any = task(adapter=adapter).build_model()
    [(name, layer)] = [(n, m) for n, m in model.named_modules() if hasattr(m, "lora_A")]
    assert name.endswith("layers.1.self_attn.q_proj") and layer.scaling == {"default": 4.0}


def test_layers_without_listed_targets_are_refused(refused: Callable[..., None]) -> None:
    refused(r"adapter: 'all-linear': `layers_to_transform` cannot be used", adapter={"layers": [1]})


def test_dora_begins_and_computes_as_peft_does(
    llama: Path, task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM

    causal = task(adapter={"r": 2, "dora": True, "targets": ["q_proj", "up_proj"]})
    model: Any = build_whole(causal)
    base: Any = AutoModelForCausalLM.from_pretrained(llama)
    config = LoraConfig(r=2, use_dora=True, target_modules=["q_proj", "up_proj"])
    theirs = dict(get_peft_model(base, config).named_parameters())
    lengths = {n: p for n, p in model.named_parameters() if "lora_magnitude_vector" in n}
    assert len(lengths) == 4 and all(p.requires_grad for p in lengths.values())
    for name, length in lengths.items():
        torch.testing.assert_close(length, theirs[name])

    fit(tmp_path / "run", causal, max_steps=3)  # the export is compared with the trained model
    again: Any = build_whole(task(model=str(tmp_path / "run/model")))
    whole: Any = AutoModelForCausalLM.from_pretrained(llama)
    loaded: Any = PeftModel.from_pretrained(whole, tmp_path / "run/model")
    ids = torch.arange(12)[None]
    logits = loaded.eval()(ids).logits
    torch.testing.assert_close(again.eval()(input_ids=ids).logits, logits)
    assert not torch.allclose(base.eval()(ids).logits, logits, atol=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {"adapter": {"dora": True, "quantize": "nf4"}},
        {"model": None, "config": CONFIGS["llama"], "tokenizer": "x", "adapter": {"dora": True}},
    ],
)
def test_dora_needs_the_weights_of_files(
    settings: dict[str, Any], task: Callable[..., CausalLM]
) -> None:
    with pytest.raises(ValueError, match=r"adapter.dora: needs the weights of model, in 16 or 32"):
        task(**settings)
