"""Models built without values get exactly those of their files, converted or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tiny_language import CONFIGS, change_config, change_tensors, save_model
from torch.testing._internal.distributed.fake_pg import FakeStore
from whole_model import build_whole

from trainer import ConfigError
from trainer.language import CausalLM
from trainer.language.model_files import small_copy
from trainer.language.pretrained import from_configuration


def test_a_tensor_for_each_expert_is_converted_to_one_once_per_machine(
    task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    folder = save_model(tmp_path / "mixtral", "mixtral", shard_size="40KB")
    causal = task(model=str(folder))
    model = build_whole(causal)
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    torch.testing.assert_close(
        dict(model.named_parameters()), dict(theirs.named_parameters()), rtol=0, atol=0
    )
    [stored] = causal.pretrained(model)
    made = Path(stored.folder)
    assert made.parent == tmp_path / "cache"
    assert any("gate_up_proj" in name for name in stored.names)
    before = {path: path.stat().st_mtime_ns for path in made.iterdir()}
    build_whole(task(model=str(folder)))
    assert {path: path.stat().st_mtime_ns for path in made.iterdir()} == before, (
        "not converted again"
    )


def test_whichever_rank_comes_first_converts_the_files(
    task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    """transformers saves on rank 0 alone, which may be on another machine, or late."""
    folder = save_model(tmp_path / "mixtral", "mixtral")
    dist.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    try:
        causal = task(model=str(folder))
        [stored] = causal.pretrained(causal.build_model())
    finally:
        dist.destroy_process_group()
    assert list(Path(stored.folder).glob("*.safetensors"))


def test_no_bit_of_the_files_is_lost_to_the_dtype_of_the_configuration(
    task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    folder = change_config(save_model(tmp_path / "wide"), dtype="bfloat16")
    from safetensors.torch import load_file

    stored = load_file(folder / "model.safetensors")
    model = dict(build_whole(task(model=str(folder))).named_parameters())
    assert all(
        torch.equal(model[name], tensor) and tensor.dtype == torch.float32
        for name, tensor in stored.items()
    )


def test_different_values_for_tied_weights_are_refused(
    task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    folder = change_config(save_model(tmp_path / "apart"), tie_word_embeddings=True)
    rule = "its files hold different values for .*lm_head.weight.*, which its config.json ties; "
    rule += "set tie_word_embeddings: false"
    with pytest.raises(ConfigError, match=rule):
        task(model=str(folder)).build_model()
    change_tensors(
        folder,
        lambda found: found.update({"lm_head.weight": found["model.embed_tokens.weight"].clone()}),
    )
    assert build_whole(task(model=str(folder)))


def test_a_small_copy_has_a_layer_of_each_kind_and_leaves_random_numbers_alone() -> None:
    config = {**CONFIGS["qwen2"], "num_hidden_layers": 6, "vocab_size": 5000}
    config["layer_types"] = ["full_attention"] * 3 + ["sliding_attention"] * 3
    model = from_configuration(config, "sdpa", {})
    before = torch.get_rng_state()
    small = small_copy(model)
    assert torch.equal(torch.get_rng_state(), before)
    assert small.config.layer_types == ["full_attention"] * 3 + ["sliding_attention"]
    assert small.get_input_embeddings().num_embeddings == 1024
    assert model.config.num_hidden_layers == 6
