"""``trainer check --build``: what shows once data, model and optimizer are built."""

from __future__ import annotations

from pathlib import Path

import pytest
from check_command import Check
from conversation_config import conversation_config

from trainer.commands import cli

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


def test_build_finds_problems_of_model_optimizer_and_metric(check: Check, tmp_path: Path) -> None:
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


def test_build_evaluates_a_batch_of_each_set_by_name(
    tmp_path: Path, llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = conversation_config(
        tmp_path, llama, evaluation=f"{{a: {tmp_path}/a.jsonl, b: {tmp_path}/a.jsonl}}"
    )
    with open(tmp_path / "train.yaml", "a") as file:
        file.write("eval_every: 1\nbest_metric: eval/c/loss\n")
    assert cli.main(["check", "--build", words[1]]) == 2
    said = capsys.readouterr().err
    assert "best_metric: 'eval/c/loss': the task measures no such value; did you mean" in said
    assert cli.main(["check", "--build", words[1], "--best_metric=eval/b/loss"]) == 0


def test_build_evaluates_a_batch_of_a_pretrained_model(
    tmp_path: Path, llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = conversation_config(
        tmp_path, llama, evaluation=tmp_path / "a.jsonl", sequence_length=96
    )
    with open(tmp_path / "train.yaml", "a") as file:
        file.write("eval_every: 1\nbest_metric: eval/los\n")
    assert cli.main(["check", "--build", words[1]]) == 2
    assert (
        "best_metric: 'eval/los': the task measures no such value; did you mean 'eval/loss'?"
        in (capsys.readouterr().err)
    )
