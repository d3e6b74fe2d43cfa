"""A run is evaluated under any strategy and on any number of processes, without a training.

| promised | strategies and worlds | tests |
|---|---|---|
| Values are those that the run reported, and predictions are each example once, in one order | one process, DDP on 2; all on 2, DDP on 3 (nightly) | test_values_and_predictions_are_the_same_everywhere |
| A stream has its own order | DDP on 3 (nightly) | test_a_stream_is_predicted_in_its_order |
| A rank holds its part of the parameters, and no state of an optimizer | DDP on 2; all on 2 (nightly) | test_nothing_is_kept_beside_the_parameters |
| It is started with the words of a training | deepspeed (nightly) | test_launchers_start_it_as_they_start_a_training |
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launchers import (
    STRATEGIES,
    command,
    completed,
    deepspeed_launcher,
    json_in,
    json_lines,
    launch_file,
    run,
    slow_but,
    some_quick,
    worked,
)

DIGITS = [
    *(
        "--config",
        "examples/configs/digits_cnn.yaml",
        "--epochs",
        "1",
        "--task_settings.width",
        "8",
    ),
    *("--save_every", "20", "--ema_decay", "0.9"),
]
HELD_OUT = 359  # digits: neither 2 nor 3 processes divide them


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that two processes under DDP have trained."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    job = run([*command("ranks", "ddp"), *DIGITS], folder).ok()
    assert (job.plan["strategy"], job.plan["world_size"]) == ("ddp", 2)
    return folder


def evaluate(
    folder: Path, strategy: str, world: int, into: Path, *words: str
) -> tuple[dict[str, Any], Path]:
    """Evaluate a run on a layout; return what was written of the values, and the predictions."""
    how = launch_file(into / f"{strategy}{world}.yaml", strategy, world)
    predictions = into / f"{strategy}{world}.jsonl"
    out = into / f"{strategy}{world}.json"
    worked(
        [
            "tests/workers/evaluating.py",
            "evaluate",
            str(folder),
            *("--accel_config", str(how)),
            *("--out", str(out), "--predictions", str(predictions)),
            *words,
        ],
        world if world > 1 else 0,
    )
    values = json_in(out)
    assert (values["strategy"], values["world_size"]) == (strategy, world)
    return values, predictions


def reported(folder: Path) -> dict[str, float]:
    """What the run itself reported at its end."""
    rows = json_lines(folder / "metrics.jsonl")
    [row] = [row for row in rows if row["step"] == 23 and "eval/loss" in row]
    return {name: value for name, value in row.items() if name.startswith("eval/")}


@cache
def of_one_process(folder: Path) -> list[dict[str, Any]]:
    _, predictions = evaluate(folder, "single", 1, folder.parent)
    return json_lines(predictions)


LAYOUTS = [
    ("single", 1),
    *((strategy, 2) for strategy in STRATEGIES),
    ("ddp", 3),
]


@pytest.mark.parametrize(("strategy", "world"), slow_but([("single", 1), ("ddp", 2)], LAYOUTS))
def test_values_and_predictions_are_the_same_everywhere(
    strategy: str, world: int, digits: Path, tmp_path: Path
) -> None:
    """359 examples are divided by none of the numbers of processes."""
    values, predictions = evaluate(digits, strategy, world, tmp_path)
    if (strategy, world) == ("ddp", 2):
        assert values["values"] == reported(digits), "to the bit on the layout of the run"
    assert values["values"] == pytest.approx(reported(digits), rel=1e-6, abs=1e-9)
    assert values["predictions"] == {str(predictions): HELD_OUT}

    rows, expected = json_lines(predictions), of_one_process(digits)
    assert [row["index"] for row in rows] == list(range(HELD_OUT))
    assert [(row["label"], row["predicted"]) for row in rows] == [
        (row["label"], row["predicted"]) for row in expected
    ]
    probabilities = [row["probability"] for row in rows]
    assert probabilities == pytest.approx([row["probability"] for row in expected], rel=1e-6)
    if world < 3:
        assert rows == expected

    newest = max((digits / "checkpoints").glob("step-*"))
    checkpoint, _ = evaluate(newest, strategy, world, tmp_path)
    assert checkpoint["values"] == values["values"], "with the moving average"


@pytest.mark.slow
def test_a_stream_is_predicted_in_its_order(tmp_path: Path) -> None:
    folder = tmp_path / "stream"
    how = launch_file(tmp_path / "two.yaml", "ddp")
    words = ["train", "--task", "evaluated:Sign", "--max_steps", "3", "--accel_config", str(how)]
    settings = ["--task_settings.stream", "true", "--output_dir", str(folder)]
    worked(["tests/workers/evaluating.py", *words, *settings])
    values, predictions = evaluate(folder, "ddp", 3, tmp_path, "--evaluation_batch_size", "4")
    alone, of_one = evaluate(folder, "single", 1, tmp_path)
    assert values["values"] == pytest.approx(alone["values"], rel=1e-6)
    rows, expected = json_lines(predictions), json_lines(of_one)
    assert [row["index"] for row in rows] == list(range(23))
    assert [row["label"] for row in rows] == [row["label"] for row in expected]
    for row, other in zip(rows, expected, strict=True):
        assert row["logits"] == pytest.approx(other["logits"], rel=1e-5)


@pytest.mark.parametrize("strategy", some_quick("ddp"))
def test_nothing_is_kept_beside_the_parameters(strategy: str, digits: Path, tmp_path: Path) -> None:
    """Of a training with Adam a rank of DDP holds four times the parameters."""
    values, _ = evaluate(digits, strategy, 2, tmp_path)
    parameters = 4 * values["parameters"]
    whole = strategy in ("ddp", "zero1", "zero2")
    share = 1.0 if whole else 0.5
    # ZeRO-3 keeps small parameters whole beside their slices.
    most = 1.5 if strategy == "zero3" else share
    assert share * parameters <= values["state_bytes_per_rank"] < 1.1 * most * parameters


@pytest.mark.slow
def test_launchers_start_it_as_they_start_a_training(digits: Path, tmp_path: Path) -> None:
    out = tmp_path / "values.json"
    words = deepspeed_launcher()
    words += ["--module", "trainer", "evaluate", str(digits), "--out", str(out)]
    done = completed([*words, "--deepspeed", "ds_configs/zero3.json"])
    assert done.returncode == 0, done.stdout + done.stderr
    values = json_in(out)
    assert (values["strategy"], values["world_size"]) == ("zero3", 2)
    assert values["launcher"] == "deepspeed"
    assert values["values"] == pytest.approx(reported(digits), rel=1e-6, abs=1e-9)
