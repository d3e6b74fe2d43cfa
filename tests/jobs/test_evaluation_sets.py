"""Several evaluation sets have the same values everywhere, and trying them out changes nothing.

| promised | strategies and worlds | tests |
|---|---|---|
| Sets that the ranks cannot share evenly have the values of one process, those of torchmetrics too, each at its own steps | all on 2 | test_values_of_each_set_are_those_of_one_process |
| A run is equal to the bit with and without a sanity evaluation | one process; all on 2 | test_the_sanity_evaluation_changes_no_bit |
| A run that is resumed in the middle is equal to the bit | one process; all on 2 | test_a_resumed_run_is_equal_to_the_bit |

One job a strategy; "all" is DDP in the quick tests, the others nightly.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launchers import Job, json_in, some_quick, trained

QUICK = some_quick("ddp")
AND_ONE_PROCESS = ["single", *QUICK]
CONFIG = {
    **{"task": "evaluation_sets:TwoSets", "optimizer": "sgd", "lr": 0.05, "max_steps": 12},
    **{"global_batch_size": 4, "evaluation_batch_size": 2, "best_metric": "eval/seven/loss"},
    **{"log_every": 1, "save_every": "1/3 epoch", "keep_last": 9},
}


@cache
def results(strategy: str, folder: Path) -> dict[str, Job]:
    here = folder / strategy
    restless = {"task_settings": {"norm": True, "dropout": 0.2}}
    middle = here / "restless/checkpoints/step-00000006"
    cases: dict[str, dict[str, Any]] = {
        "calm": {"task_settings": {"norm": False}},
        "restless": restless,
        "without": {**restless, "sanity_evaluation": False},
        "resumed": {**restless, "resume": str(middle)},
    }
    micro = {"micro_batch_size": 4 if strategy == "single" else 2}
    configs = {name: {**CONFIG, **micro, **case} for name, case in cases.items()}
    return trained(strategy, here, configs)


def rows(job: Job, since: int = 0) -> list[dict[str, Any]]:
    """Return losses, norms and evaluations."""
    return [
        {key: row[key] for key in row if key in ("step", "loss", "grad_norm") or "eval/" in key}
        for row in job.rows
        if row["step"] > since
    ]


def evaluations(job: Job, name: str) -> dict[int, dict[str, float]]:
    """Return the values of a set by step."""
    found = {
        row["step"]: {key: row[key] for key in row if key.startswith(f"eval/{name}/")}
        for row in job.rows
    }
    return {step: values for step, values in found.items() if values}


def left(job: Job, names: str) -> list[Any]:
    """Return files of a run's folder, and the best evaluation of its summary."""
    best = json_in(job.output_dir / "summary.json")["best"]
    return [best, *((job.output_dir / name).read_bytes() for name in names.split())]


@pytest.mark.parametrize("strategy", QUICK)
def test_values_of_each_set_are_those_of_one_process(strategy: str, folder: Path) -> None:
    alone, divided = results("single", folder)["calm"], results(strategy, folder)["calm"]
    steps = {"seven": [3, 5, 7, 9, 12], "one": [2, 4, 6, 8, 10, 12]}  # an epoch has nine
    for name, expected in steps.items():
        reference, values = evaluations(alone, name), evaluations(divided, name)
        assert list(reference) == list(values) == expected
        for step in expected:
            assert values[step] == pytest.approx(reference[step], rel=1e-5, abs=1e-6), step

    last = json_in(divided.output_dir / "summary.json")["evaluation"]
    names = {name.removeprefix("eval/") for name in last}
    own = {"one/ids", "one/logit/0", "one/logit/1", "one/logit/2", "one/logit/3"}
    assert names == {"seven/loss", "seven/accuracy", "seven/order"} | own
    saved = sorted(path.name for path in (divided.output_dir / "checkpoints").iterdir())
    assert saved == [f"step-{step:08}" for step in (3, 6, 9, 12)]
    assert last == evaluations(divided, "seven")[12] | evaluations(divided, "one")[12]


@pytest.mark.parametrize("strategy", AND_ONE_PROCESS)
def test_the_sanity_evaluation_changes_no_bit(strategy: str, folder: Path) -> None:
    restless, without = (results(strategy, folder)[name] for name in ("restless", "without"))
    assert rows(restless) == rows(without)
    names = "model/model.safetensors best/model.safetensors best/best.json"
    assert left(restless, names) == left(without, names)


@pytest.mark.parametrize("strategy", AND_ONE_PROCESS)
def test_a_resumed_run_is_equal_to_the_bit(strategy: str, folder: Path) -> None:
    whole, resumed = (results(strategy, folder)[name] for name in ("restless", "resumed"))
    assert rows(resumed) == rows(whole, since=6)
    model = "model/model.safetensors"
    assert left(resumed, model)[1] == left(whole, model)[1]
    best = "best/model.safetensors best/best.json"
    # Else it has no best/ in its folder, and begins anew.
    assert left(whole, best)[0]["step"] <= 6 or left(resumed, best) == left(whole, best)
