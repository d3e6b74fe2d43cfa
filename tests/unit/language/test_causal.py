"""The causal task: its loss is the mean over the targets, its exports are complete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from chats import trained_texts
from tiny_language import VOCABULARY, build_with_batch, save_rows

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


def test_all_words_of_a_conversation_are_learnt(
    task: Callable[..., CausalLM], chats: str, tmp_path: Path
) -> None:
    answers = trained_texts(task(data=chats, packing="none"))
    assert "Good day" in answers[0] and not any("Hello" in text for text in answers)
    whole = trained_texts(task(data=chats, packing="none", learn="all"))
    first = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nGood day<|im_end|>\n"
    assert whole[0].startswith(first.removeprefix("<|im_start|>")) and len(whole) == 2

    rows = save_rows(tmp_path / "pairs.jsonl", [{"prompt": "Who? ", "completion": "Me."}])
    assert trained_texts(task(data=str(rows), packing="none"))[0].startswith("Me.")
    [both] = trained_texts(task(data=str(rows), packing="none", learn="all"))
    assert both.endswith("Me.<|end|>") and "o?" in both


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
    assert {tensor.shape for tensor in inputs.values()} == {(1, 2 * 128)}
    assert torch.equal(inputs["position_ids"].reshape(2, 128), batch["position_ids"])
    assert task().inputs(batch)["input_ids"].shape == (2, 128)
