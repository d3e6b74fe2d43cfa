"""Texts are classified by the labels that occur, by encoders and decoders, with adapters."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import SEEING, save_architecture
from one_process import fit
from tiny_language import (
    SMALL,
    VOCABULARY,
    change_config,
    save_masked,
    save_model,
    save_rows,
    tokenizer,
)
from whole_model import build_whole

from trainer import ConfigError
from trainer.language import Adapter, SequenceClassifier

ROWS = [{"text": f"text number {number} of them", "label": number % 3} for number in range(30)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, and a small encoder and a small decoder as people download them, without a last layer
    for classes.
    """
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("folder")
    save_rows(folder / "rows.jsonl", ROWS)
    bert = BertModel(BertConfig(**SMALL, vocab_size=VOCABULARY))
    bert.save_pretrained(folder / "bert")
    tokenizer().save_pretrained(folder / "bert")
    save_model(folder / "llama")
    for name in SEEING:
        save_architecture(folder / name, name)
    return folder


def task(folder: Path, name: str, **settings: Any) -> SequenceClassifier:
    return SequenceClassifier(
        **{"model": str(folder / name), "data": str(folder / "rows.jsonl"), **settings}
    )


@pytest.mark.parametrize(
    ("name", "adapter"),
    [
        *[("bert", None), ("llama", None), ("llama", Adapter(r=2))],
        *[("gemma3", None), ("qwen3_5", None), ("qwen3_5", Adapter(r=2))],
    ],
)
def test_scores_of_a_text_do_not_depend_on_its_batch(
    name: str, adapter: Adapter | None, folder: Path
) -> None:
    classifier = task(folder, name, adapter=adapter, evaluation=0.2)
    data, model = classifier.build_data(), build_whole(classifier).eval()
    assert (len(data.train), len(data.evaluation)) == (24, 6)
    assert data.collate is not None
    long = (["a much longer text than that of the others"], ["2"])
    alone, among = (
        classifier.evaluation_step(model, data.collate([data.train[4], *more]))["loss"]
        for more in ([], [long])
    )
    torch.testing.assert_close(alone[0], among[0])
    classifier.training_step(model, data.collate(data.train[:4])).backward()
    learning = [name for name, parameter in model.named_parameters() if parameter.grad is not None]
    assert all("lora_" in name or "score" in name for name in learning) == (adapter is not None)


def test_labels_are_those_that_occur_in_their_order(folder: Path, tmp_path: Path) -> None:
    rows = [{"text": "a", "kind": kind} for kind in ("10", 9, "2", 9.0)]
    data = str(save_rows(tmp_path / "a.jsonl", rows))
    classifier = task(folder, "bert", data=data, label_column="kind")
    labels = [label for _, label in classifier.build_data().train]
    assert labels == [["10"], ["9"], ["2"], ["9"]]
    model: Any = classifier.build_model()
    assert model.config.id2label == {0: "2", 1: "9", 2: "10"}


def test_a_model_that_is_trained_on_these_classes_keeps_their_numbers(
    folder: Path, tmp_path: Path
) -> None:
    trained = shutil.copytree(folder / "bert", tmp_path / "bert")
    change_config(trained, id2label={0: "1", 1: "2", 2: "0"}, label2id={"1": 0, "2": 1, "0": 2})
    again = task(tmp_path, "bert", data=str(folder / "rows.jsonl"))
    batch = again.build_data().collate([(["a"], [label]) for label in "012"])
    assert batch["labels"].argmax(-1).tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    ("labels", "settings", "message"),
    [
        ([0, None, 1], {}, r"label_column: 'label': is a NoneType in .* row 2"),
        (
            [0.0, 0.143],
            {},
            r"label_column: 'label': is 0.143 in .* row 2; a label is a text or a whole number, with",
        ),
        (
            [[0, 1], [1]],
            {},
            r"label_column: 'label': is \[0, 1\] in .* row 1; a label is a text or",
        ),
        ([2, 2.0], {}, r"data: .*a.jsonl': has a single class; a classifier needs two"),
        (
            ["x", "y"],
            {"problem_type": "regression"},
            r"label_column: 'label': is 'x' in .*; a label is a text",
        ),
        (
            ["x", "y"],
            {"text_pair_column": "other"},
            r"text_pair_column: 'other': is a NoneType in .* row 1",
        ),
    ],
)
def test_labels_that_are_no_classes_are_refused(
    labels: list[Any], settings: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    rows = save_rows(tmp_path / "a.jsonl", [{"text": "a", "label": label} for label in labels])
    with pytest.raises(ConfigError, match=message):
        task(folder, "bert", data=str(rows), **settings).build_data()


PAIRS: list[dict[str, Any]] = [
    {"text": "first", "other": "second of a pair", "kind": ["a", "b"]},
    {"text": "a third text", "other": "fourth", "kind": []},
    {"text": "the fifth", "other": "sixth", "kind": ["b", "b", 3]},
]
SCORES = [{**row, "kind": number} for row, number in zip(PAIRS, (0.5, -2, 1e3), strict=True)]


@pytest.mark.parametrize(
    ("problem", "rows", "by_hand"),
    [
        (
            "single_label_classification",
            [{**row, "kind": at % 2} for at, row in enumerate(PAIRS)],
            [0, 1, 0],
        ),
        ("multi_label_classification", PAIRS, [[0.0, 1.0, 1.0], [0.0] * 3, [1.0, 0.0, 1.0]]),
        ("regression", SCORES, [0.5, -2.0, 1e3]),
    ],
)
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_the_loss_is_that_of_transformers_on_pairs_of_texts(
    name: str, problem: Any, rows: list[Any], by_hand: list[Any], folder: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"text_pair_column": "other", "label_column": "kind"}
    data = str(save_rows(tmp_path / "a.jsonl", rows))
    classifier = task(folder, name, data=data, problem_type=problem, **settings)
    given = classifier.build_data()
    model: Any = build_whole(classifier).eval().double()
    batch = given.collate([given.train[at] for at in range(3)])
    own = classifier.load_tokenizer()
    texts = own([row["text"] for row in rows], [row["other"] for row in rows], padding=True)
    assert batch["input_ids"].tolist() == texts["input_ids"]

    labels = torch.tensor(by_hand)
    labels = labels.double() if labels.is_floating_point() else labels
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    theirs = model(**inputs, labels=labels)
    assert model.config.problem_type == problem
    found = classifier.evaluation_step(model, batch)
    assert all(len(values) == 3 for values in found.values())
    torch.testing.assert_close(found["loss"].mean().double(), theirs.loss, rtol=1e-6, atol=1e-7)
    columns = classifier.prediction_step(model, batch)
    scores = theirs.logits
    if problem == "regression":
        assert torch.equal(columns["label"].double(), labels)
        gaps = (scores[:, 0] - labels).abs()
        torch.testing.assert_close(found["absolute_error"].double(), gaps, rtol=1e-6, atol=1e-6)
    elif problem == "multi_label_classification":
        assert columns["label"] == [["a", "b"], [], ["3", "b"]]
        right = ((scores > 0) == (labels > 0)).all(-1)
        assert found["accuracy"].tolist() == right.tolist()
        chosen = [[c for c, s in zip(["3", "a", "b"], row, strict=True) if s > 0] for row in scores]
        assert columns["predicted"] == chosen
    else:
        assert columns["label"] == ["0", "1", "0"]
        assert columns["predicted"] == [str(number) for number in scores.argmax(-1).tolist()]
        torch.testing.assert_close(columns["logits"], scores.float())


def test_unknown_labels_of_the_evaluation_are_refused(folder: Path, tmp_path: Path) -> None:
    other = save_rows(tmp_path / "b.jsonl", [{"text": "a", "label": "z"}])
    with pytest.raises(ConfigError, match=r"evaluation: .*has the label 'z', which data does not"):
        task(folder, "bert", evaluation=str(other)).build_data()


def test_a_new_layer_outside_of_an_adapter_is_refused_before_training(
    folder: Path, tmp_path: Path
) -> None:
    save_masked(tmp_path / "masked")  # has no pooler, as the files of most encoders
    adapter: dict[str, Any] = {"r": 2, "targets": ["query"]}
    settings = {"model": str(tmp_path / "masked"), "cache_dir": str(tmp_path)}
    given = task(folder, "bert", adapter=adapter, **settings)
    model = given.build_model()
    with pytest.raises(ConfigError, match=r"pooler.dense.bias.* layers in adapter\.trained"):
        given.saved_part(model)

    named = task(folder, "bert", adapter={**adapter, "trained": ["pooler"]}, **settings)
    fit(tmp_path / "run", named, max_steps=2)  # the export is compared with the trained model
