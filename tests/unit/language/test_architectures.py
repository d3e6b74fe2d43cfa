"""Models of many architectures have the values of their files; a new adapter adds nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import ARCHITECTURES, EXPERTS, FAMILIES, SEEING, save_architecture
from launchers import slow_but
from whole_model import build_whole

from trainer.language import CausalLM
from trainer.language.model_files import bare_name

# Layers that pass on what they have seen before to the next document of a row.
NOT_PACKED = ("gpt_oss", "opt", "jamba", "qwen3_next", "minimax", "mamba2", "bloom", "falcon")


# peft 0.21 fails on their routers, whose answer is no tensor, and refuses some layers of Mamba.
TARGETS = {"llama4_text": ["q_proj", "down_proj"], "phimoe": ["q_proj"], "mamba2": ["in_proj"]}


QUICK = (*[*EXPERTS][:3], *[*FAMILIES][:3], *[*SEEING][:1])


@pytest.mark.filterwarnings("ignore::RuntimeWarning:peft.*")  # of its own defaults for experts
@pytest.mark.parametrize("name", slow_but(QUICK, ARCHITECTURES))
def test_each_has_the_files_values_and_a_new_adapter_adds_nothing(
    name: str, task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    folder = save_architecture(tmp_path / name, name)
    theirs: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
    values = dict(theirs.named_parameters())
    packing = "none" if name in NOT_PACKED else "best_fit"
    targets = TARGETS.get(name, "all-linear")
    config = LoraConfig(
        r=4, target_modules=targets, task_type="CAUSAL_LM", fan_in_fan_out=name == "gpt2"
    )

    losses, expected = [], []
    for adapter in (None, {"r": 4, "targets": targets}):
        causal = task(
            model=str(folder), sequence_length=64, packing=packing, loss="plain", adapter=adapter
        )
        model = build_whole(causal).eval()
        data = causal.build_data()
        batch = data.collate([data.train[0], data.train[1]])
        frozen = {
            bare_name(key): tensor for key, tensor in model.named_parameters() if "lora_" not in key
        }
        assert frozen.keys() == values.keys()
        assert [key for key, tensor in frozen.items() if not torch.equal(tensor, values[key])] == []

        if adapter is not None:
            theirs = get_peft_model(theirs, config).eval()
        with torch.no_grad():
            losses.append(causal.training_step(model, batch).item())
            expected.append(causal.training_step(theirs, batch).item())
    assert losses == expected and losses[0] == losses[1]
