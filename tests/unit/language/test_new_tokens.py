"""Layers that are trained whole beside adapters, and tokens that a model did not have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from launchers import json_in
from one_process import fit
from safetensors.torch import load_file
from tiny_language import VOCABULARY, change_config, paragraphs, save_masked, save_model
from whole_model import build_whole

from trainer.language import CausalLM, MaskedLM
from trainer.language.tokens import load_tokenizer

NEW = ["<|think|>", "<|done|>"]
ENDS = ["embed_tokens", "lm_head"]
ROWS = [{"text": f"<|think|>{text}<|done|>"} for text in paragraphs(30)]


def test_trained_layers_begin_with_the_files_and_are_exported(
    llama: Path, task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    causal = task(adapter={"r": 2, "trained": ENDS})
    model: Any = build_whole(causal)
    plain: Any = AutoModelForCausalLM.from_pretrained(llama)
    ids = torch.arange(12)[None]
    assert torch.equal(model.eval()(input_ids=ids).logits, plain(ids).logits)
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    wholes = {name for name in learning if "lora_" not in name}
    assert wholes == {
        "base_model.model.model.embed_tokens.modules_to_save.default.weight",
        "base_model.model.lm_head.modules_to_save.default.weight",
    }

    fit(tmp_path / "run", causal, max_steps=2)
    loaded: Any = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "run/model")
    merged = loaded.merge_and_unload()
    for name in ("get_input_embeddings", "get_output_embeddings"):
        ours, before = (getattr(part, name)().weight for part in (merged, plain))
        assert ours.shape == before.shape and not torch.allclose(ours, before)

    again: Any = build_whole(task(model=str(tmp_path / "run/model")))
    torch.testing.assert_close(again.eval()(input_ids=ids).logits, merged.eval()(ids).logits)


@pytest.mark.parametrize("tied", [False, True])
def test_new_rows_are_the_mean_of_the_others_and_are_exported(
    tied: bool, task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = save_model(tmp_path / "model", tie_word_embeddings=tied)
    causal = task(model=str(folder), new_tokens=NEW, rows=ROWS)
    model: Any = build_whole(causal)
    before: Any = AutoModelForCausalLM.from_pretrained(folder)
    for name in ("get_input_embeddings", "get_output_embeddings"):
        ours, theirs = (getattr(part, name)().weight for part in (model, before))
        assert torch.equal(ours[:VOCABULARY], theirs) and len(ours) == VOCABULARY + 2
        torch.testing.assert_close(ours[VOCABULARY:], theirs.mean(0).expand(2, -1))
    is_same = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert is_same == tied

    fit(tmp_path / "run", causal, max_steps=2)
    exported: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "run/model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run/model")
    assert exported.config.vocab_size == len(tokenizer) == VOCABULARY + 2
    assert tokenizer("<|done|>")["input_ids"] == [VOCABULARY + 1]
    assert exported.config.tie_word_embeddings == tied


def test_an_adapter_with_new_tokens_names_the_model_of_the_files(
    llama: Path, task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    """The export is loaded and compared at the end of the run."""
    from peft import AutoPeftModelForCausalLM

    ours = {"new_tokens": NEW, "rows": ROWS}
    fit(tmp_path / "run", task(adapter={"r": 2, "trained": ENDS}, **ours), max_steps=2)
    folder = tmp_path / "run/model"
    assert json_in(folder / "adapter_config.json")["base_model_name_or_path"] == str(llama)
    loaded: Any = AutoPeftModelForCausalLM.from_pretrained(folder)
    held = load_file(folder / "adapter_model.safetensors")
    head = held["base_model.model.lm_head.weight"]
    assert len(head) == VOCABULARY + 2
    assert torch.equal(loaded.get_output_embeddings().weight, head)

    # The next training begins with this adapter and its tokenizer.
    again: Any = build_whole(task(model=str(folder)))
    ids = torch.arange(VOCABULARY - 10, VOCABULARY + 2)[None]
    assert torch.equal(again.eval()(input_ids=ids).logits, loaded.eval()(input_ids=ids).logits)


def test_new_tokens_without_rows_are_refused(
    refused: Callable[..., None], task: Callable[..., CausalLM], llama: Path, tmp_path: Path
) -> None:
    from trainer import ConfigError

    rule = "has 320 tokens and the model 322, which the adapter's file does not hold; name the"
    for quantize in (None, "nf4"):
        causal = task(adapter={"r": 2, "quantize": quantize}, new_tokens=NEW)
        with pytest.raises(ConfigError, match=rule):
            causal.saved_part(causal.build_model())
    load_tokenizer(str(llama), "tokenizer", NEW).save_pretrained(tmp_path / "longer")
    rule = "has tokens up to 321, and the model's embedding has 320 rows; name added tokens in new"
    refused(rule, tokenizer=str(tmp_path / "longer"))


def test_rows_that_the_files_have_are_kept(task: Callable[..., CausalLM], tmp_path: Path) -> None:
    folder = save_model(tmp_path / "padded", vocab_size=VOCABULARY + 8)
    causal = task(model=str(folder), new_tokens=NEW, adapter={"r": 2})
    rows = build_whole(causal).get_input_embeddings().weight  # type: ignore[operator]
    assert torch.equal(rows, load_file(folder / "model.safetensors")["model.embed_tokens.weight"])
    assert causal.saved_part(causal.build_model()) is not None


def test_an_encoder_has_new_tokens_as_well(texts: Path, tmp_path: Path) -> None:
    folder = change_config(save_masked(tmp_path / "bert"), tie_word_embeddings=True)
    masked = MaskedLM(model=str(folder), data=str(texts), new_tokens=NEW, cache_dir=str(tmp_path))
    model: Any = build_whole(masked)
    head = model.get_output_embeddings()
    assert head.weight is model.get_input_embeddings().weight and len(head.bias) == VOCABULARY + 2
