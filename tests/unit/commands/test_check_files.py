"""``trainer check FILES...``: all files together, all problems at once."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest
from check_command import Check, trainer_command
from launchers import ROOT


def test_committed_files_have_no_problem(check: Check) -> None:
    launch_files = sorted([*ROOT.glob("accel_configs/*.yaml"), *ROOT.glob("ds_configs/*.json")])
    # One process has no part in a batch for two; four have smaller micro-batches.
    single = [path for path in launch_files if path.stem in ("single", "hsdp")]
    configs = sorted(ROOT.glob("examples/configs/*.yaml"))
    done = check(*(str(path) for path in launch_files + configs if path not in single))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("nothing is wrong\n")
    for path in launch_files:
        if path not in single:
            stem = path.stem.removesuffix("_offload")
            assert done.stdout.count(f" under {path}\n") == len(configs)
            assert f"{path}: {stem}" in done.stdout


def test_every_problem_of_every_file(check: Check, tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(
        "task: digits_cnn:DigitsCNN\ntask_settings: {widht: 32}\nepochs: 1\nlr: -1\nmicro_batch_sise: 8\n"
    )
    (tmp_path / "tasks.yaml").write_text(
        "task: digits_cnn:DigitsCNN\ntask_settings: {widht: 32}\nepochs: 1\n"
    )
    (tmp_path / "zero.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n  zero_stge: 3\n"
    )
    (tmp_path / "ds.json").write_text(
        '{"zero_optimization": {"stage": 2}, "gradient_cliping": 1.0}\n'
    )
    done = check(
        *(
            str(tmp_path / name)
            for name in ("train.yaml", "tasks.yaml", "zero.yaml", "ds.json", "missing.yaml")
        )
    )
    assert done.returncode == 1
    told = [
        line.removeprefix(f"{tmp_path}/")
        for line in done.stderr.splitlines()
        if str(tmp_path) in line
    ]
    assert [line.split(": ")[:2] for line in told] == [
        ["train.yaml:4", "lr"],
        ["train.yaml:5", "micro_batch_sise"],
        ["zero.yaml:4", "deepspeed_config.zero_stge"],
        ["ds.json:1", "gradient_cliping"],
        ["missing.yaml", "the file cannot be read"],
        ["tasks.yaml:2", "task_settings.widht"],
    ]
    assert done.stdout.endswith("6 problems\n")


def test_batch_sizes_that_do_not_multiply_are_a_problem(check: Check) -> None:
    zero, config = "ds_configs/zero2.json", "examples/configs/digits_cnn.yaml"
    done = check(zero, config, "--processes", "3")
    assert done.returncode == 1
    assert (
        "global_batch_size: 64: must be a multiple of micro_batch_size 32 x world_size 3 = 96"
        in done.stderr
    )


def test_defaults_of_the_task_are_in_the_plan(check: Check) -> None:
    words = [
        "--task",
        "trainer.language:CausalLM",
        "--max_steps",
        "100",
        "--task_settings.data",
        "a.txt",
        "--lr",
        "3e-5",
    ]
    done = check("accel_configs/zero2.yaml", *words, "--task_settings.model", "m")
    assert done.returncode == 0, done.stderr
    assert (
        "optimizer   adamw, lr 3e-05, linear, 3 warm-up steps (0.03 of the run)\nclipping    global norm 1\n"
        in done.stdout
    )


def test_files_and_settings_in_any_order() -> None:
    """Files and settings in any order; with the device and the notices of this machine, and nothing
    of libraries'.
    """
    done = trainer_command(
        "check", "accel_configs/ddp.yaml", "--max_steps", "5", "ds_configs/zero3_offload.json", "micro_batch_size=4",
        "examples/configs/digits_cnn.yaml", "--global_batch_size=32", "--processes", "4",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("world size  4\n") == 2, "of the YAML, which says 2, as well"
    assert done.stdout.count("4 x 2 x 4 = 32 ") == 2
    assert done.stdout.count("device      cpu (rehearsal: the real strategy over gloo)\n") == 2
    assert "longer than the run: the rate never reaches its full value" in done.stdout
    assert "[WARNING]" not in done.stdout, "nothing that DeepSpeed logs"


def test_config_from_settings_alone_and_launch_file_by_option(check: Check) -> None:
    words = [
        "--accel_config",
        "accel_configs/ddp.yaml",
        "--task",
        "digits_cnn:DigitsCNN",
        "--max_steps",
        "5",
    ]
    done = check(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "command line under accel_configs/ddp.yaml\n" in done.stdout
    wrong = check(*words, "--micro_batch_sise", "8")
    assert wrong.returncode == 1
    assert wrong.stderr.splitlines() == [
        "command line: micro_batch_sise: 8: unknown key; did you mean 'micro_batch_size'?",
    ]


def test_a_config_of_another_trainer_is_read_as_a_training_config(
    check: Check, tmp_path: Path
) -> None:
    (tmp_path / "recipe.yaml").write_text(
        "model_name_or_path: gpt2\nbf16: true\nlearning_rate: 2.0e-05\n"
    )
    done = check(str(tmp_path / "recipe.yaml"))
    assert done.returncode == 1
    assert "recipe.yaml:2: bf16: true: unknown key; known: " in done.stderr
    assert "zero_optimization" not in done.stderr


def test_launch_files_that_differ_print_plans_that_differ(check: Check, tmp_path: Path) -> None:
    fsdp = "distributed_type: FSDP\nnum_processes: 2\nfsdp_config: {fsdp_version: 2"
    zero = '{"zero_optimization": {"stage": 3'
    files = {
        "a.yaml": f"{fsdp}}}",
        "b.yaml": f"{fsdp}, auto_wrap_policy: TRANSFORMER_BASED_WRAP, transformer_layer_cls_to_wrap: Conv2d}}",
        "c.yaml": f"{fsdp}, fsdp_auto_wrap_policy: SIZE_BASED_WRAP, fsdp_min_num_params: 100}}",
        "d.yaml": f"{fsdp}, fsdp_reshard_after_forward: false}}",
        "e.yaml": f"{fsdp}, fsdp_activation_checkpointing: true}}",
        "f.yaml": f"{fsdp}, fsdp_ignored_modules: head}}",
        "g.yaml": f"{fsdp}}}\ndynamo_config: {{dynamo_backend: INDUCTOR, dynamo_use_dynamic: true}}",
        "h.json": f"{zero}}}}}",
        "i.json": f'{zero}, "reduce_bucket_size": 1000}}}}',
        "j.json": f'{zero}, "offload_param": {{"device": "cpu"}}}}}}',
        "k.json": f'{zero}}}, "communication_data_type": "bf16"}}',
        "l.json": f'{zero}}}, "aio": {{"block_size": 4096}}}}',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    alone = check(*(str(tmp_path / name) for name in files))
    together = check(*(str(tmp_path / name) for name in files), "examples/configs/digits_cnn.yaml")
    for done in (alone, together):
        assert (done.returncode, done.stderr) == (0, "")
        rows = [
            line
            for line in done.stdout.splitlines()
            if not line.startswith(("-", "note:"))
            and line != "nothing is wrong"
            and str(tmp_path) not in line
        ]
        starts = [number for number, line in enumerate(rows) if line.startswith("strategy ")] + [
            len(rows)
        ]
        tables = [
            "\n".join(" ".join(line.split()) for line in rows[a:b]) for a, b in pairwise(starts)
        ]
        assert len(tables) == len(set(tables)) == len(files)
    assert "compile     backend inductor, dynamic True\n" in alone.stdout
    assert "world size  the number of processes comes from the launcher\n" in alone.stdout


def test_an_optimizer_that_is_no_optimizer_class_is_a_problem_without_a_launch_file(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    def called(*args: object) -> None:
        raise AssertionError("what the config names is not called")

    monkeypatch.setattr(os, "system", called)
    config = "examples/configs/digits_cnn.yaml"
    done = check(config, "--optimizer", "os.system")
    assert (done.returncode, done.stderr) == (
        1,
        "command line: optimizer: 'os.system': system of os is no torch.optim.Optimizer\n",
    )
    done = check(config, "--optimizer", "torch.optim.SGD", "--optimizer_settings.nestrov", "true")
    assert done.returncode == 1
    assert "torch.optim.SGD has no such argument; did you mean 'nesterov'?" in done.stderr
    assert check(config, "--optimizer", "torch.optim.Adagrad").returncode == 0
    several = ("--accumulation_steps", "1", "--global_batch_size", "64")
    assert check(config, *several).returncode == 0, "a batch that needs two processes"


def test_name_and_folder_are_shown_as_they_will_be(check: Check, tmp_path: Path) -> None:
    config = tmp_path / "train.yaml"
    config.write_text(
        "task: digits_cnn:DigitsCNN\nepochs: 1\nrun_name: '{experiment}-{strategy}x{world_size}'\n"
        "output_dir: 'runs/{run_name}-lr{lr}'\n"
    )
    done = check("accel_configs/fsdp.yaml", str(config))
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["run", "DigitsCNN-fsdpx2"] in lines
    assert ["output", "runs/DigitsCNN-fsdpx2-lr0.001"] in lines

    done = check(str(config))  # the launch decides the rest
    assert "\nrun     DigitsCNN-{strategy}x{world_size}\n" in done.stdout
    assert "\noutput  runs/{run_name}-lr0.001\n" in done.stdout

    done = check(str(config), "--output_dir=runs/{sede}", "--run_name={task_settings.widht}")
    assert done.returncode == 1
    assert "did you mean 'task_settings.width'?" in done.stderr
