"""Predictions: each example once, in the order of the data, as JSON lines or parquet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from evaluated import Sign
from torch import nn

import trainer
from trainer import ConfigError, DataError, TrainConfig, TrainerError
from trainer.builder import build_for_evaluation
from trainer.commands import predictions
from trainer.commands.predictions import (
    JsonLines,
    Parquet,
    check_file,
    file_of_set,
    write_predictions,
)
from trainer.run import Run

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


def built(folder: Path, **settings: Any) -> Run:
    config = TrainConfig(
        task="evaluated:Sign", max_steps=1, output_dir=str(folder), evaluation_batch_size=8
    )
    return build_for_evaluation(Sign(**settings), config, None)


def predicted_at_once(run: Run) -> dict[str, Any]:
    """What the model predicts for the whole evaluation set as one batch."""
    items = Sign().build_data().evaluation
    batch = (
        torch.stack([values for values, _ in items]),
        torch.tensor([label for _, label in items]),
    )
    run.model.eval()
    with torch.no_grad():
        return dict(run.task.prediction_step(run.model, batch))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_every_example_once_in_the_order_of_the_data(
    ending: str, stream: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictions, "GROUP_ROWS", 10)
    run = built(tmp_path, stream=stream)
    path = tmp_path / "new" / f"predictions.{ending}"
    assert write_predictions(run, run.evaluation_sets[""], path) == 23
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]

    if ending == "jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    else:
        file = pyarrow.parquet.ParquetFile(path)
        assert [file.metadata.row_group(n).num_rows for n in range(2)] == [16, 7], "as they came"
        assert str(file.schema_arrow.field("logits").type) == "list<element: float>"
        rows = file.read().to_pylist()
    expected = predicted_at_once(run)
    assert [row["index"] for row in rows] == list(range(23))
    assert [row["label"] for row in rows] == expected["label"].tolist()
    assert [row["name"] for row in rows] == expected["name"]
    torch.testing.assert_close(torch.tensor([row["logits"] for row in rows]), expected["logits"])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("one number", "'mean' is a Tensor without an entry for each example"),
        ("too few", "'name' has 7 entries for a batch of 8 examples"),
        ("index", "'index' is the place in the data set; rename yours"),
        ("no names", "must return values by name, .* it returned a Tensor"),
        (
            "other names",
            r"returned \['label', 'logits'\] for one batch and \['label', 'logits', 'n",
        ),
    ],
)
def test_what_is_no_column_is_refused_and_leaves_no_file(
    wrong: str, message: str, tmp_path: Path
) -> None:
    run = built(tmp_path / "run", wrong=wrong)
    path = tmp_path / "predictions.jsonl"
    path.write_text("of before")
    with pytest.raises(DataError, match=message):
        write_predictions(run, run.evaluation_sets[""], path)
    assert path.read_text() == "of before"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


class Values(Sign):
    """Predictions of many types."""

    def prediction_step(self, model: nn.Module, batch: Any) -> Any:
        count = len(batch[1])
        return {
            "not finite": torch.tensor([float("nan"), float("inf"), *range(2, count)]),
            "half": torch.full((count,), 0.5, dtype=torch.bfloat16),
            "matrix": torch.arange(count * 4.0).view(count, 2, 2),
            "array": np.arange(count, dtype=np.int16),
            "of other lengths": [torch.arange(number) for number in range(count)],
            "yes": [number % 2 == 0 for number in range(count)],
            "text": tuple(f"é{number}" for number in range(count)),
        }


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_values_of_many_types(ending: str, tmp_path: Path) -> None:
    run = built(tmp_path)
    run.task = Values()
    path = tmp_path / f"values.{ending}"
    write_predictions(run, run.evaluation_sets[""], path)
    if ending == "jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert [row["not finite"] for row in rows[:3]] == [None, None, 2.0]
    else:
        rows = pyarrow.parquet.read_table(path).to_pylist()
        assert np.isnan(rows[0]["not finite"]) and rows[1]["not finite"] == np.inf
    assert rows[3] == {
        "index": 3,
        "not finite": 3.0,
        "half": 0.5,
        "matrix": [[12.0, 13.0], [14.0, 15.0]],
        "array": 3,
        "of other lengths": [0, 1, 2],
        "yes": False,
        "text": "é3",
    }


class Moments(Sign):
    """Predictions that say when and on which set they are made."""

    def prediction_step(self, model: nn.Module, batch: Any) -> Any:
        moment = trainer.now()
        count = len(batch[1])
        return {"set": [moment.evaluation_set] * count, "step": [moment.step] * count}


def test_a_prediction_knows_its_set_and_the_steps_of_its_model(tmp_path: Path) -> None:
    run = built(tmp_path, named=True)
    run.task = Moments(named=True)
    run.step = 7
    for name, count in (("clean", 23), ("first", 7)):
        path = tmp_path / f"{name}.jsonl"
        assert write_predictions(run, run.evaluation_sets[name], path) == count
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert rows == [{"index": index, "set": name, "step": 7} for index in range(count)]
    with pytest.raises(TrainerError, match="nothing is trained or evaluated here"):
        trainer.now()


def test_a_column_keeps_its_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "GROUP_ROWS", 2)
    file = Parquet(tmp_path / "p.parquet")
    file.add({"score": [None, None]}, 2)
    with pytest.raises(
        DataError, match=r"'score' cannot be a column .* it is double, and was null"
    ):
        file.add({"score": [0.5, 1.5]}, 2)
    file.discard()

    file = Parquet(tmp_path / "q.parquet")
    file.add({"score": [None]}, 1)
    file.add({"score": [0.5, None]}, 2)
    file.add({"score": [None, None]}, 2)
    file.finish()
    assert pyarrow.parquet.read_table(tmp_path / "q.parquet")["score"].to_pylist() == [
        None, 0.5, None, None, None,
    ]  # fmt: skip
    assert [entry.name for entry in tmp_path.iterdir()] == ["q.parquet"]


def test_what_json_cannot_hold_is_named(tmp_path: Path) -> None:
    file = JsonLines(tmp_path / "p.jsonl")
    with pytest.raises(DataError, match=r"example 0 cannot be written: .*set is not JSON"):
        file.add({"a": [set()]}, 1)
    file.discard()
    assert not list(tmp_path.iterdir())


def test_names_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert file_of_set(Path("out/p.jsonl"), "") == Path("out/p.jsonl")
    assert file_of_set(Path("out/p.jsonl"), "clean") == Path("out/p.clean.jsonl")
    check_file(tmp_path / "p.parquet")
    with pytest.raises(ConfigError, match=r"ends in neither .jsonl nor .parquet"):
        check_file(tmp_path / "p.json")
    (tmp_path / "p.jsonl").mkdir()
    with pytest.raises(ConfigError, match="is a folder; name a file"):
        check_file(tmp_path / "p.jsonl")

    monkeypatch.setattr(predictions, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs the package pyarrow: pip install pyarrow"):
        check_file(tmp_path / "p.parquet")
