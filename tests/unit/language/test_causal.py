"""The causal task: its loss is the mean over the targets, its exports are complete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from chats import trained_texts
from layouts import layout
from tiny_language import VOCABULARY, build_with_batch, save_rows

from trainer import ConfigError
from trainer.language import CausalLM
from trainer.language.packing import IGNORED


def test_loss_is_the_mean_over_the_targets(task: Callable[..., CausalLM]) -> None:
    """test_loss.py computes the mean by hand."""
    causal = task()
    model, batch = build_with_batch(causal)
    batch["labels"][1, 50:] = IGNORED
    weight = int(causal.weight(batch))
    assert weight == 128 + 50

    loss = causal.training_step(model, batch)
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
    assert inputs["input_ids"].shape == inputs["position_ids"].shape == (1, 2 * 128)
    assert torch.equal(inputs["position_ids"].reshape(2, 128), batch["position_ids"])
    starts = (batch["position_ids"].flatten() == 0).nonzero().flatten()
    for ends in (inputs["cu_seq_lens_q"], inputs["cu_seq_lens_k"]):
        assert ends.dtype == torch.int32 and ends.tolist() == [*starts.tolist(), 256]
    assert inputs["max_length_q"] == inputs["max_length_k"] == int(ends.diff().max())
    plain = task()
    batch = plain.build_data().collate([rows[0], rows[1]])
    assert plain.inputs(batch)["input_ids"].shape == (2, 128)


def test_texts_that_are_read_in_blocks_have_the_tokens_of_prepared_ones(
    task: Callable[..., CausalLM],
) -> None:
    settings = {"packing": "none", "long_documents": "cut"}
    prepared = task(**settings).build_data()
    streamed = task(**settings, stream=True).build_data()
    chosen = range(0, len(prepared.train), 7)
    assert len(streamed.train) == len(prepared.train)
    batch = streamed.collate([streamed.train[row] for row in chosen])
    wanted = prepared.collate([prepared.train[row] for row in chosen])
    assert batch.keys() == wanted.keys()
    assert all(torch.equal(batch[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("packing", ["best_fit", "none"])
def test_documents_that_are_packed_while_they_are_read_keep_each_prediction(
    packing: str, task: Callable[..., CausalLM], texts: Path
) -> None:
    settings = {"packing": packing, "evaluation": str(texts), "sequence_length": 24}
    prepared = task(**settings).build_data()
    streamed = task(**settings, stream=True).build_data()

    def targets(rows: Any) -> list[int]:
        labels = torch.cat([row["labels"] for row in rows])
        return sorted(labels[labels != IGNORED].tolist())

    rows = [*streamed.evaluation]
    assert targets(rows) == targets(prepared.train)
    assert max(len(row["input_ids"]) for row in rows) == 24
    assert (packing == "best_fit") == any((row["position_ids"] == 0).sum() > 1 for row in rows)
    batch = streamed.collate(rows[:3])
    assert (packing == "none") or batch["labels"].shape == (3, 24)

    # A lane goes through its shard again and again.
    read = next(streamed.train.batches(layout(micro=2 * len(rows)), 0, 0))
    for turn in (read[: len(rows)], read[len(rows) :]):
        assert targets(turn) == targets(rows)


@pytest.mark.usefixtures("hugging_face_cache")
def test_a_name_of_the_hub_is_streamed_by_its_shards(
    task: Callable[..., CausalLM], texts: Path, tmp_path: Path
) -> None:
    from datasets.exceptions import DataFilesNotFoundError

    for shard in range(3):
        (tmp_path / f"hub-{shard}.jsonl").write_text(f'{{"text": "word {shard} of a shard"}}\n')
    data = task(data=f"hf:{tmp_path}", stream=True, evaluation=str(texts)).build_data()
    assert data.train.own_order.shards == 3
    read = next(data.train.batches(layout(micro=3), 0, 0))
    assert len({tuple(row["input_ids"].tolist()) for row in read}) == 3
    with pytest.raises(DataFilesNotFoundError, match="data files found in"):
        task(data=f"hf:{tmp_path}@dev", stream=True).build_data()


def test_a_row_of_a_block_that_cannot_be_learnt_is_one_line_or_left_out(
    task: Callable[..., CausalLM],
) -> None:
    settings = {"packing": "none", "long_documents": "refuse", "stream": True}
    rows = [{"text": "one two three"}, {"text": 3}, {"text": "word " * 200}]
    data = task(rows=rows, **settings).build_data()
    with pytest.raises(ConfigError, match="a row of data"):
        data.collate([data.train[1]])
    with pytest.raises(ConfigError, match="sequence_length: 128: a document has"):
        data.collate([data.train[2]])
    data = task(rows=rows, bad_rows="leave_out", **settings).build_data()
    batch = data.collate([data.train[1]])
    assert (batch["labels"] == IGNORED).all() and batch["labels"].shape == (1, 1)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        (
            {"stream": True, "packing": "none", "long_documents": "cut", "evaluation": 0.1},
            "stream: takes files",
        ),
        ({"data": [{"path": "a.jsonl"}], "evaluation": 0.1}, "a mixture has no share to keep"),
    ],
)
def test_settings_that_do_not_go_with_a_stream_or_a_mixture(
    settings: dict[str, Any], rule: str, task: Callable[..., CausalLM]
) -> None:
    with pytest.raises(ValueError, match=rule):
        task(**settings)


def test_a_mixture_takes_the_first_documents_of_a_source_and_weighs_by_tokens(
    task: Callable[..., CausalLM], texts: Path
) -> None:
    sources = [
        {"path": str(texts), "max_samples": 8},
        {"path": str(texts), "weight": 1.0, "name": "all"},
    ]
    settings = {"packing": "none", "long_documents": "cut"}
    mixed = task(data=sources, weight_by="tokens", **settings).build_data().train
    first, whole = mixed.sets
    [split] = (
        task(data=[{"path": str(texts), "split": "train[:8]"}], **settings).build_data().train.sets
    )
    assert [row["input_ids"].tolist() for row in split] == [
        row["input_ids"].tolist() for row in first
    ]
    assert len(first) == 8 and mixed.own_order.names == [texts.stem, "all"]
    shares = mixed.own_order.logged(0, 10_000)
    tokens = [rows.token_count / len(rows) for rows in (first, whole)]
    by_tokens = [
        shares[f"mix/{name}/share"] * mean
        for name, mean in zip(mixed.own_order.names, tokens, strict=True)
    ]
    assert by_tokens[0] == pytest.approx(by_tokens[1], rel=0.01)
