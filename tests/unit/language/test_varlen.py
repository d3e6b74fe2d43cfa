"""Attention within documents: the same function as a mask, and who may compute so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from plans import plan
from tiny_language import CONFIGS, build_with_batch, conversation, save_masked
from torch import Tensor, nn

from trainer import ConfigError
from trainer.language import CausalLM, MaskedLM
from trainer.language.model_files import small_copy
from trainer.language.packing import IGNORED
from trainer.language.pretrained import from_configuration
from trainer.language.trial import why_not
from trainer.language.varlen import NAME, Whole, attend, collate_documents, with_documents

DEFAULTS = {"vocab_size": 64, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
WIDE_GPT2 = {**CONFIGS["gpt2"], "n_head": 4}
WIDE = {**CONFIGS["llama"], "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
ROWS = [
    {
        "input_ids": torch.arange(size) + 5,
        "labels": torch.arange(size) + 6,
        "position_ids": torch.cat([torch.arange(3), torch.arange(size - 3)]),
    }
    for size in (7, 4)
]


def small(name: str, **settings: Any) -> Any:
    """A small copy of a model of a kind."""
    config = {"model_type": name, **settings}
    return small_copy(from_configuration(config, None, DEFAULTS))


# -- batches --------------------------------------------------------------------------------------


def test_boundaries_are_where_positions_begin() -> None:
    batch = collate_documents(ROWS, padding=1, length=8)
    assert batch["input_ids"].shape == (2, 8) and "attention_mask" not in batch
    assert batch["boundaries"].tolist() == [0, 3, 7, 8, 11, 12, 16]  # padding is a document
    assert batch["longest"] == 4 and batch["boundaries"].dtype == torch.int32
    assert batch["places"].tolist() == [*range(16)]


@pytest.mark.parametrize(("parts", "count"), [(1, 11), (2, 12), (4, 12)])
def test_padding_is_left_out_but_for_a_rest(parts: int, count: int) -> None:
    """Eleven tokens: those of the longest row are the columns, of which parts are as many."""
    batch = collate_documents(ROWS, padding=1, parts=parts, leaves_out=True)
    assert len(batch["places"]) == count and batch["labels"].numel() % parts == 0
    found = batch["labels"].flatten()[batch["places"]]
    assert found[found != IGNORED].tolist() == torch.cat([row["labels"] for row in ROWS]).tolist()
    assert batch["boundaries"][-1] == count


# -- attention ------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, 3])
def test_attention_is_that_of_a_mask(window: int | None) -> None:
    """With fewer heads of keys, and an own scale."""
    positions = torch.tensor([[*range(5), *range(9), 0]])
    batch = with_documents({"position_ids": positions})
    drawn = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, heads, 15, 4, generator=drawn, dtype=torch.double) for heads in (4, 2, 2)
    )
    found, _ = attend(
        Whole(), nn.Module(), query, key, value, None,
        scaling=0.3, sliding_window=window, cu_seq_lens_q=batch["boundaries"],
    )  # fmt: skip

    number = (positions[0] == 0).cumsum(0)
    place = torch.arange(15)
    distance = place[:, None] - place
    mask = (number[:, None] == number) & (distance >= 0) & (distance < (window or 15))
    expected = nn.functional.scaled_dot_product_attention(
        query, key, value, mask, scale=0.3, enable_gqa=True
    )
    torch.testing.assert_close(found.transpose(1, 2), expected)


@pytest.mark.parametrize(
    ("named", "rule"),
    [
        ({"softcap": 30.0}, "softcap"),
        ({"s_aux": torch.ones(2)}, "s_aux"),
        ({"dropout": 0.1}, "dropout"),
        ({"is_causal": False}, "is_causal"),
        ({"new": 1, "softcap": None}, "new"),
    ],
)
def test_an_argument_that_is_not_known_is_refused(named: dict[str, Any], rule: str) -> None:
    heads = [torch.ones(1, 2, 4, 4)] * 3
    ends = torch.tensor([0, 4])
    with pytest.raises(NotImplementedError, match=f"^attention varlen has no {rule}$"):
        attend(Whole(), nn.Module(), *heads, None, cu_seq_lens_q=ends, **named)  # type: ignore[arg-type]


# -- models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "rule"),
    [
        ("llama", WIDE, ""),
        ("mistral", {**WIDE, "sliding_window": 4096}, ""),
        ("gemma3_text", WIDE, ""),
        ("gpt2", {**WIDE_GPT2, "resid_pdrop": 0.1}, ""),
        ("gpt2", {**WIDE_GPT2, "attn_pdrop": 0.1}, "has no dropout"),
        ("gemma2", WIDE, "has no softcap"),
        ("bloom", {"hidden_size": 32, "n_layer": 1, "n_head": 4}, "cannot be rep"),
        ("mamba", {"hidden_size": 32, "num_hidden_layers": 1}, "than each alone"),
        ("lfm2", {**WIDE, "layer_types": ["conv", "full_attention"]}, "than each alone"),
        ("llama4_text", {**WIDE, "num_local_experts": 2}, "than each alone"),
    ],
)
@pytest.mark.parametrize("size", [1, 4])
def test_a_small_copy_tells_whether_a_model_can(
    name: str, settings: dict[str, Any], rule: str, size: int
) -> None:
    config = {key: value for key, value in settings.items() if key != "model_type"}
    if name == "lfm2":
        config.pop("head_dim")
    model = small(name, **config)
    before = model.config._attn_implementation
    reason = why_not(model, size)
    assert rule in reason and bool(rule) == bool(reason)
    assert model.config._attn_implementation == (before if rule else f"{NAME}_alone")
    assert model.training or rule


def test_calls_without_boundaries_compute_as_before(task: Callable[..., CausalLM]) -> None:
    """With a mask of padding and a cache, and after them training goes on by documents."""
    outputs = []
    for attention in ("sdpa", NAME):
        causal = task(attention=attention)
        model, batch = build_with_batch(causal)
        ids = batch["input_ids"][:, :20]
        mask = torch.ones_like(ids)
        mask[0, :5] = 0
        alike: Any = model.eval()
        texts = alike.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False)
        outputs.append((texts, alike(input_ids=ids, attention_mask=mask).logits))
        assert causal.training_step(model, batch).isfinite()
        assert alike.config._attn_implementation == attention
    torch.testing.assert_close(*outputs)


def test_the_exported_configuration_names_no_attention(
    task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    model: Any = task(attention=NAME).build_model()
    model.config.save_pretrained(tmp_path)
    assert NAME not in (tmp_path / "config.json").read_text()


def test_rows_with_padding_have_the_gradients_and_predictions_of_a_mask(
    task: Callable[..., CausalLM],
) -> None:
    """With an adapter and recomputed layers. Padding is left out."""
    rows = [conversation("Say it.", text * 3) for text in ("one two", "three", "four five six")]
    settings: dict[str, Any] = {"adapter": {"r": 2}, "activation_checkpointing": True}
    settings |= {"rows": rows, "packing": "none", "learn": "all"}
    found = []
    for attention in ("sdpa", NAME):
        causal = task(attention=attention, **settings)
        model, batch = build_with_batch(causal)
        predicted = causal.prediction_step(model, batch)
        loss = causal.training_step(model, batch)
        loss.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        found.append([predicted["loss"], predicted["tokens"], loss, *gradients])
    assert len(found[0]) > 6
    torch.testing.assert_close(*found)
    real = int((batch["labels"] != IGNORED).sum())
    assert causal.computed_tokens(batch) == real < batch["input_ids"].numel()


# -- settings -------------------------------------------------------------------------------------


def begun(causal: CausalLM, **changes: Any) -> CausalLM:
    causal.begin(replace(plan(None), **changes))
    return causal


def test_packed_rows_on_a_gpu_in_16_bits_have_documents_by_default(
    task: Callable[..., CausalLM],
) -> None:
    gpu = {"device": "cuda", "mixed_precision": "bf16"}
    assert begun(task(), **gpu).takes_documents
    assert not begun(task(attention="sdpa"), **gpu).takes_documents
    assert not begun(task(packing="none"), **gpu).takes_documents
    assert not begun(task(), device="cuda", mixed_precision="no").takes_documents
    assert not begun(task(), device="cpu", mixed_precision="bf16").takes_documents
    assert not task().takes_documents


def test_by_default_a_model_that_cannot_has_a_mask_and_a_note(
    task: Callable[..., CausalLM], llama: Path
) -> None:
    settings: dict[str, Any] = {
        "model": None,
        "config": {**CONFIGS["gemma"], "model_type": "gemma2"},
        "tokenizer": str(llama),
    }
    losses = []
    for causal in (
        task(**settings),
        begun(task(**settings), device="cuda", mixed_precision="bf16"),
    ):
        model, batch = build_with_batch(causal)
        losses.append(causal.training_step(model, batch))
    assert "boundaries" not in batch
    rule = "a mask keeps documents apart, since Gemma2ForCausalLM: attention varlen has no softcap"
    assert f"attention: {rule}" in causal.notices()
    torch.testing.assert_close(*losses)


def test_a_model_that_cannot_is_refused_if_documents_are_asked_for(
    refused: Callable[..., None], llama: Path
) -> None:
    config = {**CONFIGS["gemma"], "model_type": "gemma2"}
    rule = "attention: 'varlen': Gemma2ForCausalLM: attention varlen has no softcap; leave it out"
    refused(rule, model=None, config=config, tokenizer=str(llama), attention=NAME)


def test_other_tasks_have_no_documents(tmp_path: Path, texts: Path) -> None:
    from transformers import AttentionInterface

    AttentionInterface._global_mapping.pop(NAME, None)  # of another test
    task = MaskedLM(model=str(save_masked(tmp_path)), data=str(texts), attention=NAME)
    with pytest.raises(ConfigError, match=r"cannot be loaded: .*attn_implementation=.varlen"):
        task.build_model()


class OwnLoss(CausalLM):
    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        raise NotImplementedError


def test_a_loss_of_ones_own_needs_whole_rows(task: Callable[..., CausalLM]) -> None:
    """Its batches are rows of a length, padding included, and no processes share them."""
    own = OwnLoss(**{**vars_of(task()), "attention": NAME, "packing": "none"})
    batch = own.collate_rows(ROWS)
    assert batch["places"].tolist() == [*range(14)] and own.inputs(batch)["input_ids"].numel() == 14
    with pytest.raises(ConfigError, match="2: must be 1: the task computes whole rows"):
        begun(own, world_size=2, context_parallel=2)
    assert task().computes_parts and not own.computes_parts


class OwnInputs(CausalLM):
    def inputs(self, batch: Any) -> dict[str, Any]:
        return {"input_ids": batch["input_ids"], "position_ids": batch["position_ids"]}


def test_inputs_of_ones_own_are_proven_to_be_separate(task: Callable[..., CausalLM]) -> None:
    """By default they have a mask. Without boundaries there is no attention within documents."""
    own = OwnInputs(**vars_of(task()))
    assert not begun(own, device="cuda", mixed_precision="bf16").takes_documents
    own.build_model()
    with pytest.raises(ConfigError, match="varlen has no call without boundaries"):
        OwnInputs(**{**vars_of(task()), "attention": NAME}).build_model()


def vars_of(causal: CausalLM) -> dict[str, Any]:
    return {"model": causal.model, "data": causal.data, "cache_dir": causal.cache_dir}
