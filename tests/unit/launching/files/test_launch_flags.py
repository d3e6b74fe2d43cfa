"""Flags of accelerate launch: what is read, with and without a file, and every mistake with its one
line.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from launch_texts import DDP, FULL, Write, complaint, flag
from origins import sourced

from trainer.errors import ConfigError, Sourced
from trainer.launching.files.accelerate_file import read_accelerate_file, read_launch_flags


def test_flags_are_read_by_accelerates_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "accelerate.commands.config.config_args.default_config_file", "/nonexistent"
    )
    argv = [
        "--config_file",
        "a.yaml",
        "--num-processes",
        "4",
        "--use_fsdp",
        "train.py",
        "--num_processes",
        "9",
    ]
    path, flags = read_launch_flags(argv)
    assert path == "a.yaml"
    assert flags == flag(4, "num_processes") | flag(True, "use_fsdp")
    assert read_launch_flags(["train.py"]) == (None, {})


def test_default_file_counts_where_it_exists(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    default = write("default_config.yaml", DDP)
    monkeypatch.setattr("accelerate.commands.config.config_args.default_config_file", default)
    assert read_launch_flags(["train.py"]) == (default, {})
    assert read_launch_flags(["--config_file", "a.yaml", "train.py"])[0] == "a.yaml"
    assert read_launch_flags(["--cpu", "train.py"]) == (None, flag(True, "cpu"))


def test_flags_that_accelerate_refuses() -> None:
    with pytest.raises(ConfigError) as caught:
        read_launch_flags(["--num_processes", "two", "train.py"])
    expected = "command line: accelerate launch: argument --num_processes/--num-processes: invalid int value: 'two'"
    assert str(caught.value) == expected


def test_a_flag_wins_over_its_file(write: Write) -> None:
    path = write("a.yaml", f"{DDP}mixed_precision: bf16\nfsdp_config:\n  fsdp_version: 1\n")
    typed = (
        flag(4, "num_processes")
        | flag("no", "mixed_precision")
        | flag(True, "use_fsdp")
        | flag("2", "fsdp_version")
    )
    request = read_accelerate_file(path, overrides=typed)
    assert (request.strategy, str(request.strategy_origin)) == ("fsdp", "command line (--use_fsdp)")
    assert request.world_size == sourced(4, "command line (--num_processes)")
    assert request.mixed_precision == sourced("no", "command line (--mixed_precision)")
    assert request.notices == ()


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        (flag(0, "num_processes"), "command line: --num_processes: 0: must be at least 1"),
        (
            flag(2, "zero_stage"),
            "command line: --zero_stage: 2: has no effect without --use_deepspeed; add that, or remove this",
        ),
        (
            flag("2", "fsdp_version"),
            "command line: --fsdp_version: '2': has no effect without --use_fsdp; add that, or remove this",
        ),
        (
            flag(True, "cpu"),
            "command line: --cpu: true: makes accelerate start one process; leave it out to rehearse without a GPU",
        ),
        (
            flag(True, "use_megatron_lm"),
            "command line: --use_megatron_lm: 'MEGATRON_LM': must be a type that samecurve runs; "
            "known: DEEPSPEED, FSDP, MULTI_GPU, NO",
        ),
        (
            flag(True, "use_deepspeed") | flag(4, "zero_stage"),
            "command line: --zero_stage: 4: must be 0, 1, 2 or 3",
        ),
    ],
)
def test_a_mistake_in_flags_is_one_line(
    write: Write, typed: dict[str, Sourced[Any]], line: str
) -> None:
    assert complaint(lambda: read_accelerate_file(write("a.yaml", DDP), overrides=typed)) == line


def test_flag_beside_a_json(write: Write) -> None:
    write("ds.json", json.dumps(FULL))
    typed = (
        flag(True, "use_deepspeed")
        | flag("ds.json", "deepspeed_config_file")
        | flag(2, "num_processes")
    )
    assert read_accelerate_file(None, overrides=typed).strategy == "zero2"
    assert complaint(
        lambda: read_accelerate_file(None, overrides=typed | flag(3, "zero_stage"))
    ) == (
        "command line: --zero_stage: 3: stands beside command line (--deepspeed_config_file), which must say it; "
        "remove it here"
    )
    full = json.dumps({**FULL, "bf16": {"enabled": True}, "fp16": {"enabled": False}})
    write("ds.json", full)
    assert complaint(
        lambda: read_accelerate_file(None, overrides=typed | flag("no", "mixed_precision"))
    ) == (
        "command line: --mixed_precision: 'no': disagrees with 'bf16' at ds.json:1 (bf16.enabled); keep one of them"
    )


def test_launch_without_a_file(gpus: Callable[[int], None]) -> None:
    gpus(0)
    single = read_accelerate_file(None, overrides={})
    assert (single.strategy, single.files) == ("single", ())
    assert single.world_size == sourced(1, "command line (accelerate launch)")
    on_cpu = read_accelerate_file(None, overrides=flag(True, "cpu"))
    assert (on_cpu.strategy, on_cpu.use_cpu) == ("single", True)
    ddp = read_accelerate_file(None, overrides=flag(True, "multi_gpu") | flag(2, "num_processes"))
    assert (ddp.strategy, ddp.world_size) == ("ddp", sourced(2, "command line (--num_processes)"))


def test_launch_without_a_file_on_gpus(gpus: Callable[[int], None]) -> None:
    """As in Accelerate: several GPUs mean DDP on all of them, unless one process is asked for."""
    gpus(4)
    every = read_accelerate_file(None, overrides={})
    assert (every.strategy, every.world_size) == ("ddp", None), "as many as the launcher started"
    assert read_accelerate_file(None, overrides=flag(1, "num_processes")).strategy == "single"


def test_launch_without_a_file_starts_one_process(gpus: Callable[[int], None]) -> None:
    gpus(0)
    for typed, asks in (({}, "accelerate launch"), (flag(True, "cpu"), "--cpu")):
        assert complaint(
            lambda typed=typed: read_accelerate_file(
                None, overrides=typed | flag(2, "num_processes")
            )
        ) == (
            f"command line: --num_processes: 2: accelerate starts one process under command line ({asks}); write 1, or "
            "ask for distributed_type: MULTI_GPU (--multi_gpu), which rehearses on the CPU where there is no GPU"
        )
