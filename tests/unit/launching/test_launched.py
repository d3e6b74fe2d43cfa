"""How a job starts on GPUs, which are emulated."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import accelerate
import pytest
import torch
from launchers import launch_file
from plans import launched, plan, request

from trainer import ConfigError, LaunchError, TrainConfig
from trainer.distributed.started_by import Launcher
from trainer.launching import launched as start
from trainer.launching.request import Request

# The files that describe a job


@pytest.mark.parametrize(
    ("launcher", "named", "error", "line"),
    [
        (
            "accelerate",
            {"accel_config": "a.yaml"},
            ConfigError,
            "command line: 'a.yaml': another file describes this job already; remove this one",
        ),
        (
            "torchrun",
            {"accel_config": "a.yaml", "deepspeed": "b.json"},
            ConfigError,
            "command line: 'a.yaml': another file describes this job already; remove this one",
        ),
        (
            "deepspeed",
            {},
            LaunchError,
            "started by the deepspeed launcher, but no configuration: add --deepspeed ds_configs/zero2.json",
        ),
    ],
)
def test_a_job_is_described_by_one_file(
    launcher: Any, named: dict[str, str], error: type[Exception], line: str
) -> None:
    files: dict[str, Any] = {"accel_config": None, "deepspeed": None} | named
    with pytest.raises(error) as refused:
        start.read_request_of(Launcher(name=launcher), **files)
    assert str(refused.value) == line


# GPUs, emulated: what is asked of torch and Accelerate

Calls = dict[str, Any]
SHARDED = {"fsdp_version": 2, "reshard_after_forward": True}
OFFLOADED = SHARDED | {"cpu_offload": True}


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Calls]:
    """Give this process some GPUs, and write down what is done with them."""
    calls: Calls = {}

    def emulate(count: int) -> Calls:
        def connect(**arguments: Any) -> SimpleNamespace:
            calls.update(arguments, local_rank=os.environ.get("LOCAL_RANK"))
            calls["state"] = SimpleNamespace(
                local_process_index=int(os.environ.get("LOCAL_RANK", 0))
            )
            return calls["state"]

        def build(**arguments: Any) -> object:
            calls["seen"] = torch.cuda.device_count()
            return object()

        monkeypatch.setattr(
            os, "environ", {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
        )
        monkeypatch.setattr(
            torch.cuda,
            "device_count",
            lambda: 0 if os.environ.get("CUDA_VISIBLE_DEVICES") == "" else count,
        )
        monkeypatch.setattr(torch.cuda, "set_device", lambda index: calls.update(device=index))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: calls["device"])
        monkeypatch.setattr(accelerate, "PartialState", connect)
        monkeypatch.setattr(accelerate, "Accelerator", build)
        return calls

    return emulate


def started(asks: Request, launcher: Launcher, gpus: int, **settings: Any) -> None:
    made = plan(asks, launcher=launcher, machine=gpus, **settings)
    os.environ["LOCAL_RANK"] = str(launcher.local_rank)
    cls = start.strategy_class(made.strategy)
    start._connect(made, launcher, cls, timedelta(minutes=5))
    start._accelerator(made, cls)


@pytest.mark.parametrize(
    ("asks", "backend"),
    [
        (request("fsdp", fsdp=OFFLOADED), "cuda:nccl,cpu:gloo"),
        (request("zero2"), "nccl"),
    ],
)
def test_processes_on_gpus_are_connected_over_nccl(
    asks: Request, backend: str, gpus: Callable[[int], Calls]
) -> None:
    """And over gloo as well, where gradients lie on the CPU: their norm is added up over ranks
    there.
    """
    calls = gpus(8)
    started(asks, launched(8, local_rank=3), 8)
    assert (calls["backend"], calls["timeout"], calls["device"]) == (
        backend,
        timedelta(minutes=5),
        3,
    )


@pytest.mark.parametrize("strategy", ["single", "ddp", "zero2"])
@pytest.mark.parametrize(
    ("name", "visible", "device"), [("srun", 8, 3), ("srun", 1, 0), ("mpirun", 1, 0)]
)
def test_the_gpu_of_a_process_is_its_own(
    strategy: str, name: str, visible: int, device: int, gpus: Callable[[int], Calls]
) -> None:
    """Where the launcher shows it one only, that is number 0, for DeepSpeed as well, which takes
    the local rank.
    """
    calls = gpus(visible)
    launcher = launched(1 if strategy == "single" else 16, name, local_rank=3, local_world_size=8)
    os.environ["OMPI_COMM_WORLD_LOCAL_RANK"] = "3"
    started(request(strategy), launcher, visible)
    assert calls["device"] == device
    if strategy == "zero2":
        assert (calls["local_rank"], "OMPI_COMM_WORLD_LOCAL_RANK" in os.environ) == (
            str(device),
            False,
        )
    if strategy == "single":
        assert "backend" not in calls, "one process connects to nobody, whatever rank it was given"
    else:
        assert calls["state"].local_process_index == device, "the number that Accelerate takes"


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp"])
def test_use_cpu_hides_the_gpus(
    strategy: str, gpus: Callable[[int], Calls], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = gpus(2)
    world = 1 if strategy == "single" else 2
    file = launch_file(tmp_path / "asked.yaml", strategy, world)
    text = file.read_text().replace("use_cpu: false\n", "")
    file.write_text(f"{text}use_cpu: true\n")
    os.environ.update(RANK="0", WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
    monkeypatch.setattr(start, "_check_accelerator", lambda *_: None)
    made = start.launch(TrainConfig(task="m:T", max_steps=1), accel_config=str(file)).plan
    assert (made.device, made.rehearsal, calls["seen"], "device" in calls) == (
        "cpu",
        strategy != "single",
        0,
        False,
    )
    assert calls.get("backend") == (None if strategy == "single" else "gloo")


def test_another_strategy_than_the_plans_is_refused() -> None:
    """Accelerate may take a process with another rank for a process that is alone."""
    facts = {"num_processes": 2, "device": torch.device("cpu"), "mixed_precision": "no"}
    alone = SimpleNamespace(distributed_type=accelerate.DistributedType.NO, **facts)
    with pytest.raises(LaunchError, match=r"asked for MULTI_, .*, but Accelerate runs NO"):
        start._check_accelerator(plan(launcher=launched(2)), alone)


@pytest.mark.parametrize(
    ("device", "float32", "expected"),
    [
        ("cuda", "exact", ("highest", False)),
        ("cuda", "tf32", ("high", True)),
        ("cpu", "tf32", ("highest", False)),
    ],
)
def test_float32_is_computed_as_the_plan_says(
    device: str,
    float32: str,
    expected: tuple[str, bool],
    gpus: Callable[[int], Calls],
) -> None:
    """torch's own default, without a word, is to compute convolutions in tf32."""
    gpus(1)
    torch.backends.cudnn.allow_tf32 = True
    made = dataclasses.replace(plan(float32=float32, launcher=launched(1)), device=device)
    cls = start.strategy_class(made.strategy)
    start._connect(made, launched(1), cls, timedelta(minutes=5))
    start._accelerator(made, cls)
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == expected
    assert torch.backends.cuda.matmul.allow_tf32 == expected[1], "no error of mixed settings"
