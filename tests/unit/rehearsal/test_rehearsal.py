"""The parts of a rehearsal that need no fake GPU."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from trainer.commands.rehearse import first_difference
from trainer.errors import LaunchError
from trainer.rehearsal.changes import changes_of
from trainer.rehearsal.collectives import Collective
from trainer.rehearsal.fake_device import FakeDevice
from trainer.rehearsal.job import Job
from trainer.rehearsal.ledger import Ledger

GATHER = {"kind": "all-gather", "ranks": 8, "machines": 1, "bytes": 8 << 30, "dtype": "bfloat16"}


def gathering(**changed: Any) -> Collective:
    return Collective(**{**GATHER, "line": "task.py:1", **changed})


def test_the_time_of_a_collective_follows_its_slowest_link() -> None:
    sent = (8 << 30) * 7 / 8
    assert gathering().seconds("H100") == pytest.approx(sent / 450e9, rel=0.01)
    for gpu in ("RTX4090", "H100-PCIe"):
        assert gathering().seconds(gpu) == pytest.approx(sent / 25e9, rel=0.01)
    assert gathering(machines=2).seconds("H100") == pytest.approx(sent / 50e9, rel=0.01)
    assert gathering(kind="all-reduce").seconds("H100") == pytest.approx(2 * sent / 450e9, rel=0.01)


def test_the_first_collective_that_differs_is_named() -> None:
    same = {"collectives": [gathering()]}
    more = {"collectives": [gathering(), gathering(bytes=1024, line="task.py:7")]}
    elsewhere = {"collectives": [gathering(line="other.py:3")]}
    assert first_difference([same, elsewhere], [0, 5]) == ""
    told = first_difference([same, same, more], [0, 1, 2])
    assert "at collective 2" in told
    assert "rank 0 has ended\n  rank 2 has all-gather of 1.0 KiB over 8 ranks at task.py:7" in told


FSDP = {"fsdp_config": {"fsdp_version": 2}}


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (FSDP, ["fsdp_activation_checkpointing: true", "micro_batch_size: 2"]),
        (
            {"deepspeed_config": {"zero_stage": 2}},
            ["micro_batch_size: 2", "accel_configs/fsdp.yaml"],
        ),
        ({"zero_optimization": {"stage": 3}}, ["micro_batch_size: 2", "accel_configs/fsdp.yaml"]),
    ],
)
def test_the_changes_that_cost_least_are_tried_first(
    file: dict[str, Any], expected: list[str]
) -> None:
    words = ["--task=trainer.language:MaskedLM", "--max_steps=1", "--micro_batch_size=4"]
    words += ["--task_settings.model=m", "--task_settings.data=d"]
    job = Job(launch_file=file, words=words, gpus=8, gpu="H100")
    plan = {"micro_batch_size": 4, "accumulation_steps": 3, "mixed_precision": "fp16"}
    changes = dict(changes_of(job, plan))
    assert list(changes)[:2] == expected
    assert "offload" in list(changes)[-1]
    smaller = changes["micro_batch_size: 2"].words
    assert {"--micro_batch_size=2", "--accumulation_steps=6"} <= {*smaller}
    if "accel_configs/fsdp.yaml" in changes:  # the launch file that goes may have said these
        kept = changes["accel_configs/fsdp.yaml"].words[-3:]
        settings = {"mixed_precision=fp16", "micro_batch_size=4", "accumulation_steps=3"}
        assert {*kept} == {f"--{setting}" for setting in settings}


def test_a_loop_that_waits_for_a_value_ends_with_its_line() -> None:
    device = FakeDevice(Ledger("cuda"))
    for number in range(10_001):
        is_over = number == 10_000
        told = r"test_rehearsal.py:\d+: reads a value of the device 10,000 times in a step"
        with pytest.raises(LaunchError, match=told) if is_over else nullcontext():
            device.wait("reads a value")
