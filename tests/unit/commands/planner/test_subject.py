"""The model to plan for: a config, a task, and settings that were not typed."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from launchers import ROOT
from planned import by_name, plan

from trainer.commands.cli import main
from trainer.commands.planner.subject import settle
from trainer.config.load import load_config


def test_hugging_face_config_is_measured_without_memory(
    llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (str(llama), "--gpus", "2", "--gpu", "T4", "--micro_batch", "8", "--sequence", "128")
    told = plan(capsys, *words)
    assert told["subject"].endswith(
        "(LlamaForCausalLM): 263,744 parameters, 263,744 of them trainable"
    )
    plain, again = by_name(told)["ddp", "none"], by_name(told, recompute=True)["ddp", "none"]
    assert 0 < again["activations"] < plain["activations"] / 2
    twice = plan(capsys, *words[:-3], "16", *words[-2:])
    assert by_name(twice)["ddp", "none"]["activations"] == pytest.approx(
        2 * plain["activations"], rel=0.05
    )
    adapted = by_name(plan(capsys, *words, "--lora", "4"))["ddp", "none"]
    assert (
        adapted["optimizer"] < plain["optimizer"] / 5
        and adapted["parameters"] < plain["parameters"]
    )


def test_packed_rows_keep_a_mask_a_layer_where_no_flash_kernel_runs(
    llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import LlamaForCausalLM

    def activations(precision: str) -> int:
        words = (str(llama), "--gpus", "2", "--micro_batch", "2", "--sequence", "512")
        told = plan(capsys, *words, "--precision", precision)
        return int(by_name(told)["ddp", "none"]["activations"])

    without_mask, in_full = activations("bf16"), activations("no")
    monkeypatch.setattr(LlamaForCausalLM, "_supports_flash_attn", False)
    masks = 4 * 2 * 512 * 512 * 2  # of 4 layers, two rows, in 16 bits
    assert masks <= activations("bf16") - without_mask < 1.3 * masks
    assert activations("no") == in_full, "which has masks as well"


def test_task_is_probed_on_its_data(capsys: pytest.CaptureFixture[str]) -> None:
    told = plan(
        capsys, str(ROOT / "examples/configs/digits_cnn.yaml"), "--gpus", "2", "--precision", "no"
    )
    assert told["subject"].startswith("digits_cnn:DigitsCNN: 30,890")
    row = by_name(told)["ddp", "none"]
    # 32 images of 8 x 8 after each of three layers of a convolution are 32 or 64 channels wide;
    # four bytes each.
    assert 32 * 32 * 64 * 4 * 4 < row["activations"] < 32 * 32 * 64 * 4 * 20


def test_settle_takes_precision_optimizer_and_accumulation_of_the_config(
    config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    assert main(["plan", config, "--gpus", "6"]) == 0
    said = capsys.readouterr().out
    assert "6 GPUs, fp16, sgd, micro-batch 4;" in said and "is assumed" not in said
    args = argparse.Namespace(
        what=config, gpus=6, accumulation=None, optimizer=None, precision=None
    )
    settle(args, load_config([config]).config)
    assert (args.micro_batch, args.accumulation) == (4, 2)
    assert main(["plan", "1M"]) == 0
    assert (
        "precision bf16 is assumed; --precision no or fp16 says another" in capsys.readouterr().out
    )


def test_settle_refuses_a_batch_that_cannot_be_divided(
    config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    assert main(["plan", config, "--gpus", "64"]) == 2
    rule = "global_batch_size 48 must be a multiple of micro_batch_size 4 x accumulation 1 x gpus = 256"
    assert f"gpus: 64: {rule}; take fewer GPUs" in capsys.readouterr().err
