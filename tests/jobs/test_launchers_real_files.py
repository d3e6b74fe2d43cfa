"""Launch files as people have them train as asked, or end with one clear line.

| promised | strategies and worlds | tests |
|---|---|---|
| Optimizer, scheduler and auto of a DeepSpeed JSON hold | ZeRO-2 on 2, deepspeed (nightly) | test_a_deepspeed_json_with_optimizer_scheduler_and_auto |
| A YAML may leave the processes to its launcher | ZeRO-2 on 2, accelerate launch (nightly) | test_a_yaml_that_leaves_the_processes_to_the_launcher |
| Groups of FSDP2 train together | HSDP on 4, accelerate launch (nightly) | test_groups_of_fsdp2_train_together |
| Every file of tests/launch_files trains, or says why not | what the file names, on 2 (nightly) | test_trains_as_asked_or_says_why_not |
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from launchers import ROOT, Job, command, run

WRITTEN = ROOT / "tests/launch_files"
DIGITS = [
    "--task",
    "digits_cnn:DigitsCNN",
    "--max_steps",
    "3",
    "--micro_batch_size",
    "32",
    "--log_every",
    "1",
]


# As `accelerate config` writes it for a model that does not fit.
ZERO3 = """compute_environment: LOCAL_MACHINE
deepspeed_config:
  gradient_accumulation_steps: 2
  gradient_clipping: 1.0
  offload_optimizer_device: cpu
  offload_param_device: cpu
  zero3_init_flag: true
  zero3_save_16bit_model: true
  zero_stage: 3
distributed_type: DEEPSPEED
dynamo_backend: 'no'
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 8
use_cpu: false
"""


# As the guides for transformers' Trainer have it.
ZERO2 = """{
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16},
    "bf16": {"enabled": "auto"},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {"total_num_steps": "auto", "warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": 1}
    },
    "zero_optimization": {
        "stage": 2,
        "offload_optimizer": {"device": "cpu", "pin_memory": true},
        "allgather_partitions": true,
        "allgather_bucket_size": 2e8,
        "overlap_comm": true,
        "reduce_scatter": true,
        "reduce_bucket_size": "auto",
        "contiguous_gradients": true
    },
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": 1.0,
    "steps_per_print": 2000,
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": false
}"""


def rehearse(path: Path, text: str, launcher: str | None = None) -> Job:
    """Write the file for two processes, and start it as it is meant to be, or as it is said."""
    path.write_text(re.sub(r"(?m)^num_processes: \d+", "num_processes: 2", text))
    launcher = launcher or ("deepspeed" if path.suffix == ".json" else "accelerate")
    return run([*command(launcher, str(path)), *DIGITS], path.parent / "run")


def asked_for(path: Path, data: dict[str, Any]) -> str:
    """The strategy that a file names, read anew."""
    if path.suffix == ".json":
        stage = data["zero_optimization"]["stage"]
        return f"zero{stage}" if stage else "ddp"
    kind = data["distributed_type"]
    return (
        f"zero{data['deepspeed_config']['zero_stage']}" if kind == "DEEPSPEED" else STRATEGIES[kind]
    )


STRATEGIES = {"MULTI_GPU": "ddp", "FSDP": "fsdp"}


@pytest.mark.parametrize("launcher", [pytest.param("deepspeed", marks=pytest.mark.slow), "ranks"])
def test_a_deepspeed_json_with_optimizer_scheduler_and_auto(launcher: str, tmp_path: Path) -> None:
    job = rehearse(tmp_path / "ds.json", ZERO2, launcher).ok()
    plan = job.plan
    assert (plan["strategy"], plan["world_size"], plan["mixed_precision"]) == ("zero2", 2, "no")
    assert (plan["optimizer"], plan["schedule"], plan["warmup_steps"]) == ("adamw", "linear", 1)
    assert (plan["lr"], plan["max_grad_norm"], plan["global_batch_size"]) == (1e-3, 1.0, 64)
    rising = 1e-3 * math.log(2) / math.log(3)
    assert [row["lr"] for row in job.rows if "lr" in row] == pytest.approx([rising, 1e-3, 5e-4])
    at = tmp_path / "ds.json"
    assert plan["notices"] == [
        f"{at}:10: scheduler.params.warmup_type: DeepSpeed's default holds, log"
    ]
    assert "warmup_steps" not in (tmp_path / "run/config.yaml").read_text()


@pytest.mark.slow
def test_groups_of_fsdp2_train_together(tmp_path: Path) -> None:
    plan = run([*command("accelerate", "hsdp", 4), *DIGITS], tmp_path / "run").ok().plan
    assert (plan["strategy"], plan["world_size"], plan["distributed_type"]) == ("fsdp", 4, "FSDP")
    assert plan["fsdp"]["dp_replicate_size"] == 2


@pytest.mark.parametrize("launcher", [pytest.param("accelerate", marks=pytest.mark.slow), "ranks"])
def test_a_yaml_that_leaves_the_processes_to_the_launcher(launcher: str, tmp_path: Path) -> None:
    """As people on Slurm have them; with fp16, which accelerate hands over in a variable, and a key
    for TPUs.
    """
    path = tmp_path / "a.yaml"
    path.write_text(
        "distributed_type: DEEPSPEED\ndowncast_bf16: true\nmixed_precision: fp16\nnum_processes: null\n"
        "deepspeed_config:\n  zero_stage: 2\n"
    )
    words = command(launcher, str(path))
    words[-1:-1] = ["--num_processes", "2"] if launcher == "accelerate" else []
    plan = run([*words, *DIGITS, "--warmup_steps", "10"], tmp_path / "run").ok().plan
    assert (plan["strategy"], plan["world_size"], plan["mixed_precision"]) == ("zero2", 2, "bf16")
    assert plan["notices"] == [
        f"{path}:3 (mixed_precision): DeepSpeed has no fp16 on a CPU: rehearsed in bf16",
        "command line: warmup_steps: the warm-up of 10 steps is longer than the run: "
        "the rate never reaches its full value",
    ]


FILES = {"zero3_offload.yaml": ZERO3} | {
    path.name: path.read_text() for path in sorted(WRITTEN.iterdir())
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_trains_as_asked_or_says_why_not(name: str, tmp_path: Path) -> None:
    path, data = tmp_path / name, yaml.safe_load(FILES[name])
    job = rehearse(path, FILES[name])
    if data.get("distributed_type") == "NO":
        kind, count = (
            1 + FILES[name].splitlines().index(one)
            for one in ("distributed_type: 'NO'", "num_processes: 1")
        )
        rule = f"must be 1 under {path}:{kind} (distributed_type); change one of the two"
        assert any(
            line.startswith(f"{path}:{count}: num_processes: 2: {rule}")
            for line in job.err.splitlines()
        ), job.err
        return
    plan = job.ok().plan
    assert (plan["strategy"], plan["world_size"]) == (asked_for(path, data), 2)
    assert plan["mixed_precision"] == "bf16", (
        "also where a JSON says fp16, which DeepSpeed does not have on a CPU"
    )
    assert len(job.losses) == 3
