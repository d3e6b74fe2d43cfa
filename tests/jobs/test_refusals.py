"""What was not asked for never runs: one line, on every rank, before the first step.

| promised | strategies and worlds | tests |
|---|---|---|
| No other number of processes trains than was asked for | python beside a file for 2 | test_plain_python_beside_a_file_for_two |
| use_cpu runs the strategy of the file, which Accelerate would make DDP | FSDP2 on 2; under accelerate launch (nightly) | test_use_cpu_runs_the_strategy_that_was_asked_for |
| A class to wrap that the model lacks is named | FSDP2 on 2 | test_a_wrap_class_that_the_model_does_not_have |
| Ranks that would not train the same thing are told the first difference | DDP on 2; others (nightly) | test_the_first_difference_is_told_before_the_first_step, test_what_is_no_difference_trains |
| Copies of a parameter that drift apart are neither measured nor written | DDP on 2; others, HSDP on 4 (nightly) | test_copies_that_drift_apart_are_refused_before_they_are_measured_or_written, test_groups_that_drift_apart_are_not_saved |
| One run at a time writes to a folder, and a finished run stays as it is | one process, DDP, FSDP2 on 2 | test_a_second_run_is_refused_until_the_first_is_gone, test_the_job_of_a_finished_run_exits_with_zero_and_leaves_it |
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launchers import ROOT, Job, command, json_in, run, some_quick, trained, worked
from one_process import fit, steps
from run_folders import another_run, everything
from small_examples import digits
from unlike import CASES

from trainer import ConfigError

DIGITS = digits(steps=2)
DDP = "distributed_type: MULTI_GPU\nnum_processes: 2\n"
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


# Fewer processes than were asked for


@pytest.mark.parametrize("launcher", ["ranks", pytest.param("accelerate", marks=pytest.mark.slow)])
def test_use_cpu_runs_the_strategy_that_was_asked_for(launcher: str, tmp_path: Path) -> None:
    """Accelerate makes plain DDP of it."""
    yaml = written(tmp_path / "a.yaml", f"{FSDP}use_cpu: true\n")
    plan = run([*command(launcher, yaml), *DIGITS], tmp_path / "run").ok().plan
    assert (plan["strategy"], plan["world_size"], plan["device"]) == ("fsdp", 2, "cpu")
    assert (plan["distributed_type"], plan["model_class"]) == ("FSDP", "FSDPSequential")


def test_plain_python_beside_a_file_for_two(tmp_path: Path) -> None:
    yaml = written(tmp_path / "a.yaml", DDP)
    job = run([*ALONE, "examples/train.py", "--accel_config", yaml, *DIGITS], tmp_path / "run")
    assert job.code == 2
    answered(
        job,
        f"{yaml}:2 (num_processes): asks for 2 processes, but 1 run under python; "
        "launch as many (by accelerate launch, torchrun or deepspeed), or change the file",
    )


# An optimizer, or layers, that are not there or there twice


def test_a_wrap_class_that_the_model_does_not_have(tmp_path: Path) -> None:
    wrap = "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_transformer_layer_cls_to_wrap: Conv2D\n"
    yaml = written(tmp_path / "a.yaml", FSDP + wrap)
    job = run([*command("ranks", yaml), *DIGITS], tmp_path / "run")
    answered(
        job,
        f"{yaml}:{(FSDP + wrap).count(chr(10))}: fsdp_config.fsdp_transformer_layer_cls_to_wrap: 'Conv2D': the model "
        "has no module of this class; did you mean 'Conv2d'?",
    )


# Ranks that would not train the same thing


SAME_SETTINGS = ": every rank must run with the same settings"
SAME_DATA = ": build_data must give every rank the same data, which the trainer divides: do not shard it by rank"
SAME_MODEL = (
    ": build_model and build_optimizer must build the same on every rank, in the same order"
)
DRAWN = r"build_model and build_optimizer must build the same on every rank"
CHECKSUM = r"[0-9a-f]{8}"

REFUSED = {
    "lr": f"ConfigError: rank 1: lr is 0.1, rank 0: lr is 0.001{SAME_SETTINGS}",
    "task settings": f"ConfigError: rank 1: task_settings.width is 16, rank 0: task_settings.width is 8{SAME_SETTINGS}",
    "class ids": rf"DataError: rank 1: the content of sample 0 of Data.train is {CHECKSUM}, rank 0: the content of sample 0 of Data.train is {CHECKSUM}{SAME_DATA}",
    "class ids of evaluation": "DataError: rank 1: the content of sample 0 of Data.evaluation is ",
    "vocabulary of collate": "DataError: rank 1: the batch of sample 0 of Data.train is ",
    "sizes of the data": f"DataError: rank 1: the number of samples of Data.train is 23, rank 0: the number of samples of Data.train is 24{SAME_DATA}",
    "frozen buffer": rf"LaunchError: rank 1: the checksum of frozen is .*{DRAWN}",
    "order of parameters": (
        r"LaunchError: rank 1: tensor 0 is heads.beta.weight \(1, 4\) trainable torch.float32, "
        rf"rank 0: tensor 0 is heads.alpha.weight \(1, 4\) trainable torch.float32{SAME_MODEL}"
    ),
    "rate of a group": f"LaunchError: rank 1: optimizer group 1: lr is 0.002, rank 0: optimizer group 1: lr is 0.001{SAME_MODEL}",
}
NO_DIFFERENCE = ("noise of its own",)
# Under DDP and ZeRO-1 and ZeRO-2 each process has the frozen parameter whole.
DRIFTED = {
    "codebook": "centre",
    "rows of a table": "0.weight",
    "noise of the optimizer": "0.weight",
}


@cache
def answers_of(how: str, folder: Path) -> dict[str, list[dict[str, Any]]]:
    place = folder / how
    place.mkdir()
    told = {
        "file": {"accel_config": str(ROOT / f"accel_configs/{how}.yaml")},
        "folder": str(place),
        "names": [*CASES],
    }
    worked(["tests/workers/unlike.py", json.dumps(told)], timeout=400)
    return {name: [json_in(place / f"{name}.{rank}.json") for rank in (0, 1)] for name in CASES}


@pytest.mark.parametrize("how", some_quick("ddp"))
def test_the_first_difference_is_told_before_the_first_step(how: str, folder: Path) -> None:
    found = answers_of(how, folder)
    assert REFUSED.keys() | DRIFTED.keys() | set(NO_DIFFERENCE) == CASES.keys()
    for name, line in REFUSED.items():
        zero, one = found[name]
        assert zero == one and zero["step"] == 0, (name, zero, one)
        assert re.match(line, zero["error"]), (name, zero["error"])
        assert "\n" not in zero["error"]


@pytest.mark.parametrize("how", some_quick("ddp"))
def test_copies_that_drift_apart_are_refused_before_they_are_measured_or_written(
    how: str, folder: Path
) -> None:
    found = answers_of(how, folder)
    for name, parameter in DRIFTED.items():
        zero, one = found[name]
        edited = how in ("fsdp", "zero3") or (how != "ddp" and name != "codebook")
        assert zero == one and zero["step"] == (0 if edited else 2), (name, zero, one)
        line = rf"LaunchError: rank 1: the checksum of {parameter} is [0-9a-f]{{16}}, rank 0: .* is [0-9a-f]{{16}}: code has changed"
        if edited:
            line = f"LaunchError: {parameter}: changed in place"
            if name == "noise of the optimizer":
                line = "ConfigError: .*: each process holds .* here, and a step on them is not that"
        assert re.match(line, zero["error"]), (name, zero["error"])
        assert not list((folder / how / name).glob("model/*")), "nothing is exported"


@pytest.mark.slow
def test_groups_that_drift_apart_are_not_saved(folder: Path) -> None:
    config = {"task": "unlike:Plain", "callbacks": ["unlike:Drifts"], "max_steps": 4}
    more = {"micro_batch_size": 2, "save_every": 2}
    job = trained("hsdp", folder / "hsdp", {"drifts": {**config, **more}}, world=4)["drifts"]
    said = r"LaunchError: rank 2: the checksum of \S+ is \w{16}, rank 0: .* is \w{16}: code has changed"
    assert re.match(said, job.err), job.err
    assert not list(job.output_dir.glob("checkpoints/step-*"))


@pytest.mark.parametrize("how", some_quick("ddp"))
def test_what_is_no_difference_trains(how: str, folder: Path) -> None:
    found = answers_of(how, folder)
    assert all(found[name] == [{"step": 2}, {"step": 2}] for name in NO_DIFFERENCE)


# The folder of a run


SHORT = [
    "--task", "tests.workers.resuming:Odd", "--max_steps", "2", "--global_batch_size", "24", "--micro_batch_size", "12",
    "--resume", "auto",
]  # fmt: skip


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
