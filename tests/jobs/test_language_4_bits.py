"""Adapters on a model in 4 bits have the numbers of plain transformers, peft and bitsandbytes.

| promised | strategies and worlds | tests |
|---|---|---|
| Training has the losses of a plain loop, also after a resume | one process, all on 2 (nightly) | test_a_model_in_4_bits_learns_the_same_under_every_strategy_and_after_a_resume |
| It leaves an adapter that other packages load | DDP on 2 (nightly) | test_the_adapter_of_a_model_in_4_bits_is_what_transformers_and_peft_load |
| It is divided, and computes in the precision of the run | DDP, FSDP2 on 2 (nightly) | test_a_model_in_4_bits_is_divided_and_computes_in_the_precision_of_the_run |
"""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from launchers import STRATEGIES, Job, run
from small_examples import words
from tiny_language import language_settings
from whole_model import build_whole

from trainer.data.order import epoch_order
from trainer.language import Adapter, CausalLM
from trainer.language.packing import IGNORED

STEPS, BATCH = 10, 8
RUN = {
    "micro_batch_size": 2,
    "global_batch_size": BATCH,
    "max_steps": STEPS,
    "log_every": 1,
    "save_every": 5,
}
OPTIMIZER = {"lr": 3e-3, "eps": 1e-4, "weight_decay": 0.0}
ADAPTER = {"r": 4, "quantize": "nf4"}


def settings(folder: Path) -> dict[str, Any]:
    return {**language_settings(folder), "evaluation": 0.1}


def tune(strategy: str, folder: Path, output_dir: Path, *more: str) -> Job:
    file = folder / "qlora.yaml"
    task = {
        "task": "trainer.language:CausalLM",
        "task_settings": {**settings(folder), "adapter": ADAPTER},
    }
    file.write_text(
        yaml.safe_dump({**task, **RUN, **OPTIMIZER, "schedule": "constant", "max_grad_norm": 0})
    )
    return run(
        [*words(strategy, "examples/train.py"), "--config", str(file), *more], output_dir
    ).ok()


@cache
def tuned(strategy: str, folder: Path) -> Job:
    return tune(strategy, folder, folder / strategy)


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
        folder / "llama", quantization_config=how, device_map={"": "cpu"}
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
@pytest.mark.parametrize("strategy", ["single", *STRATEGIES])
def test_a_model_in_4_bits_learns_the_same_under_every_strategy_and_after_a_resume(
    strategy: str, folder: Path, tmp_path: Path
) -> None:
    first, done = tuned("ddp", folder), tuned(strategy, folder)
    assert done.plan["world_size"] == (1 if strategy == "single" else 2)
    plain = plain_losses(folder)
    assert done.losses[0] == pytest.approx(plain[0], rel=1e-6)
    assert done.losses == pytest.approx(plain, rel=1e-5) and plain[-1] < plain[0] - 0.05
    assert done.evaluation == pytest.approx(first.evaluation, rel=1e-6)
    run_folder = shutil.copytree(first.output_dir, tmp_path / "run")
    shutil.rmtree(max((run_folder / "checkpoints").glob("step-*")))
    resumed = tune(strategy, folder, run_folder, "--resume", "auto")
    assert "step-00000005" in resumed.out and resumed.losses == pytest.approx(
        first.losses, rel=1e-6
    )


@pytest.mark.slow
def test_a_model_in_4_bits_is_divided_and_computes_in_the_precision_of_the_run(
    folder: Path, tmp_path: Path
) -> None:
    whole, shared = (
        tuned(strategy, folder).plan["state_bytes_per_rank"] for strategy in ("ddp", "fsdp")
    )
    assert shared < 0.51 * whole
    bf16 = tune("fsdp", folder, tmp_path / "bf16", "--mixed_precision", "bf16")
    assert (
        bf16.losses == pytest.approx(plain_losses(folder), rel=1e-3)
        and bf16.losses != tuned("fsdp", folder).losses
    )
