"""``trainer plan``: formulas of memory, and the launch file that fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from launchers import ROOT

from trainer.commands.cli import main
from trainer.commands.plan import activation_bytes
from trainer.strategies.memory import LAYOUTS, states_of

BILLION = 10**9
# Rajbhandari et al. 2020, figure 1: GB of 7.5 billion parameters on 64 GPUs. FSDP2 divides what
# ZeRO-3 divides, and its 4 + 4 + 8 bytes have the same sum as the paper's 2 + 2 + 12.
PAPER = {"ddp": 120.0, "zero1": 31.4, "zero2": 16.6, "zero3": 1.9, "fsdp": 1.9}


def plan(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert main(["plan", *words, "--json"]) == code
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("name", PAPER)
def test_states_are_those_of_the_zero_paper(name: str) -> None:
    states = states_of(LAYOUTS[name], 7_500_000_000, 64)
    assert states.total / BILLION == pytest.approx(PAPER[name], abs=0.05)


@pytest.mark.parametrize(
    ("name", "settings", "parts"),
    [
        ("zero1", {"precision": "no"}, (4000, 4000, 6000)),
        ("ddp", {"accumulates": True}, (4000, 8000, 8000)),
        ("fsdp", {"accumulates": True}, (2000, 4000, 4000)),
        ("zero1", {"accumulates": True}, (2000, 4000, 6000)),
        ("zero2", {"accumulates": True}, (2000, 2000, 6000)),
        ("fsdp", {"slots": 1, "frozen_bytes": 100}, (2050, 2000, 2000)),
    ],
)
def test_states_of_a_thousand_parameters_on_two_ranks(
    name: str, settings: dict[str, Any], parts: tuple[int, ...]
) -> None:
    states = states_of(LAYOUTS[name], 1000, 2, **settings)
    assert (states.parameters, states.gradients, states.optimizer) == parts


def test_activations_are_what_autograd_saves_of_a_llama(tmp_path: Path) -> None:
    """Within a fifth; what the logits take at the peak is no part of what is saved."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=100,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        use_cache=False,
    )
    for dtype, width in ((torch.bfloat16, 2), (torch.float32, 4)):
        model = LlamaForCausalLM(config).to(dtype)
        owned = {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())}
        saved: dict[int, torch.Tensor] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in owned:  # noqa: B023
                saved[storage.data_ptr()] = tensor  # noqa: B023
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(input_ids=torch.zeros(2, 128, dtype=torch.long))
        measured = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
        assert activation_bytes(config, 2 * 128, width) == pytest.approx(measured, rel=0.2)


def test_the_fastest_launch_file_that_fits_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("7.5B", "--gpus", "64", "--gpu", "A100-80")
    told = plan(capsys, *words)
    assert told["fitting"][0] == "accel_configs/zero1.yaml"
    assert all((ROOT / row["launch file"]).is_file() for row in told["rows"])
    assert main(["plan", *words]) == 0
    assert "A100-80: take accel_configs/zero1.yaml" in capsys.readouterr().out
    assert plan(capsys, "70B", "--gpus", "2", "--gpu", "4GiB", code=1)["fitting"] == []
    assert main(["plan", "70B", "--gpu", "4GiB"]) == 1
    assert "4GiB: nothing fits" in capsys.readouterr().out


def test_a_folder_of_a_model_needs_no_memory_and_counts_activations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import LlamaConfig

    LlamaConfig(architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path)  # 7 billion
    told = plan(capsys, str(tmp_path), "--gpus", "8", "--gpu", "24GiB", "--sequence", "128")
    assert told["rows"][0]["parameters"] == 4 * 6_738_415_616
    assert told["fitting"][0] == "accel_configs/fsdp.yaml"
    assert 0 < told["rows"][0]["activations"] < 2**30


def test_wrong_words_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "no/such/model"]) == 2
    assert "'no/such/model': no parameter count such as 7B" in capsys.readouterr().err
    assert main(["plan", "7B", "--gpu", "H1000"]) == 2
    assert "'H1000'" in capsys.readouterr().err


def test_the_table_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "7B", "--gpus", "8"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
