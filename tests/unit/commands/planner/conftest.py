"""Models to plan for."""

from __future__ import annotations

from pathlib import Path

import pytest
from launchers import ROOT


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
