"""What was not asked for never runs: one line, on every rank, before the first step.

| promised | strategies and worlds | tests |
|---|---|---|
| A misspelt key of a launch file is named with its line | ZeRO on 2, all launchers (nightly) | test_nested_typos, test_a_typo_in_a_deepspeed_json |
| No launcher starts another number of processes than was asked for | python beside a file for 2; accelerate launch, torchrun (nightly) | test_plain_python_beside_a_file_for_two, test_multi_cpu_would_be_one_process, test_the_cpu_flag_would_be_one_process, test_torchrun_starts_more_than_the_file_asks_for |
| use_cpu runs the strategy of the file, which Accelerate would make DDP | FSDP2 on 2; under accelerate launch (nightly) | test_use_cpu_runs_the_strategy_that_was_asked_for |
| A launch file that is missing, or one too many, is named | deepspeed, accelerate launch (nightly; the lines are unit tests) | test_the_deepspeed_launcher_without_a_json, test_a_second_file_beside_accelerate_launchs_own |
| So is an optimizer in two places, and a class to wrap that the model lacks | ZeRO-1 on one process; FSDP2 on 2 | test_an_optimizer_in_the_json_and_in_code, test_a_wrap_class_that_the_model_does_not_have |
| Files in the output folder are never deleted unasked | DDP on 2, one process | test_a_used_folder, test_files_of_somebody_else_are_kept |
| Ranks that would not train the same thing are told the first difference | DDP on 2; others (nightly) | test_the_first_difference_is_told_before_the_first_step, test_what_is_no_difference_trains |
| One run at a time writes to a folder, and a finished run stays as it is | one process, DDP, FSDP2 on 2 | test_a_second_run_is_refused_until_the_first_is_gone, test_the_job_of_a_finished_run_exits_with_zero_and_leaves_it |
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launchers import BIN, ROOT, Job, command, deepspeed_launcher, ranks, run, some_quick
from one_process import fit, steps
from run_folders import another_run, everything
from small_examples import digits
from unlike import CASES

from trainer import ConfigError

DIGITS = digits(steps=2)
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


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["accelerate", "torchrun"])
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
        f"{yaml}:1: distributed_type: 'MULTI_CPU': must be 'NO', 'MULTI_GPU' (CPUs as well), 'FSDP' or 'DEEPSPEED'",
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
        "command line: --num_processes: 2: accelerate starts one process under command line (--cpu); write 1, "
        "or MULTI_GPU there",
    )


@pytest.mark.parametrize("launcher", ["ranks", pytest.param("accelerate", marks=pytest.mark.slow)])
def test_use_cpu_runs_the_strategy_that_was_asked_for(launcher: str, tmp_path: Path) -> None:
    """Accelerate makes plain DDP of it."""
    yaml = written(tmp_path / "a.yaml", f"{FSDP}use_cpu: true\n")
    plan = run([*command(launcher, yaml), *DIGITS], tmp_path / "run").ok().plan
    assert (plan["strategy"], plan["world_size"], plan["device"]) == ("fsdp", 2, "cpu")
    assert (plan["distributed_type"], plan["model_class"]) == ("FSDP", "FSDPSequential")


@pytest.mark.slow
def test_torchrun_starts_more_than_the_file_asks_for(tmp_path: Path) -> None:
    yaml = written(tmp_path / "a.yaml", DDP)
    job = run([*command("torchrun", yaml, world=3), *DIGITS], tmp_path / "run")
    answered(
        job,
        f"{yaml}:2 (num_processes): asks for 2 processes, but 3 run under torchrun; "
        "launch as many (by accelerate launch, torchrun or deepspeed), or change the file",
    )


def test_plain_python_beside_a_file_for_two(tmp_path: Path) -> None:
    yaml = written(tmp_path / "a.yaml", DDP)
    job = run([*ALONE, "examples/train.py", "--accel_config", yaml, *DIGITS], tmp_path / "run")
    assert job.code == 2
    answered(
        job,
        f"{yaml}:2 (num_processes): asks for 2 processes, but 1 run under python; "
        "launch as many (by accelerate launch, torchrun or deepspeed), or change the file",
    )


# Files that are missing, or one too many


@pytest.mark.slow
def test_the_deepspeed_launcher_without_a_json(tmp_path: Path) -> None:
    job = run([*deepspeed_launcher(), "examples/train.py", *DIGITS], tmp_path / "run")
    answered(
        job, "started by the deepspeed launcher, but no configuration: add --deepspeed ds_configs/zero2.json"
    )  # fmt: skip


@pytest.mark.slow
def test_a_second_file_beside_accelerate_launchs_own(tmp_path: Path) -> None:
    words = [*command("accelerate", "single"), "--accel_config", "accel_configs/missing.yaml"]
    job = run([*words, *DIGITS], tmp_path / "run")
    answered(
        job,
        "command line: accel_config: 'accel_configs/missing.yaml': another file describes this job already; "
        "remove this one",
    )


# An optimizer, or layers, that are not there or there twice


def test_an_optimizer_in_the_json_and_in_code(tmp_path: Path) -> None:
    config = {
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
    }
    path = written(tmp_path / "ds.json", json.dumps(config, indent=1))
    task = "tests.workers.failing:OwnOptimizer"
    words = [*ALONE, "examples/train.py", "--deepspeed", path, "--task", task]
    job = run([*words, *DIGITS], tmp_path / "run")
    assert job.code == 2
    answered(
        job,
        f"{path}:5: optimizer: 'adamw': {task}.build_optimizer builds the optimizer already; remove one of the two",
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
    kept = files(folder)
    del kept[".lock"]
    assert kept == former

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
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "plan.json", "thesis.tex"]


# Ranks that would not train the same thing


SAME_SETTINGS = ": every rank must run with the same settings"
SAME_DATA = ": build_data must give every rank the same data, which the trainer divides: do not shard it by rank"
SAME_MODEL = (
    ": build_model and build_optimizer must build the same on every rank, in the same order"
)
DRAWN = r"build_model and build_optimizer must build the same on every rank"
CHECKSUM = r"[0-9a-f]{8}"
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
    "class ids": rf"DataError: rank 1: the content of sample 0 {OTHER_X}",
    "class ids of evaluation": "DataError: rank 1: the content of sample 0 of Data.evaluation is ",
    "vocabulary of collate": "DataError: rank 1: the batch of sample 0 of Data.train is ",
    "order of the data": rf"DataError: rank 1: the content of sample 0 {OTHER_X}",
    "data by default_rng": rf"DataError: rank 1: the content of sample \d+ {OTHER_X}",
    "sharded data": rf"DataError: rank 1: the content of sample 0 {OTHER_X}",
    "sizes of the data": f"DataError: rank 1: the number of samples of Data.train is 23, rank 0: 24{SAME_DATA}",
    "frozen buffer": rf"LaunchError: rank 1: the checksum of frozen is .*{DRAWN}",
    "order of parameters": (
        r"LaunchError: rank 1: parameter 0 is heads.beta.weight \(1, 4\) torch.float32 trainable, "
        rf"rank 0: heads.alpha.weight \(1, 4\) torch.float32 trainable{SAME_MODEL}"
    ),
    "first weights": rf"LaunchError: rank 1: the checksum of 0.weight is .*{DRAWN}",
    "frozen layer": (
        r"LaunchError: rank 1: parameter 0 is 0.weight \(8, 4\) torch.float32 frozen, "
        rf"rank 0: 0.weight \(8, 4\) torch.float32 trainable{SAME_MODEL}"
    ),
    "rate of a group": f"LaunchError: rank 1: optimizer group 1: lr is 0.002, rank 0: 0.001{SAME_MODEL}",
    "max_norm": "LaunchError: 0 has max_norm, by which each process would scale the rows of its own batch alone",
}
NO_DIFFERENCE = ("noise of its own",)


@cache
def answers_of(how: str, folder: Path) -> dict[str, list[dict[str, Any]]]:
    place = folder / how
    place.mkdir()
    told = {
        "file": {"accel_config": str(ROOT / "accel_configs" / f"{how}.yaml")},
        "folder": str(place),
        "names": [*CASES],
    }
    done = ranks(["tests/workers/unlike.py", json.dumps(told)], timeout=400)
    assert done.returncode == 0, done.stderr[-6000:]
    return {
        name: [json.loads((place / f"{name}.{rank}.json").read_text()) for rank in (0, 1)]
        for name in CASES
    }


@pytest.mark.parametrize("how", some_quick("ddp"))
def test_the_first_difference_is_told_before_the_first_step(how: str, folder: Path) -> None:
    found = answers_of(how, folder)
    assert REFUSED.keys() | set(NO_DIFFERENCE) == CASES.keys()
    for name, line in REFUSED.items():
        zero, one = found[name]
        assert zero == one and zero["step"] == 0, (name, zero, one)
        assert re.match(line, zero["error"]), (name, zero["error"])
        assert "\n" not in zero["error"]


@pytest.mark.parametrize("how", some_quick("ddp"))
def test_what_is_no_difference_trains(how: str, folder: Path) -> None:
    found = answers_of(how, folder)
    assert all(found[name] == [{"step": 2}, {"step": 2}] for name in NO_DIFFERENCE)


# The folder of a run


SHORT = [
    "--task", "tests.workers.resuming:Odd", "--max_steps", "2", "--global_batch_size", "24", "--micro_batch_size", "12",
    "--resume", "auto",
]  # fmt: skip


@pytest.mark.usefixtures("fresh_accelerate")
def test_a_second_run_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    fit(tmp_path, max_steps=4)
    before = everything(tmp_path / "checkpoints")
    with another_run(tmp_path) as held:
        assert held.stdout is not None and held.stdout.readline() == "locked\n"
        said = f"output_dir: '{tmp_path}': another run is writing there \\(process {held.pid} on .+\\); end it, or give"
        for settings in ({"resume": "auto"}, {"overwrite": True}, {}):
            with pytest.raises(ConfigError, match=said):
                fit(tmp_path, **settings)  # type: ignore[arg-type]
        job = run([*command("ranks", "ddp"), *SHORT], tmp_path)
        told = f"command line: output_dir: '{tmp_path}': another run is writing there (process {held.pid} on "
        assert job.code and job.err.lstrip()[len("rank 0: ") :].startswith(told), job.err
        assert everything(tmp_path / "checkpoints") == before
        held.kill()
        held.wait()
        fit(tmp_path, resume="auto")
    assert steps(tmp_path) == [8, 6, 4, 2]


def test_the_job_of_a_finished_run_exits_with_zero_and_leaves_it(tmp_path: Path) -> None:
    words = [*command("ranks", "fsdp"), *SHORT]
    run(words, tmp_path).ok()
    before = everything(tmp_path)
    job = run(words, tmp_path).ok()
    assert "finished already at step 2; nothing to do" in job.out and everything(tmp_path) == before
