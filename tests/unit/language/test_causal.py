"""The causal task: its loss is the mean over the targets, its exports are complete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from tiny_language import VOCABULARY, build_with_batch

from trainer.language import CausalLM
from trainer.language.packing import IGNORED


def test_loss_is_the_mean_over_the_targets(task: Callable[..., CausalLM]) -> None:
    causal = task()
    model, batch = build_with_batch(causal)
    batch["labels"][1, 50:] = IGNORED
    weight = int(causal.weight(batch))
    assert weight == 128 + 50

    logits = model(
        input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False
    ).logits
    per_token = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="none")
    loss = causal.training_step(model, batch)
    torch.testing.assert_close(loss, per_token.sum() / weight)
    (total, count), (tokens, _) = causal.evaluation_step(model, batch).values()
    torch.testing.assert_close(total / count, loss)
    assert int(tokens) == weight


def test_extras_are_tokenizer_and_template(task: Callable[..., CausalLM], tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    (tmp_path / "own.jinja").write_text("own {{ messages }}")
    task(template=str(tmp_path / "own.jinja")).save_extras(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert (len(tokenizer), tokenizer.chat_template) == (VOCABULARY, "own {{ messages }}")


def test_flash_attention_is_given_one_long_row(task: Callable[..., CausalLM]) -> None:
    causal = task(attention="flash_attention_2")
    rows = causal.build_data().train
    batch = causal.build_data().collate([rows[0], rows[1]])
    inputs = causal.inputs(batch)
    assert inputs["input_ids"].shape == inputs["position_ids"].shape == (1, 2 * 128)
    assert torch.equal(inputs["position_ids"].reshape(2, 128), batch["position_ids"])
    starts = (batch["position_ids"].flatten() == 0).nonzero().flatten()
    for ends in (inputs["cu_seq_lens_q"], inputs["cu_seq_lens_k"]):
        assert ends.dtype == torch.int32 and ends.tolist() == [*starts.tolist(), 256]
    assert inputs["max_length_q"] == inputs["max_length_k"] == int(ends.diff().max())
    plain = task()
    batch = plain.build_data().collate([rows[0], rows[1]])
    assert plain.inputs(batch)["input_ids"].shape == (2, 128)
