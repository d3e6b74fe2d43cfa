"""Reward models: the formula in float64, the end of a text, and the export."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from launchers import json_in
from preferences import TEMPLATE, check_steps, preferences, settings_of_task, trainer
from tiny_language import save_model, save_rows, tokenizer

from trainer import ConfigError
from trainer.language import Adapter, RewardModel


@pytest.fixture
def task(given: Path, tmp_path: Path) -> Callable[..., RewardModel]:
    return lambda **settings: RewardModel(**{**settings_of_task(given, tmp_path), **settings})


def loss_of(model: Any, rows: list[dict[str, Any]]) -> tuple[torch.Tensor, Any]:
    """The mean loss over some rows in float64, each side alone, and the metrics."""
    scores = []
    for row in rows:
        for side in ("chosen", "rejected"):
            ids = tokenizer().apply_chat_template(
                row["prompt"] + row[side], chat_template=TEMPLATE, return_tensors="pt"
            )["input_ids"]
            scores.append(model.model(ids).last_hidden_state[0, -1] @ model.score.weight[0])
    chosen, rejected = torch.stack(scores).view(-1, 2).unbind(1)
    margins = torch.tensor([row["margin"] for row in rows])
    metrics = {
        "chosen_reward": chosen,
        "rejected_reward": rejected,
        "margin": chosen - rejected,
        "accuracy": (chosen > rejected).double(),
    }
    means = {name: values.mean().item() for name, values in metrics.items()}
    return -F.logsigmoid(chosen - rejected - margins).mean(), means


def test_two_steps_are_those_of_the_formula_in_float64(
    task: Callable[..., RewardModel], tmp_path: Path
) -> None:
    training = trainer(task(), tmp_path / "run")
    model: Any = copy.deepcopy(training.run.model).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-4, weight_decay=0.0)
    exact = []
    for _ in range(2):
        loss, metrics = loss_of(model, preferences(8))
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        exact.append({"loss": loss.item(), "grad_norm": norm.item(), **metrics})
    check_steps(training, exact)


def test_the_export_of_an_adapter_loads_as_a_classifier_with_one_label(
    task: Callable[..., RewardModel], tmp_path: Path
) -> None:
    from peft import AutoPeftModelForSequenceClassification

    reward = task(adapter=Adapter(r=4))
    training = trainer(reward, tmp_path / "run")
    training.fit()
    loaded: Any = AutoPeftModelForSequenceClassification.from_pretrained(
        tmp_path / "run/model", num_labels=1, pad_token_id=1
    )
    data = reward.build_data()
    batch = data.collate([data.train[at] for at in range(4)])
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        scores, ours = loaded.eval()(**inputs).logits, training.run.model.eval()(**inputs).logits
    assert scores.shape == (8, 1) and torch.allclose(scores, ours, atol=1e-6)


@pytest.mark.parametrize("pad", [None, "<|end|>"])
def test_the_score_is_that_of_the_end_of_a_text(
    pad: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also in the export, and if padding is the end of a text or if there is no padding."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    own = tokenizer()
    own.pad_token = pad
    own.save_pretrained(save_model(tmp_path / "model"))
    row = {"prompt": "a", "chosen": " long answer", "rejected": " b"}
    reward = RewardModel(
        model=str(tmp_path / "model"),
        data=str(save_rows(tmp_path / "rows.jsonl", [row] * 6)),
        evaluation=0.5,
        cache_dir=str(tmp_path),
    )
    training = trainer(reward, tmp_path / "run", max_steps=1, accumulation_steps=1)
    measured = training.fit()
    assert "not in the model" not in capsys.readouterr().out

    folder = tmp_path / "run/model"
    loaded: Any = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert loaded.config.num_labels == 1
    exported = AutoTokenizer.from_pretrained(folder)
    texts = [f"{row['prompt']}{row[side]}<|end|>" for side in ("chosen", "rejected")]
    with torch.no_grad():
        scores = loaded(**exported(texts, padding=True, return_tensors="pt")).logits[:, 0]
        bodies = [loaded.model(**exported(text, return_tensors="pt")) for text in texts]
        ends = torch.cat([loaded.score(body.last_hidden_state[0, -1]) for body in bodies])
    assert torch.allclose(scores, ends, atol=1e-6)
    found = [measured["eval/chosen_reward"], measured["eval/rejected_reward"]]
    assert found == pytest.approx(ends.tolist(), abs=1e-5)


def test_padding_that_ends_a_text_is_refused(
    task: Callable[..., RewardModel], tmp_path: Path
) -> None:
    """As of GPT-2, whose only special token ends texts. Conversations may end otherwise."""
    model = save_model(tmp_path / "model")
    data = json_in(model / "tokenizer.json")
    data["added_tokens"] = data["added_tokens"][:1]
    (model / "tokenizer.json").write_text(json.dumps(data))
    assert task(model=str(model), template=TEMPLATE).build_data()
    row = {"prompt": "a", "chosen": " long answer", "rejected": " b"}
    rows = str(save_rows(tmp_path / "rows.jsonl", [row]))
    texts = task(model=str(model), data=rows, template=None)
    with pytest.raises(ConfigError, match=r"<\|end\|>': pads texts and ends a text, .*pad_token"):
        texts.build_data()


def test_a_side_that_is_too_long_is_refused(
    task: Callable[..., RewardModel], tmp_path: Path
) -> None:
    """A text that is cut off has no score of its end."""
    with pytest.raises(ConfigError, match=r"row \d+'?: sequence_length allows \d+ tokens"):
        task(sequence_length=30).build_data()
    few = task(sequence_length=60, bad_rows="leave_out").build_data()
    assert 0 < len(few.train) < 8
    assert few.collate([few.train[0]])["input_ids"].shape[1] <= 60
