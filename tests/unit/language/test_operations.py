"""Operations of attention, held against counting every pair of positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_language import build_with_batch

from trainer.language import CausalLM
from trainer.language.operations import Attention


def config(model_type: str, **settings: Any) -> Any:
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[model_type](**settings)


SMALL = {"hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 4}


@pytest.mark.parametrize(
    ("model_type", "settings", "layers"),
    [
        ("llama", {}, [(6, None)]),
        ("gpt2", {}, [(6, None)]),
        ("mistral", {"sliding_window": 5}, [(6, 5)]),
        ("mistral", {"sliding_window": None}, [(6, None)]),
        ("gemma3_text", {"sliding_window": 5, "head_dim": 8}, [(1, None), (5, 5)]),
    ],
)
def test_the_layers_that_attend_are_read_from_the_configuration(
    model_type: str, settings: dict[str, Any], layers: list[tuple[int, int | None]]
) -> None:
    attention = Attention.of(config(model_type, **SMALL, **settings))
    assert [tuple(kind) for kind in attention.layers] == layers
    # Forward: 8 products for each of 4 heads, with keys and with values; three times with backward.
    assert attention.operations == 3 * 2 * 4 * (8 + 8)


def test_every_pair_of_a_document_counts_and_no_other() -> None:
    attention = Attention.of(config("gemma3_text", **SMALL, sliding_window=5, head_dim=8))
    lengths = (7, 3, 12)
    pairs, pairs_in_window = 0, 0
    for length in lengths:
        for query in range(length):
            for key in range(query + 1):
                pairs += 1
                pairs_in_window += query - key < 5
    positions = torch.cat([torch.arange(length) for length in lengths])
    expected = attention.operations * (pairs + 5 * pairs_in_window)
    assert attention.of_positions(positions[None]) == expected

    whole = Attention.of(config("bert", **SMALL))
    assert whole.of_lengths(torch.tensor(lengths)) == whole.operations * 6 * (49 + 9 + 144)


def test_linear_attention_and_models_without_heads_have_none_to_count() -> None:
    kinds = ["linear_attention", "full_attention"] * 3
    mixed = Attention.of(config("qwen3_next", **SMALL, layer_types=kinds, head_dim=8))
    assert [tuple(kind) for kind in mixed.layers] == [(3, None)]
    none = Attention.of(config("mamba", hidden_size=32, num_hidden_layers=2))
    assert none.of_positions(torch.arange(9)) == 0.0


def test_tokens_that_are_computed_are_all_positions_of_the_rows(
    task: Callable[..., CausalLM],
) -> None:
    causal = task()
    _, batch = build_with_batch(causal)
    batch["labels"][:, :100] = -100
    assert causal.computed_tokens(batch) == 2 * 128 > causal.weight(batch)
    # Of the tiny Llama: two layers of two heads of 16.
    pairs = int((batch["position_ids"] + 1).sum())
    assert causal.attention_operations(batch) == pairs * 2 * 3 * 2 * 2 * (16 + 16)
