"""Several evaluation sets have the same values everywhere, and trying them out changes nothing.

| promised | strategies and worlds | tests |
|---|---|---|
| Sets that the ranks cannot share evenly have the values of one process, each at its own steps | all on 2 | test_values_of_each_set_are_those_of_one_process |
| A run is equal to the bit with and without a sanity evaluation | one process; all on 2 | test_the_sanity_evaluation_changes_no_bit |
| A run that is resumed in the middle is equal to the bit | one process; all on 2 | test_a_resumed_run_is_equal_to_the_bit |

One job a strategy; "all" is DDP in the quick tests, the others nightly.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launchers import json_in, some_quick, worked, wrapper_of

QUICK = some_quick("ddp")
AND_ONE_PROCESS = ["single", *QUICK]


@cache
def results(strategy: str, folder: Path) -> dict[str, dict[str, Any]]:
    """What is left of each training of ``tests/workers/evaluation_sets.py``."""
    here = folder / strategy
    here.mkdir()
    world = 0 if strategy == "single" else 2
    words = ["tests/workers/evaluation_sets.py", f"accel_configs/{strategy}.yaml", str(here)]
    worked(words, world)
    found = json_in(here / "results.json")
    model = "Sequential" if strategy == "single" else wrapper_of(strategy)
    for training in found.values():
        assert training["world"] == max(world, 1) and training["model"].startswith(model)
    return found


def evaluations(training: dict[str, Any], name: str) -> dict[int, dict[str, float]]:
    """Return the values of a set by step."""
    found: dict[int, dict[str, float]] = {}
    for row in training["rows"]:
        values = {key: value for key, value in row.items() if key.startswith(f"eval/{name}/")}
        if values:
            found[row["step"]] = values
    return found


@pytest.mark.parametrize("strategy", QUICK)
def test_values_of_each_set_are_those_of_one_process(strategy: str, folder: Path) -> None:
    alone, divided = results("single", folder)["calm"], results(strategy, folder)["calm"]
    steps = {"seven": [3, 5, 7, 9, 12], "one": [2, 4, 6, 8, 10, 12]}  # an epoch has nine
    for name, expected in steps.items():
        reference, values = evaluations(alone, name), evaluations(divided, name)
        assert list(reference) == list(values) == expected
        for step in expected:
            assert values[step] == pytest.approx(reference[step], rel=1e-5, abs=1e-6), step

    last = divided["last"]
    names = {name.removeprefix("eval/") for name in last}
    own = {"one/ids", "one/logit/0", "one/logit/1", "one/logit/2", "one/logit/3"}
    assert names == {"seven/loss", "seven/accuracy", "seven/order"} | own
    assert divided["steps"] == [f"step-{step:08}" for step in (3, 6, 9, 12)]
    assert last == evaluations(divided, "seven")[12] | evaluations(divided, "one")[12]


@pytest.mark.parametrize("strategy", AND_ONE_PROCESS)
def test_the_sanity_evaluation_changes_no_bit(strategy: str, folder: Path) -> None:
    found = results(strategy, folder)
    assert found["restless"] == found["without"]


@pytest.mark.parametrize("strategy", AND_ONE_PROCESS)
def test_a_resumed_run_is_equal_to_the_bit(strategy: str, folder: Path) -> None:
    found = results(strategy, folder)
    whole, resumed = found["restless"], found["resumed"]
    assert resumed["rows"] == [row for row in whole["rows"] if row["step"] > 6]
    for key in ("last", "saved"):
        assert resumed[key] == whole[key], key
    if whole["summary"]["step"] > 6:  # else it has no best/ in its folder, and begins anew
        for key in ("best", "summary", "kept"):
            assert resumed[key] == whole[key], key
