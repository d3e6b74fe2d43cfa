"""Ranks that would not train the same thing: one line on every rank, before the first step, under
every strategy.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launchers import ROOT, ranks, some_quick
from unlike import CASES

SAME_SETTINGS = ": every rank must run with the same settings"
SAME_DATA = ": build_data must give every rank the same data, which the trainer divides: do not shard it by rank"
SAME_MODEL = (
    ": build_model and build_optimizer must build the same on every rank, in the same order"
)
DRAWN = r"\.\.\. on rank 0: build_model must draw the same on every rank"
CHECKSUM = r"Tensor 4 with checksum [0-9a-f]{8}"
OTHER_X = rf"of Data.train is {CHECKSUM}, rank 0: {CHECKSUM}{SAME_DATA}"

REFUSED = {
    "lr": f"ConfigError: rank 1: lr is 0.1, rank 0: 0.001{SAME_SETTINGS}",
    "seed": f"ConfigError: rank 1: seed is 1, rank 0: 0{SAME_SETTINGS}",
    "precision": f"ConfigError: rank 1: mixed_precision is bf16, rank 0: null{SAME_SETTINGS}",
    "ema": f"ConfigError: rank 1: ema_decay is 0.9, rank 0: null{SAME_SETTINGS}",
    "micro batch": f"ConfigError: rank 1: micro_batch_size is 2, rank 0: 4{SAME_SETTINGS}",
    "weight decay": f"ConfigError: rank 1: weight_decay is 0.5, rank 0: 0.01{SAME_SETTINGS}",
    "eval_every": f"ConfigError: rank 1: eval_every is 2, rank 0: null{SAME_SETTINGS}",
    "workers": f"ConfigError: rank 1: workers is 1, rank 0: 0{SAME_SETTINGS}",
    "task settings": f"ConfigError: rank 1: task_settings.width is 16, rank 0: 8{SAME_SETTINGS}",
    "class ids": f"DataError: rank 1: 'y' of sample 0 of Data.train is 5, rank 0: 0{SAME_DATA}",
    "class ids of evaluation": f"DataError: rank 1: 'y' of sample 0 of Data.evaluation is 5, rank 0: 0{SAME_DATA}",
    "vocabulary of collate": "DataError: rank 1: the value of the batch of samples 0, 23, ",
    "order of the data": rf"DataError: rank 1: 'x' of sample 0 {OTHER_X}",
    "data by default_rng": rf"DataError: rank 1: 'x' of sample \d+ {OTHER_X}",
    "sharded data": rf"DataError: rank 1: 'x' of sample 0 {OTHER_X}",
    "sizes of the data": f"DataError: rank 1: the number of samples of Data.train is 23, rank 0: 24{SAME_DATA}",
    "frozen buffer": rf"LaunchError: rank 1: the first weights of frozen differ: .* here, .*{DRAWN}",
    "order of parameters": (
        r"LaunchError: rank 1: parameter 0 is heads.beta.weight \(1, 4\) torch.float32 trainable, "
        rf"rank 0: heads.alpha.weight \(1, 4\) torch.float32 trainable{SAME_MODEL}"
    ),
    "first weights": rf"LaunchError: rank 1: the first weights of 0.weight differ: .* here, .*{DRAWN}",
    "frozen layer": (
        r"LaunchError: rank 1: parameter 0 is 0.weight \(8, 4\) torch.float32 frozen, "
        rf"rank 0: 0.weight \(8, 4\) torch.float32 trainable{SAME_MODEL}"
    ),
    "rate of a group": f"LaunchError: rank 1: optimizer group 1: lr is 0.002, rank 0: 0.001{SAME_MODEL}",
    "max_norm": "LaunchError: 0 has max_norm, by which each process would scale the rows of its own batch alone",
}
TRAINED = ("noise of its own", "last bits")


@cache
def results(how: str, folder: Path) -> dict[str, list[dict[str, Any]]]:
    told = {
        "file": {"accel_config": str(ROOT / "accel_configs" / f"{how}.yaml")},
        "folder": str(folder),
        "names": [*CASES],
    }
    done = ranks(["tests/workers/unlike.py", json.dumps(told)], timeout=400)
    assert done.returncode == 0, done.stderr[-6000:]
    return {
        name: [json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in (0, 1)]
        for name in CASES
    }


@pytest.mark.parametrize("how", some_quick("ddp"))
def test_the_first_difference_is_told_before_the_first_step(how: str, tmp_path: Path) -> None:
    found = results(how, tmp_path)
    assert REFUSED.keys() | set(TRAINED) == CASES.keys()
    for name, line in REFUSED.items():
        zero, one = found[name]
        assert zero == one and zero["step"] == 0, (name, zero, one)
        assert re.match(line, zero["error"]), (name, zero["error"])
        assert "\n" not in zero["error"]


@pytest.mark.parametrize("how", some_quick("ddp"))
def test_what_is_no_difference_trains(how: str, tmp_path: Path) -> None:
    found = results(how, tmp_path)
    assert all(found[name] == [{"step": 2}, {"step": 2}] for name in TRAINED)
