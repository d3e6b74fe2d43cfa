"""Adapters on a model in 4 bits have the numbers of plain transformers, peft and bitsandbytes.

| promised | strategies and worlds | tests |
|---|---|---|
| Training has the losses of a plain loop | one process (nightly) | test_a_model_in_4_bits_learns_as_in_a_plain_loop |
| It leaves an adapter that other packages load | DDP on 2 (nightly) | test_the_adapter_of_a_model_in_4_bits_is_what_transformers_and_peft_load |
| It is divided, and computes in the precision of the run | DDP, FSDP2 on 2 (nightly) | test_a_model_in_4_bits_is_divided_and_computes_in_the_precision_of_the_run |

That all strategies have the curve of one process, also after a resume, is in test_tuned_cases.py.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from launchers import Job, trained
from tuning import given, task_settings
from whole_model import build_whole

from trainer.data.order import epoch_order
from trainer.language import Adapter, CausalLM
from trainer.language.packing import IGNORED

STEPS, BATCH = 10, 8
OPTIMIZER = {"lr": 3e-3, "eps": 1e-4, "weight_decay": 0.0}
ADAPTER = {"r": 4, "quantize": "nf4"}
RUN = {
    **{"task": "trainer.language:CausalLM", "max_steps": STEPS, "log_every": 1, "keep_last": 0},
    **{"micro_batch_size": 2, "global_batch_size": BATCH, **OPTIMIZER},
    **{"schedule": "constant", "max_grad_norm": 0},
}


def settings(folder: Path) -> dict[str, Any]:
    given = {"model": "llama", "data": "texts.jsonl", "sequence_length": 96, "evaluation": 0.1}
    return task_settings(folder, **given)


@cache
def tuned(strategy: str, folder: Path, precision: str = "no") -> Job:
    config = {**RUN, "mixed_precision": precision}
    config["task_settings"] = {**settings(folder), "adapter": ADAPTER}
    return trained(strategy, folder / f"{strategy}-{precision}", {"run": config})["run"]


def in_4_bits(folder: Path) -> Any:
    """The model as transformers itself loads it in 4 bits."""
    from bitsandbytes.nn import Linear4bit
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    how = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    model = AutoModelForCausalLM.from_pretrained(
        given("llama", folder), quantization_config=how, device_map={"": "cpu"}
    )
    for layer in model.modules():
        if isinstance(
            layer, Linear4bit
        ):  # in evaluation a CPU with AVX512-BF16 would lay these out anew, and round
            layer.support_avx512bf16_for_cpu = False
    return model


def mean_loss(model: Any, rows: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    inputs = [{name: row[name][None] for name in ("input_ids", "position_ids")} for row in rows]
    logits = torch.cat([model(**one, use_cache=False).logits[0] for one in inputs])
    return F.cross_entropy(logits, torch.cat([row["labels"] for row in rows]), ignore_index=IGNORED)


@cache
def plain_losses(folder: Path) -> list[float]:
    """The same steps as a loop over transformers, peft and bitsandbytes alone, from the same first
    adapters.
    """
    from peft import LoraConfig, get_peft_model

    ours = CausalLM(**settings(folder), adapter=Adapter(**ADAPTER))
    rows = ours.build_data().train
    model = get_peft_model(
        in_4_bits(folder), LoraConfig(r=4, lora_alpha=32, target_modules="all-linear")
    )
    first = {
        name: value for name, value in build_whole(ours).named_parameters() if value.requires_grad
    }
    learning = {name: value for name, value in model.named_parameters() if value.requires_grad}
    assert len(learning) == len(first) == 28
    for name, value in learning.items():
        value.data.copy_(first[name.replace("base_model.model", "base_model.model", 1)])
    optimizer = torch.optim.AdamW(learning.values(), **OPTIMIZER)
    losses, order = [], epoch_order(len(rows), 0, 0)
    for start in range(0, STEPS * BATCH, BATCH):
        loss = mean_loss(model, [rows[int(at)] for at in order[start : start + BATCH]])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
def test_the_adapter_of_a_model_in_4_bits_is_what_transformers_and_peft_load(folder: Path) -> None:
    from peft import PeftModel

    done = tuned("ddp", folder)
    whole = sum(one.numel() for one in CausalLM(**settings(folder)).build_model().parameters())
    assert done.plan["parameters"] == whole + done.plan["trainable_parameters"]
    # What was exported, on a model that transformers itself quantizes: the loss of the evaluation.
    rows = CausalLM(**settings(folder)).build_data().evaluation
    with torch.no_grad():
        loss = mean_loss(
            PeftModel.from_pretrained(in_4_bits(folder), done.output_dir / "model").eval(), [*rows]
        )
    assert done.evaluation["eval/loss"] == pytest.approx(loss.item(), rel=1e-6)


@pytest.mark.slow
def test_a_model_in_4_bits_learns_as_in_a_plain_loop(folder: Path) -> None:
    done, plain = tuned("single", folder), plain_losses(folder)
    assert done.losses[0] == pytest.approx(plain[0], rel=1e-6)
    assert done.losses == pytest.approx(plain, rel=1e-5) and plain[-1] < plain[0] - 0.05


@pytest.mark.slow
def test_a_model_in_4_bits_is_divided_and_computes_in_the_precision_of_the_run(
    folder: Path,
) -> None:
    whole, shared = (
        tuned(strategy, folder).plan["state_bytes_per_rank"] for strategy in ("ddp", "fsdp")
    )
    assert shared < 0.51 * whole
    bf16 = tuned("fsdp", folder, "bf16").losses
    assert bf16 == pytest.approx(plain_losses(folder), rel=1e-3)
    assert bf16 != tuned("fsdp", folder).losses
