"""``trainer check``: all files together, all problems at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from launchers import BIN, ROOT, clean_environment

from trainer.commands import cli


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command answered."""

    returncode: int
    stdout: str
    stderr: str


Check = Callable[..., Answer]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    full = [str(BIN / "trainer"), *words]
    return subprocess.run(
        full, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False
    )


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    """``trainer check`` in this process, which has imported what it needs."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*words: str) -> Answer:
        code = cli.main(["check", *words])
        said = capsys.readouterr()
        return Answer(returncode=code, stdout=said.out, stderr=said.err)

    return run


def test_committed_files_are_in_order(check: Check) -> None:
    launch_files = sorted([*ROOT.glob("accel_configs/*.yaml"), *ROOT.glob("ds_configs/*.json")])
    # One process has no part in a batch for two; four have smaller micro-batches; adapters are not
    # divided.
    single = [path for path in launch_files if path.stem in ("single", "hsdp", "tp")]
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
    assert done.returncode == 2
    told = [
        line.removeprefix(f"{tmp_path}/")
        for line in done.stderr.splitlines()
        if str(tmp_path) in line
    ]
    assert [line.split(": ")[:2] for line in told] == [
        ["train.yaml:4", "lr"],
        ["train.yaml:5", "micro_batch_sise"],
        ["train.yaml:2", "task_settings.widht"],
        ["zero.yaml:4", "deepspeed_config.zero_stge"],
        ["ds.json:1", "gradient_cliping"],
        ["missing.yaml", "the file does not exist"],
        ["tasks.yaml:2", "task_settings.widht"],
    ]
    assert done.stdout.endswith("7 problems\n")


def test_values_that_do_not_go_together(check: Check) -> None:
    zero, config = "ds_configs/zero2.json", "examples/configs/digits_cnn.yaml"
    done = check(zero, config, "--processes", "3")
    assert done.returncode == 2
    assert (
        "global_batch_size: 64: must be a multiple of micro_batch_size 32 x world_size 3 = 96"
        in done.stderr
    )


def test_settings_of_the_task_are_looked_at_where_the_rest_is_wrong(check: Check) -> None:
    done = check("examples/configs/digits_cnn.yaml", "--lrr", "1", "--task_settings.widht", "3")
    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        [
            "command line: lrr: '1': unknown key; did you mean 'lr'?",
            "command line: task_settings.widht: '3': unknown key; did you mean 'width'?",
        ],
    )


def test_what_only_building_tells_of_divided_layers_is_said(check: Check) -> None:
    launch = "accel_configs/tp.yaml"
    done = check(launch, "examples/configs/llama_stdlib.yaml", "--global_batch_size", "null")
    assert done.returncode == 0, done.stderr
    assert (
        "note: whether the layers of this model can be divided by tp_size 2 is known once it is built"
        in done.stdout
    )


def test_defaults_of_the_task_are_those_of_training(check: Check) -> None:
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
    told = "weight_decay 0.0, schedule linear, warmup_fraction 0.03, max_grad_norm 1.0; set them in the config to change"
    assert (
        f"note: defaults of CausalLM, which starts from a pretrained model: {told}" in done.stdout
    )


def test_settings_may_be_typed_as_for_training() -> None:
    """Files and settings in any order; with the device and the notices of this machine, and nothing
    of libraries'.
    """
    done = command(
        "check", "accel_configs/ddp.yaml", "--max_steps", "5", "ds_configs/zero3_offload.json", "micro_batch_size=4",
        "examples/configs/digits_cnn.yaml", "--global_batch_size=32", "--processes", "4",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("world size  4\n") == 2, "of the YAML, which says 2, as well"
    assert done.stdout.count("4 x 2 x 4 = 32 ") == 2
    assert done.stdout.count("device      cpu (rehearsal: the real strategy over gloo)\n") == 2
    assert "longer than the run: the rate never reaches its full value" in done.stdout
    assert (
        "ds_configs/zero3_offload.json:4 (zero_optimization.offload_optimizer.device): no effect in a rehearsal"
        in (done.stdout)
    )
    assert "[WARNING]" not in done.stdout, "nothing that DeepSpeed logs"


def test_a_config_may_be_typed_alone_and_files_be_named_as_for_training(check: Check) -> None:
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
    wrong = check(*words, "--micro_batch_sise", "8", "--seed")
    assert wrong.returncode == 2
    assert wrong.stderr.splitlines() == [
        "command line: seed: needs a value: --seed VALUE",
        "command line: micro_batch_sise: '8': unknown key; did you mean 'micro_batch_size'?",
    ]


def test_partitions_that_do_not_divide_the_processes(check: Check, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}')
    assert check(str(path)).returncode == 0, "the launcher's number is not known"
    assert check(str(path), "--processes", "12").stderr == (
        f"{path}:1 (zero_optimization.zero_hpz_partition_size): 8: must divide the number of processes, 12\n"
    )


def test_a_config_of_another_trainer_is_no_launch_file(check: Check, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(
        "model_name_or_path: gpt2\nbf16: true\nlearning_rate: 2.0e-05\n"
    )
    done = check(str(tmp_path / "recipe.yaml"))
    assert done.returncode == 2
    assert "recipe.yaml:2: bf16: true: unknown key; did you mean 'mixed_precision'?" in done.stderr
    assert "zero_optimization" not in done.stderr


def test_files_that_differ_print_plans_that_differ(check: Check, tmp_path: Path) -> None:
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
    assert "wrapping                  modules of 100 parameters and more\n" in alone.stdout
    assert "compile                   inductor, dynamic=true\n" in alone.stdout
    assert "world size  the number of processes comes from the launcher\n" in alone.stdout


TASK = """
from dataclasses import dataclass
import torch
from torch import nn
import trainer

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x))

@dataclass(frozen=True, kw_only=True)
class Small(trainer.Task):
    broken: bool = False

    def build_data(self):
        rows = [{"x": torch.ones(4), "y": i % 2} for i in range(8)]
        return trainer.Data(train=rows, evaluation=rows)

    def build_model(self):
        return Net()

    def build_optimizer(self, model, plan):
        if self.broken:
            raise KeyError("no such parameter")
        return torch.optim.SGD(model.parameters(), lr=plan.lr)

    def training_step(self, model, batch):
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])
"""


def test_what_only_a_built_model_shows(check: Check, tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(TASK)
    (tmp_path / "train.py").touch()
    (tmp_path / "train.yaml").write_text(
        "task: small:Small\nmax_steps: 10\neval_every: 5\nbest_metric: eval/los\ntask_settings: {broken: true}\n"
    )
    (tmp_path / "a.yaml").write_text(
        "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  fsdp_version: 2\n"
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_transformer_layer_cls_to_wrap: Liner\n"
        "  fsdp_ignored_modules: hed.*\n"
    )
    words = [
        str(tmp_path / "a.yaml"),
        str(tmp_path / "train.yaml"),
        "--script",
        str(tmp_path / "train.py"),
    ]
    assert check(*words).returncode == 0, "nothing is built without being asked"
    done = check(*words, "--build")
    assert done.returncode == 2
    assert [line.replace(f"{tmp_path}/", "") for line in done.stderr.splitlines()] == [
        "a.yaml:6: fsdp_config.fsdp_transformer_layer_cls_to_wrap: 'Liner': "
        "the model has no module of this class; did you mean 'Linear'?",
        "a.yaml:7: fsdp_config.fsdp_ignored_modules: 'hed.*': matches the name of no module, such as 'body'",
        "Small.build_optimizer: KeyError: 'no such parameter'",
        "train.yaml:4: best_metric: 'eval/los': the task measures no such value; did you mean 'eval/loss'?",
    ]
    right = ["--best_metric=eval/loss", "--task_settings.broken=false", "--build"]
    assert check(words[1], "accel_configs/fsdp.yaml", *words[2:], *right).returncode == 0
    for kind in ("Adafactor", "Adagrad"):
        (tmp_path / f"by_{kind.lower()}.py").write_text(
            TASK.replace("torch.optim.SGD(", f"torch.optim.{kind}(")
        )
    zero = [words[1], "accel_configs/zero2.yaml", *words[2:], *right]
    done = check(*zero, "--task", "by_adafactor:Small")
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith(
        "by_adafactor:Small.build_optimizer: 'Adafactor': each process holds flat slices of all parameters here,"
    )
    assert check(*zero, "--task", "by_adagrad:Small").returncode == 0


@pytest.mark.parametrize(("words", "code"), [((), 0), (("chek",), 2)])
def test_the_command_itself(words: tuple[str, ...], code: int) -> None:
    done = command(*words)
    assert done.returncode == code
    assert "check" in (done.stderr if code else done.stdout)
