"""``trainer plan``: counts, configs and tasks; what fits; and a file that reads back."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from launchers import ROOT

from trainer.commands.cli import main
from trainer.commands.planner.activations import blocks_of, probe
from trainer.commands.planner.costs import OFFERED
from trainer.commands.planner.launch_file import accelerate_yaml
from trainer.commands.planner.subject import settle
from trainer.config.load import load_config
from trainer.launching.files.accelerate_file import read_accelerate_file
from trainer.reporting.gpus import gpu_of


def plan(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert main(["plan", *words, "--json"]) == code
    return dict(json.loads(capsys.readouterr().out))


def by_name(
    told: dict[str, Any], *, recompute: bool = False
) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (row["strategy"], row["offload"]): row
        for row in told["rows"]
        if row["recompute"] == recompute
    }


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig

    folder = tmp_path_factory.mktemp("llama")
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=172,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        architectures=["LlamaForCausalLM"],
    )
    config.save_pretrained(folder)
    return folder


def test_the_papers_example_is_what_a_count_gives(capsys: pytest.CaptureFixture[str]) -> None:
    told = plan(capsys, "7.5B", "--gpus", "64", "--gpu", "A100-80")
    rows = by_name(told)
    paper = {
        name: round(rows[name, "none"]["paper"] / 1e9, 1)
        for name in ("ddp", "zero1", "zero2", "zero3")
    }
    assert paper == {"ddp": 120.0, "zero1": 31.4, "zero2": 16.6, "zero3": 1.9}
    assert not rows["ddp", "none"]["fits"] and rows["zero1", "none"]["fits"]
    assert (
        told["recommended"].startswith("recommended: zero1")
        and "ddp: faster, but too large" in told["recommended"]
    )


def test_what_does_not_fit_is_told_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    told = plan(capsys, "70B", "--gpus", "2", "--gpu", "4GiB", code=1)
    assert told["recommended"].startswith("nothing fits on 4GiB of memory")
    assert main(["plan", "70B", "--gpu", "4", "--write", str(tmp_path / "a.yaml")]) == 2
    assert "nothing to write" in capsys.readouterr().err and not (tmp_path / "a.yaml").exists()


@pytest.mark.parametrize(("strategy", "offload"), OFFERED)
def test_what_is_written_reads_back_strictly(strategy: str, offload: str, tmp_path: Path) -> None:
    file = tmp_path / "accel.yaml"
    file.write_text(
        accelerate_yaml(
            strategy, world_size=16, num_machines=2, mixed_precision="bf16", offload=offload
        )
    )
    request = read_accelerate_file(str(file))
    assert request.world_size is not None and request.mixed_precision is not None
    found = (
        request.strategy,
        request.world_size.value,
        request.num_machines,
        request.mixed_precision.value,
    )
    assert found == (strategy, 16, 2, "bf16")
    zero = request.deepspeed.get("zero_optimization", {})
    on_host = [
        key
        for key in ("offload_optimizer", "offload_param")
        if (zero.get(key) or {}).get("device") == "cpu"
    ]
    wanted = {"none": 0, "optimizer": 1, "all": 2}[offload] if strategy.startswith("zero") else 0
    assert len(on_host) == wanted and bool(request.fsdp.get("cpu_offload")) == (
        strategy == "fsdp" and offload == "all"
    )


def test_a_config_is_measured_without_memory(
    llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (str(llama), "--gpus", "2", "--gpu", "T4", "--micro_batch", "8", "--sequence", "128")
    told = plan(capsys, *words)
    assert told["subject"].endswith("(LlamaForCausalLM): 263,744 parameters, 263,744 of them trainable")
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


def test_a_task_is_probed_for_real(capsys: pytest.CaptureFixture[str]) -> None:
    told = plan(
        capsys, str(ROOT / "examples/configs/digits_cnn.yaml"), "--gpus", "2", "--precision", "no"
    )
    assert told["subject"].startswith("digits_cnn:DigitsCNN: 30,890")
    row = by_name(told)["ddp", "none"]
    # 32 images of 8 x 8 after each of three layers of a convolution are 32 or 64 channels wide;
    # four bytes each.
    assert 32 * 32 * 64 * 4 * 4 < row["activations"] < 32 * 32 * 64 * 4 * 20


@pytest.fixture
def config(tmp_path: Path) -> str:
    """The digits, 48 a step in bf16 by SGD."""
    text = (ROOT / "examples/configs/digits_cnn.yaml").read_text()
    text = text.replace(
        "micro_batch_size: 32\nglobal_batch_size: 64", "micro_batch_size: 4\nglobal_batch_size: 48"
    )
    (tmp_path / "train.yaml").write_text(
        text.replace("optimizer: adamw", "optimizer: sgd\nmixed_precision: fp16")
    )
    return str(tmp_path / "train.yaml")


def test_precision_optimizer_and_accumulation_are_the_configs(
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


def test_a_batch_that_cannot_be_cut_for_so_many_is_refused(
    config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    assert main(["plan", config, "--gpus", "64"]) == 2
    rule = "global_batch_size 48 must be a multiple of micro_batch_size 4 x accumulation 1 x gpus = 256"
    assert f"gpus: 64: {rule}; take fewer GPUs" in capsys.readouterr().err


def test_the_probe_counts_each_storage_once_and_no_parameters() -> None:
    linear = torch.nn.Linear(10, 20, bias=False)
    given = torch.ones(3, 10, requires_grad=True)
    counted = probe(linear, lambda: linear(given).exp().sum())
    # The input (3 x 10) and exp's result (3 x 20), which is the largest and counts again for its
    # gradient.
    assert counted.saved == counted.recomputed == 4 * (30 + 60 + 60)
    assert blocks_of(linear) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["7.5B", "--gpu", "H1000"],
            "gpu: 'H1000': not a GPU known here, nor memory such as 24GiB; did you mean 'H100'?",
        ),
        (["7.5B", "--lora", "8"], "needs the shapes of the layers"),
        (["no/such/model"], "what: 'no/such/model': neither a parameter count"),
    ],
)
def test_mistakes(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_gpu_is_named_or_measured() -> None:
    assert gpu_of("24GiB").gib == gpu_of("24").gib == 24 and gpu_of("h100").teraflops == 989
    assert gpu_of("h100-nvl").gib == 94
