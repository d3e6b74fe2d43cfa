"""The BERT classifier: one process and two have the same curves, under every strategy."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from bert_classifier import NAMES, BertClassifier
from launchers import STRATEGIES, Job, run, some_quick
from small_examples import words

SMALL: dict[str, Any] = {
    "texts": 100,
    "vocab_size": 400,
    "hidden_size": 32,
    "intermediate_size": 48,
    "heads": 2,
}
STEPS = 60
BERT = [
    "--config",
    "examples/configs/bert_classifier.yaml",
    "--epochs",
    "null",
    "--max_steps",
    str(STEPS),
]

BERT += ["--lr", "3e-3", "--eval_every", "null", "--log_every", "1", "--micro_batch_size", "8"]

BERT += ["--global_batch_size", "32"]


# --- the BERT classifier


@pytest.fixture(scope="module")
def task(folder: Path) -> BertClassifier:
    return BertClassifier(**SMALL, cache_dir=str(folder / "cache"))


@cache
def bert(strategy: str, folder: Path, pretrained: Path | None = None) -> Job:
    settings = {
        **SMALL,
        "cache_dir": folder / "cache",
        **({} if pretrained is None else {"pretrained": pretrained}),
    }
    options = [
        word for key, value in settings.items() for word in (f"--task_settings.{key}", str(value))
    ]
    name = f"bert-{strategy}" if pretrained is None else f"tuned-{strategy}"
    return run([*words(strategy, "examples/train.py"), *BERT, *options], folder / name).ok()


def assert_same_curve(done: Job, alone: Job, strategy: str) -> None:
    assert (done.plan["strategy"], done.plan["world_size"]) == (strategy, 2)
    # The first steps differ by the order of float32 sums only; Adam's division amplifies that
    # afterwards.
    assert done.losses[:8] == pytest.approx(alone.losses[:8], rel=2e-6)
    assert len(done.losses) == STEPS and done.losses == pytest.approx(alone.losses, rel=1e-3)
    assert sum(done.losses[-5:]) / 5 < 1.45, "it learns: a model that knows nothing has log(5)"
    ours, theirs = done.evaluation, alone.evaluation
    assert (
        {"eval/accuracy", "eval/f1", *(f"eval/recall/{label}" for label in range(5))}
        <= ours.keys()
        == theirs.keys()
    )
    assert ours["eval/loss"] == pytest.approx(theirs["eval/loss"], rel=1e-3)
    assert ours["eval/accuracy"] == pytest.approx(theirs["eval/accuracy"], abs=0.01), (
        "one text of 136 may tip over"
    )


@pytest.mark.parametrize("strategy", some_quick())
def test_bert_has_the_curve_of_one_process(strategy: str, folder: Path) -> None:
    assert_same_curve(bert(strategy, folder), bert("single", folder), strategy)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_pretrained_bert_has_the_curve_of_one_process(strategy: str, folder: Path) -> None:
    pretrained = bert("single", folder).output_dir / "model"
    alone, done = bert("single", folder, pretrained), bert(strategy, folder, pretrained)
    assert_same_curve(done, alone, strategy)
    assert done.losses[0] < 1.45, "it begins with what was learnt before"


@pytest.mark.slow
def test_exported_bert_is_one_to_begin_with(task: BertClassifier, folder: Path) -> None:
    from transformers import pipeline

    exported = bert("single", folder).output_dir / "model"
    tuned = BertClassifier(pretrained=str(exported), **SMALL, cache_dir=task.cache_dir)
    data, ours = tuned.build_data(), task.build_data()
    assert [item["ids"].tolist() for item in data.evaluation] == [
        item["ids"].tolist() for item in ours.evaluation
    ]
    model = tuned.build_model().eval()
    batch = ours.collate([ours.evaluation[index] for index in range(4)])
    with torch.no_grad():
        found = [NAMES[label] for label in tuned.evaluation_step(model, batch)["f1"][0].argmax(-1)]
    texts = [
        text for text, _ in json.loads((task.prepare() / "texts.json").read_text())["evaluation"]
    ]
    classify = pipeline("text-classification", str(exported))
    assert [answer["label"] for answer in classify(texts[:4])] == found


def test_texts_and_tokenizer_are_the_same_on_every_preparation(
    task: BertClassifier, tmp_path: Path
) -> None:
    folder, again = task.prepare(), BertClassifier(**SMALL, cache_dir=str(tmp_path)).prepare()
    assert folder.name == again.name
    for name in ("texts.json", "tokenizer.json"):
        assert (folder / name).read_bytes() == (again / name).read_bytes()
    parts = json.loads((folder / "texts.json").read_text())
    train, evaluation = ({text for text, _ in parts[part]} for part in ("train", "evaluation"))
    assert len(train | evaluation) == 500 and not train & evaluation
    assert {label for _, label in parts["train"]} == set(range(5))


def test_bert_scores_of_a_text_do_not_depend_on_its_batch(task: BertClassifier) -> None:
    torch.manual_seed(0)
    model, data = task.build_model(), task.build_data()
    items = sorted((data.train[index] for index in range(20)), key=lambda item: len(item["ids"]))
    assert len(items[0]["ids"]) < len(items[-1]["ids"]) <= task.sequence_length
    alone, among = (
        task.evaluation_step(model, data.collate(batch))["loss"][0] for batch in (items[:1], items)
    )
    torch.testing.assert_close(alone, among)


@pytest.mark.parametrize(
    ("settings", "message"), [({"held_out": 1}, "held_out: 1: "), ({"heads": 3}, "hidden_size: ")]
)
def test_impossible_settings(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BertClassifier(**settings)
