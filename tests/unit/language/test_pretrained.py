"""Models are loaded whole or not at all, and each mistake is one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_language import (
    CONFIGS,
    VOCABULARY,
    change_config,
    change_tensors,
    save_model,
)
from whole_model import build_whole

from trainer import ConfigError
from trainer.language import CausalLM


def test_a_model_in_several_files_is_whole_and_none_of_them_may_be_missing_or_cut_off(
    task: Callable[..., CausalLM], refused: Callable[..., None], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    shards = save_model(tmp_path / "shards", shard_size="40KB")
    files = sorted(shards.glob("*.safetensors"))
    assert len(files) > 1
    model: Any = build_whole(task(model=str(shards)))
    theirs: Any = AutoModelForCausalLM.from_pretrained(shards)
    torch.testing.assert_close(
        dict(model.named_parameters()), dict(theirs.named_parameters()), rtol=0, atol=0
    )
    assert model.config.architectures == ["LlamaForCausalLM"]

    files[0].write_bytes(files[0].read_bytes()[:-10])
    refused(r"model: '.*shards': cannot be loaded: .*header", model=str(shards))
    files[0].unlink()
    refused(r"model: '.*shards': cannot be loaded: .*-00001-of", model=str(shards))

    less = change_tensors(save_model(tmp_path / "less"), lambda found: found.pop("lm_head.weight"))
    rule = r"model: '.*less': cannot be loaded: its files lack lm_head.weight, which would begin as"
    refused(rule, model=str(less))


SCRATCH: dict[str, Any] = {"model": None, "config": CONFIGS["llama"]}
LARGE = {"model_type": "llama", "vocab_size": 300}
TYPO = {"model_type": "llama", "hiden_size": 8}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "./nowhere"}, r"model: '\./nowhere': cannot be loaded: "),
        ({"attention": "sdpaa"}, "model: '.*': cannot be loaded: .*attn_implementation"),
        ({"attention": "flash_attention_2"}, "model: '.*': .*FlashAttention2.*installed"),
        (
            {**SCRATCH, "config": {"model_type": "lama"}},
            "config: 'lama': is refused: Unrecognized model identifier",
        ),
        ({**SCRATCH, "config": TYPO}, r"config.hiden_size: 8: unknown key; .*'hidden_size'\?"),
        ({**SCRATCH, "config": LARGE}, "tokenizer: '.*': has tokens up to 319, .* has 300 rows"),
        ({**SCRATCH, "tokenizer": __file__}, r"tokenizer: '.*.py': holds no tokenizer: "),
    ],
)
def test_mistakes_are_one_line_each(
    settings: dict[str, Any],
    message: str,
    refused: Callable[..., None],
    llama: Path,
) -> None:
    refused(message, **{"tokenizer": str(llama), **settings})


def test_a_kernel_that_may_not_be_deterministic_is_refused_if_determinism_is_asked_for(
    refused: Callable[..., None],
) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        refused("attention: 'flash_attention_3': is not known", attention="flash_attention_3")
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_model_from_scratch_takes_vocabulary_and_end_from_the_tokenizer(
    task: Callable[..., CausalLM], llama: Path
) -> None:
    model: Any = task(**SCRATCH, tokenizer=str(llama)).build_model()
    assert (model.config.vocab_size, model.config.eos_token_id) == (VOCABULARY, 0)


def unexpected(folder: Path, auto_class: str = "AutoModelForCausalLM") -> list[str]:
    """What transformers' own from_pretrained says that a model has no place for."""
    import transformers

    _, info = getattr(transformers, auto_class).from_pretrained(folder, output_loading_info=True)
    return sorted(info["unexpected_keys"])


def test_an_unexpected_tensor_is_refused_unless_it_is_in_ignore_tensors(
    task: Callable[..., CausalLM], refused: Callable[..., None], tmp_path: Path
) -> None:
    extra = "model.layers.0.self_attn.q_proj.bias"
    folder = change_tensors(
        save_model(tmp_path / "more"), lambda found: found.update({extra: torch.ones(32)})
    )
    assert unexpected(folder) == [extra]
    rule = rf"model: '.*more': .*: its files hold {extra}, which LlamaForCausalLM does not know; "
    refused(rule + ".* ignore_tensors", model=str(folder))
    for patterns in ("*.q_proj.bias", ["mtp.*", extra]):
        assert build_whole(task(model=str(folder), ignore_tensors=patterns))


def test_layers_beyond_those_of_the_configuration_are_refused(
    refused: Callable[..., None], tmp_path: Path
) -> None:
    folder = save_model(tmp_path / "deep", num_hidden_layers=3)
    change_config(folder, num_hidden_layers=2)
    rule = r"its files hold model.layers.2.input_layernorm.weight, .* \(and 6 more\)"
    refused(rule, model=str(folder))


def test_tensors_that_transformers_ignores_are_ignored(
    task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    from architectures import save_architecture

    former = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    further = {"mtp.fc.weight": torch.ones(32, 64)}
    llama = save_model(tmp_path / "llama")
    qwen = save_architecture(tmp_path / "qwen", "qwen3_next")
    for folder, added in ((llama, former), (qwen, further)):
        change_tensors(folder, lambda found, added=added: found.update(added))  # type: ignore[misc]
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


def test_other_sizes_and_an_adapter_are_refused(
    refused: Callable[..., None], tmp_path: Path
) -> None:
    folder = change_config(save_model(tmp_path / "narrow"), intermediate_size=40)
    refused("cannot be loaded: You set `ignore_mismatched_sizes`", model=str(folder))
    nameless = '{"base_model_name_or_path": null, "init_lora_weights": true}'
    (folder / "adapter_config.json").write_text(nameless)
    refused("it holds an adapter; give the adapter's model, and adapter.start", model=str(folder))
