"""What is refused, through the real launchers: one line, on every rank, before the first step."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from launchers import BIN, Job, command, free_port, run

DIGITS = [
    "--config",
    "examples/configs/digits_cnn.yaml",
    "--max_steps",
    "2",
    "--log_every",
    "1",
    "--warmup_steps",
    "0",
]
DDP = "distributed_type: MULTI_GPU\nnum_processes: 2\n"
TYPOS = "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n  zero_stge: 3\n  gradient_cliping: 1.0\n"
ALONE = ["ranks", "0"]  # plain python, without its seconds
FSDP = "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  fsdp_version: 2\n"


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def answered(job: Job, *lines: str) -> None:
    """The job failed with these lines, told by one rank, and again at the end of torchrun's or
    accelerate's report.
    """
    assert job.code != 0
    # Before its report an elastic launcher logs the failure, with a letter, a date and a time.
    ours, report, _ = re.match(
        r"(.*?)(^[WE]\d{4} .*|^Traceback .*|\Z)(.*)", job.err, flags=re.S | re.M
    ).groups()
    told = [line for line in ours.splitlines() if line]
    assert [re.sub(r"^rank \d: ", "", line) for line in told] == list(lines), job.err
    if "Root Cause" in report:
        cause = report.rpartition("Root Cause")[2]
        assert re.search(r"exitcode  : 2 ", cause), "the rank itself exits with 2"
        assert all(line in cause for line in lines)
    assert not (job.output_dir / "metrics.jsonl").exists()


# Files that a launcher takes without a word


@pytest.mark.parametrize(
    "launcher", ["accelerate", pytest.param("torchrun", marks=pytest.mark.slow)]
)
def test_nested_typos(launcher: str, tmp_path: Path) -> None:
    yaml = written(tmp_path / "a.yaml", TYPOS)
    job = run([*command(launcher, yaml), *DIGITS], tmp_path / "run")
    answered(
        job,
        f"{yaml}:4: deepspeed_config.zero_stge: 3: unknown key; did you mean 'zero_stage'?",
        f"{yaml}:5: deepspeed_config.gradient_cliping: 1.0: unknown key; did you mean 'gradient_clipping'?",
    )


@pytest.mark.slow  # the line is a unit test's
def test_a_typo_in_a_deepspeed_json(tmp_path: Path) -> None:
    path = written(
        tmp_path / "ds.json", '{\n"zero_optimization": {"stage": 2},\n"gradient_cliping": 1.0\n}'
    )
    job = run([*command("deepspeed", path), *DIGITS], tmp_path / "run")
    answered(
        job, f"{path}:3: gradient_cliping: 1.0: unknown key; did you mean 'gradient_clipping'?"
    )


# Fewer processes than were asked for


# the line itself is a unit test's, as are the next one's and that of torchrun's three
@pytest.mark.slow
def test_multi_cpu_would_be_one_process(tmp_path: Path) -> None:
    yaml = written(
        tmp_path / "a.yaml", "distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n"
    )
    job = run([*command("accelerate", yaml), *DIGITS], tmp_path / "run")
    answered(
        job,
        f"{yaml}:1: distributed_type: 'MULTI_CPU': must be a type that samecurve runs; accelerate starts one process "
        "for it; write MULTI_GPU with use_cpu: false, which rehearses on the CPU where there is no GPU, or for one "
        "process 'NO' with use_cpu: true",
    )


@pytest.mark.slow
def test_the_cpu_flag_would_be_one_process(tmp_path: Path) -> None:
    defaults = [
        "--num_machines",
        "1",
        "--mixed_precision",
        "no",
        "--dynamo_backend",
        "no",
    ]  # said, or they are listed
    words = [
        str(BIN / "accelerate"),
        "launch",
        "--cpu",
        "--num_processes",
        "2",
        *defaults,
        "examples/train.py",
    ]
    job = run([*words, *DIGITS], tmp_path / "run")
    answered(
        job,
        "command line: --num_processes: 2: accelerate starts one process under command line (--cpu); write 1, or ask "
        "for distributed_type: MULTI_GPU (--multi_gpu), which rehearses on the CPU where there is no GPU",
    )


def test_use_cpu_runs_the_strategy_that_was_asked_for(tmp_path: Path) -> None:
    """Accelerate makes plain DDP of it."""
    yaml = written(tmp_path / "a.yaml", f"{FSDP}use_cpu: true\n")
    plan = run([*command("accelerate", yaml), *DIGITS], tmp_path / "run").ok().plan
    assert (plan["strategy"], plan["world_size"], plan["device"]) == ("fsdp", 2, "cpu")
    assert (plan["distributed_type"], plan["model_class"]) == ("FSDP", "FSDPSequential")


@pytest.mark.slow
def test_torchrun_starts_more_than_the_file_asks_for(tmp_path: Path) -> None:
    yaml = written(tmp_path / "a.yaml", DDP)
    job = run([*command("torchrun", yaml, world=3), *DIGITS], tmp_path / "run")
    answered(
        job,
        f"{yaml}:2 (num_processes): asks for 2 processes, but 3 run under torchrun; "
        "the processes that were launched must be as many",
    )


def test_plain_python_beside_a_file_for_two(tmp_path: Path) -> None:
    yaml = written(tmp_path / "a.yaml", DDP)
    job = run([*ALONE, "examples/train.py", "--accel_config", yaml, *DIGITS], tmp_path / "run")
    assert job.code == 2
    answered(
        job,
        f"{yaml}:2 (num_processes): asks for 2 processes, but 1 run under python; "
        "plain python starts one process: use accelerate launch, torchrun or deepspeed",
    )


# Files that are missing, or one too many


def test_the_deepspeed_launcher_without_a_json(tmp_path: Path) -> None:
    words = [
        str(BIN / "deepspeed"),
        "--num_gpus",
        "2",
        "--master_port",
        str(free_port()),
        "examples/train.py",
    ]
    job = run([*words, *DIGITS], tmp_path / "run")
    answered(
        job, "started by the deepspeed launcher, but no configuration: add --deepspeed ds_configs/zero2.json"
    )  # fmt: skip


def test_a_second_file_beside_accelerate_launchs_own(tmp_path: Path) -> None:
    words = [*command("accelerate", "single"), "--accel_config", "accel_configs/missing.yaml"]
    job = run([*words, *DIGITS], tmp_path / "run")
    answered(
        job,
        "command line: accel_config: 'accel_configs/missing.yaml': accelerate launch has a file of its own already; "
        "remove this one",
    )


# An optimizer, or layers, that are not there or there twice


# The latter launches without a word of its task: it is found out when the optimizer is built.
@pytest.mark.parametrize(("script", "name"), [("train", "AdamW"), ("own_loop", "adamw")])
def test_an_optimizer_in_the_json_and_in_code(script: str, name: str, tmp_path: Path) -> None:
    config = {
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
    }
    path = written(tmp_path / "ds.json", json.dumps(config, indent=1))
    task = "tests.workers.failing:OwnOptimizer"
    words = [*ALONE, f"examples/{script}.py", "--deepspeed", path, "--task", task]
    job = run([*words, *DIGITS], tmp_path / "run")
    assert job.code == 2
    answered(
        job,
        f"{path}:5: optimizer: {name!r}: {task}.build_optimizer builds the optimizer already; remove one of the two",
    )


def test_a_wrap_class_that_the_model_does_not_have(tmp_path: Path) -> None:
    wrap = "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_transformer_layer_cls_to_wrap: Conv2D\n"
    yaml = written(tmp_path / "a.yaml", FSDP + wrap)
    job = run([*command("ranks", yaml), *DIGITS], tmp_path / "run")
    answered(
        job,
        f"{yaml}:{(FSDP + wrap).count(chr(10))}: fsdp_config.fsdp_transformer_layer_cls_to_wrap: 'Conv2D': the model "
        "has no module of this class; did you mean 'Conv2d'?",
    )


# Folders that hold something


PLAN = (
    '{"strategy": "ddp", "world_size": 2, "versions": {}}'  # by which the folder of a run is told
)


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_used_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    former = {"plan.json": PLAN, "log.txt": "done", "model/model.safetensors": "{}", "summary.json": "{}",
              "checkpoints/step-00000009/manifest.json": "{}"}  # fmt: skip
    for name, text in former.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    job = run([*command("ranks", "ddp"), *DIGITS], folder)
    rule = "holds files already; give a new folder, or --overwrite to replace a former run"
    answered(job, f"command line: output_dir: '{folder}': {rule}")
    assert files(folder) == former

    job = run([*ALONE, "examples/train.py", *DIGITS, "--overwrite"], folder).ok()
    assert sorted(path.name for path in folder.iterdir()) == [
        *(
            ".lock",
            "attempts.json",
            "checkpoints",
            "config.yaml",
            "log.txt",
            "metrics.jsonl",
            "model",
            "plan.json",
        ),
        "summary.json",
    ]
    assert not (folder / "checkpoints/step-00000009").exists(), "the former run's"
    assert [path.name for path in (folder / "model").iterdir()] == ["model.safetensors"]
    assert job.plan["strategy"] == "single"


def test_files_of_somebody_else_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "plan.json").write_text(PLAN)
    (folder / "thesis.tex").write_text("ten years of work")
    job = run([*ALONE, "examples/train.py", *DIGITS, "--overwrite"], folder)
    assert job.code == 2
    answered(
        job,
        f"command line: output_dir: '{folder}': holds files that no run wrote (thesis.tex); they are not deleted: "
        "give a new folder",
    )
    assert sorted(path.name for path in folder.iterdir()) == ["plan.json", "thesis.tex"]
