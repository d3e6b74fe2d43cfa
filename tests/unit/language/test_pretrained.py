"""Models are loaded whole or not at all, and each mistake is one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_language import CONFIGS, VOCABULARY, change_tensors, save_model

from trainer import ConfigError
from trainer.commands.whole_model import build_whole
from trainer.language import CausalLM
from trainer.language.pretrained import build_on_meta, from_configuration


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A model in several files."""
    return save_model(tmp_path / "shards", shard_size="40KB")


def test_a_model_in_several_files_is_loaded_as_it_was_saved(
    shards: Path, task: Callable[..., CausalLM]
) -> None:
    assert len(list(shards.glob("*.safetensors"))) > 1
    model: Any = build_whole(task(model=str(shards)))
    from transformers import AutoModelForCausalLM

    theirs: Any = AutoModelForCausalLM.from_pretrained(shards)
    torch.testing.assert_close(
        dict(model.named_parameters()), dict(theirs.named_parameters()), rtol=0, atol=0
    )
    assert model.config.architectures == ["LlamaForCausalLM"]


def test_missing_shards_cut_files_and_missing_tensors_are_refused(
    shards: Path, task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    files = sorted(shards.glob("*.safetensors"))
    first = files[0].read_bytes()
    files[0].unlink()
    with pytest.raises(
        ConfigError,
        match=r"model: '.*shards': its files lack .*, which would begin as random numbers; copy",
    ):
        task(model=str(shards)).build_model()
    files[0].write_bytes(first[:-10])
    with pytest.raises(
        ConfigError, match=rf"model: '.*shards': {files[0].name} is cut off or damaged: "
    ):
        task(model=str(shards)).build_model()
    files[0].write_bytes(first)
    whole = save_model(tmp_path / "whole")
    from safetensors.torch import load_file, save_file

    tensors = load_file(whole / "model.safetensors")
    tensors.pop("model.norm.weight")
    save_file(tensors, whole / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ConfigError, match=r"its files lack model.norm.weight, which would begin as random numbers"
    ):
        task(model=str(whole)).build_model()


def test_folders_without_a_model_are_refused(
    task: Callable[..., CausalLM], tmp_path: Path, llama: Path
) -> None:
    named = {
        "empty": "holds neither config.json nor a GGUF file",
        "adapter": "holds an adapter; give the model that it belongs to, or merge the two",
        "quantized": "is quantized; give the model of full weights: adapter.quantize stores",
    }
    for name in named:
        (tmp_path / name).mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    config = json.loads((llama / "config.json").read_text())
    (tmp_path / "quantized" / "config.json").write_text(
        json.dumps({**config, "quantization_config": {}})
    )
    for name, rule in named.items():
        with pytest.raises(ConfigError, match=f"model: '.*{name}': {rule}"):
            task(model=str(tmp_path / name), tokenizer=str(llama)).build_model()
    with pytest.raises(
        ConfigError, match=r"model: '\./nowhere': no such folder; give a folder of safetensors"
    ):
        task(model="./nowhere", tokenizer=str(llama)).build_model()


def test_a_name_of_the_hub_without_a_network_is_one_line(
    task: Callable[..., CausalLM], llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    rule = "model: 'no-one/no-such': no such folder here, and it cannot be loaded from the Hub: "
    with pytest.raises(ConfigError, match=rule):
        task(model="no-one/no-such", tokenizer=str(llama)).build_model()
    with pytest.raises(
        ConfigError, match="model: 'no-one/no-such': no tokenizer could be loaded from it: "
    ):
        task(model="no-one/no-such").build_data()


def test_a_tokenizer_that_does_not_fit_the_embedding_is_refused(
    task: Callable[..., CausalLM], tmp_path: Path, llama: Path
) -> None:
    small = save_model(tmp_path / "small", vocab_size=300)
    rule = rf"tokenizer: '.*llama': has tokens up to {VOCABULARY - 1}, "
    rule += "and the model's embedding ends at 299"
    with pytest.raises(ConfigError, match=rule):
        task(model=str(small), tokenizer=str(llama)).build_model()


def test_a_model_from_scratch_takes_vocabulary_and_end_from_the_tokenizer(
    task: Callable[..., CausalLM], llama: Path
) -> None:
    for tokenizer in (llama, llama / "tokenizer.json"):
        model: Any = task(
            model=None, config=CONFIGS["llama"], tokenizer=str(tokenizer)
        ).build_model()
        assert (model.config.vocab_size, model.config.eos_token_id) == (VOCABULARY, 0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"model_type": "lama"},
            r"config.model_type: 'lama': no such model type; did you mean 'llama'\?",
        ),
        (
            {"model_type": "llama", "hiden_size": 8},
            r"config.hiden_size: 8: unknown key; .* did you mean 'hidden_size'\?",
        ),
        ({"model_type": "llama", "hidden_size": "x"}, r"config: 'llama': "),
    ],
)
def test_wrong_configurations_are_named(
    config: dict[str, Any], message: str, task: Callable[..., CausalLM], llama: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        task(model=None, config=config, tokenizer=str(llama)).build_model()


def test_attention_that_is_unknown_or_needs_a_gpu_is_named(
    task: Callable[..., CausalLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("flash_attention_2", "sdpaa"):
        with pytest.raises(
            ConfigError,
            match=f"attention: '{name}': runs on a GPU only; on the CPU one of sdpa, eager",
        ):
            task(attention=name).build_model()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match="attention: 'sdpaa': "):
        task(attention="sdpaa").build_model()


def test_a_row_longer_than_the_models_positions_is_refused(
    task: Callable[..., CausalLM], llama: Path
) -> None:
    causal = task(model=None, config=CONFIGS["gpt2"], tokenizer=str(llama), sequence_length=129)
    with pytest.raises(
        ConfigError, match="sequence_length: 129: the model has 128 positions; lower it"
    ):
        causal.build_model()


@pytest.mark.parametrize(
    ("every", "expected"), [(True, [True, True, True, True]), (2, [True, False, True, False])]
)
def test_recomputed_activations_of_every_nth_layer_change_nothing(
    every: Any, expected: list[bool], task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    deep = str(save_model(tmp_path / "deep", num_hidden_layers=4))
    losses, found = [], []
    for setting in (False, every):
        causal = task(model=deep, activation_checkpointing=setting)
        model: Any = build_whole(causal)
        model.train()
        data = causal.build_data()
        loss = causal.training_step(model, data.collate([data.train[0], data.train[1]]))
        loss.backward()
        losses.append(loss.item())
        found.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    assert [layer.gradient_checkpointing for layer in model.model.layers] == expected
    assert losses[0] == losses[1]
    torch.testing.assert_close(*found)


def test_a_gguf_file_is_read_as_full_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it is read with; the package gguf, which reads it, is no dependency."""
    import transformers

    from trainer.language.pretrained import load_pretrained

    told: dict[str, Any] = {}

    def read(name: str, **options: Any) -> None:
        told.update(options)
        raise ImportError("gguf is missing\nand more")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", read)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match=r"model: '.*': cannot be loaded: gguf is missing$"):
        load_pretrained(str(tmp_path), "sdpa")
    assert told["gguf_file"] == "m.gguf" and told["quantization_config"].dequantize is True


def unexpected(folder: Path, auto_class: str = "AutoModelForCausalLM") -> list[str]:
    """What transformers' own from_pretrained says that a model has no place for."""
    import transformers

    _, info = getattr(transformers, auto_class).from_pretrained(folder, output_loading_info=True)
    return sorted(info["unexpected_keys"])


def test_an_unexpected_tensor_is_refused_unless_it_is_in_ignore_tensors(
    task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    extra = "model.layers.0.self_attn.q_proj.bias"
    folder = change_tensors(
        save_model(tmp_path / "more"), lambda found: found.update({extra: torch.ones(32)})
    )
    assert unexpected(folder) == [extra]
    rule = rf"model: '.*more': its files hold {extra}, which LlamaForCausalLM does not know: "
    rule += ".* ignore_tensors"
    with pytest.raises(ConfigError, match=rule):
        task(model=str(folder)).build_model()
    for patterns in ("*.q_proj.bias", ["mtp.*", extra]):
        assert build_whole(task(model=str(folder), ignore_tensors=patterns))


def test_layers_beyond_those_of_the_configuration_are_refused(
    task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    folder = save_model(tmp_path / "deep", num_hidden_layers=3)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    with pytest.raises(
        ConfigError,
        match=r"its files hold model.layers.2.input_layernorm.weight, .* \(and 6 more\)",
    ):
        task(model=str(folder)).build_model()


def test_tensors_that_transformers_ignores_are_ignored(
    task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    from architectures import save_architecture

    former = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    folders = [change_tensors(save_model(tmp_path / "llama"), lambda found: found.update(former))]
    further = {
        "mtp.layers.0.mlp.experts.0.gate_proj.weight": torch.ones(32, 32),
        "mtp.fc.weight": torch.ones(32, 64),
    }
    for name in ("qwen3_next",):
        folder = save_architecture(tmp_path / name, name)
        folders.append(change_tensors(folder, lambda found: found.update(further)))
    for folder in folders:
        assert unexpected(folder) == []
        assert build_whole(task(model=str(folder), packing="none"))


def test_heads_of_other_tasks_are_not_those_of_an_encoder_but_its_layers_are(
    tmp_path: Path, texts: Path
) -> None:
    from tiny_language import save_masked

    from trainer.language import MaskedLM

    head = {
        "cls.seq_relationship.weight": torch.ones(2, 32),
        "bert.pooler.dense.weight": torch.ones(32, 32),
    }
    layer = "bert.encoder.layer.0.attention.gate.weight"
    folder = change_tensors(save_masked(tmp_path / "bert"), lambda found: found.update(head))
    assert unexpected(folder, "AutoModelForMaskedLM") == sorted(head)
    settings = {"model": str(folder), "data": str(texts), "cache_dir": str(tmp_path / "cache")}
    assert build_whole(MaskedLM(**settings))
    change_tensors(folder, lambda found: found.update({layer: torch.ones(1)}))
    with pytest.raises(
        ConfigError, match=f"its files hold {layer}, which BertForMaskedLM does not know"
    ):
        MaskedLM(**settings).build_model()


@pytest.mark.parametrize("attention", ["flash_attention_2", "kernels-community/flash-attn2"])
def test_a_missing_package_of_an_attention_is_an_error_of_attention(
    attention: str, llama: Path
) -> None:
    with pytest.raises(ConfigError, match=f"attention: '{attention}': .*install"):
        from_configuration(CONFIGS["llama"], attention, {"vocab_size": 320})
    with pytest.raises(ConfigError, match=f"attention: '{attention}': .*install"):
        build_on_meta(str(llama), attention, str(llama))
