"""Packed documents are trained on as if each were alone; other models are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_language import CONFIGS, save_texts
from whole_model import build_whole

from trainer import ConfigError
from trainer.language import CausalLM
from trainer.language.model_files import small_copy
from trainer.language.pretrained import from_configuration
from trainer.language.separation import check_separation

DEFAULTS = {"vocab_size": 64, "bos_token_id": None, "eos_token_id": None}


@pytest.mark.parametrize("attention", ["eager", "sdpa", "varlen"])
@pytest.mark.parametrize(
    "name",
    sorted({*CONFIGS} - {"mixtral"}),  # torch multiplies experts in no float64
)
def test_packed_documents_have_loss_and_gradients_of_separate_ones(
    name: str, attention: str, task: Callable[..., CausalLM], tmp_path: Path, llama: Path
) -> None:
    settings: dict[str, Any] = {
        "model": None,
        "config": CONFIGS[name],
        "tokenizer": str(llama),
        "attention": attention,
    }
    texts = str(save_texts(tmp_path / "few.jsonl", 8))
    packed = task(**settings, data=texts)
    alone = task(**{**settings, "attention": None}, data=texts, packing="none")
    torch.manual_seed(0)
    model = build_whole(packed).double()
    model.train()

    losses, found = [], []
    for causal in (packed, alone):
        data = causal.build_data()
        batch = data.collate([data.train[number] for number in range(len(data.train))])
        loss = causal.training_step(model, batch)
        loss.backward()
        losses.append((len(batch["input_ids"]), loss.item()))
        found.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
        model.zero_grad()

    [(rows, loss), (more, expected)] = losses
    assert rows < more and loss == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "added",
    [
        {"attention_mask": torch.ones(2, 11, dtype=torch.long)},
        {"position_ids": torch.arange(11).repeat(2, 1)},
    ],
)
def test_inputs_that_let_documents_see_each_other_are_refused(added: dict[str, Any]) -> None:
    model = small_copy(from_configuration(CONFIGS["llama"], "sdpa", DEFAULTS))

    def inputs(batch: dict[str, Any]) -> dict[str, Any]:
        return {"input_ids": batch["input_ids"], "position_ids": batch["position_ids"], **added}

    rule = "packing: 'best_fit': set packing: none for LlamaForCausalLM: documents of one row reach"
    with pytest.raises(ConfigError, match=rule):
        check_separation(model, inputs)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "bloom", "hidden_size": 32, "n_layer": 1, "n_head": 2},
        {"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 1, "state_size": 4},
        {**CONFIGS["llama"], "model_type": "lfm2", "layer_types": ["conv", "full_attention"]},
    ],
    ids=lambda config: config["model_type"],
)
def test_models_that_overlook_positions_are_refused(
    config: dict[str, Any], refused: Callable[..., None], llama: Path
) -> None:
    rule = f"{config['model_type'].capitalize()}ForCausalLM: documents of one row reach each other"
    refused(rule, model=None, config=config, tokenizer=str(llama), attention="eager")


def test_the_probe_leaves_model_and_randomness_as_they_were(task: Callable[..., CausalLM]) -> None:
    settings = {"config": {**CONFIGS["gpt2"], "attn_pdrop": 0.1, "embd_pdrop": 0.1}, "model": None}
    states, modes = [], []
    for packing in ("best_fit", "none"):
        torch.manual_seed(3)
        model = task(**settings, tokenizer=task().model, packing=packing).build_model()
        states.append(torch.rand(3))
        assert all(parameter.grad is None for parameter in model.parameters())
        modes.append(model.training)
    assert torch.equal(*states) and modes[0] == modes[1]
