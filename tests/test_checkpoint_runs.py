"""Runs of one process, in this one: what resume takes, refuses and says; saves that fail; commands on what is left."""

from __future__ import annotations

import json
import os
import shutil
from collections import namedtuple
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from one_process import checkpoint, fit, log_of, lose, losses, reseal, rows, steps
from resuming import Odd
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer import Callback, CheckpointError, ConfigError, LaunchError, Plan, StepInfo, TrainConfig, Trainer
from trainer.checkpoint import discover, store
from trainer.checkpoint import disk as space
from trainer.checkpoint import saver as background
from trainer.checkpoint.codec import decode, encode
from trainer.checkpoint.disk import check_shared
from trainer.commands import cli
from trainer.distributed.agreement import Control

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


# -- auto ------------------------------------------------------------------------------------------


def test_auto_begins_goes_on_and_finishes(tmp_path: Path) -> None:
    fit(tmp_path / "whole", resume="auto")
    assert steps(tmp_path / "whole") == [8, 6, 4, 2]
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    run = tmp_path / "run"
    lose(run, 8, 6)
    (run / "notes.txt").write_text("a run's folder is its owner's as well")
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 9, "lo')  # the run was killed here
    (run / "checkpoints" / ".step-00000006.part").mkdir()
    trainer = fit(run, resume="auto")
    assert f"resumed from {run / 'checkpoints' / 'step-00000004'}" in log_of(run)
    assert [row["step"] for row in rows(run)] == list(range(1, 9)), "each step has one row"
    assert losses(run) == losses(tmp_path / "whole"), "as if nothing had happened"
    assert steps(run) == [8, 6, 4, 2] and len(os.listdir(run / "checkpoints")) == 4
    assert trainer.step == 8

    fit(run, resume="auto")  # nothing is left to do
    assert losses(run) == losses(tmp_path / "whole")
    names = ("model/model.safetensors", "metrics.jsonl")
    assert [(run / name).read_bytes() for name in names[:1]] == [(tmp_path / "whole" / names[0]).read_bytes()]


def test_auto_passes_over_the_damaged_and_says_so(tmp_path: Path) -> None:
    run = tmp_path / "run"
    fit(run)
    whole = losses(run)
    damaged = run / "checkpoints" / store.name_of(8) / "rank-00000.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    (run / "checkpoints" / store.name_of(6) / discover.STATE).unlink()
    fit(run, resume="auto")
    log = log_of(run)
    assert "passed over step-00000008: rank-00000.safetensors was changed after it was written" in log
    assert "passed over step-00000006: state.json is missing" in log
    assert f"resumed from {run / 'checkpoints' / 'step-00000004'}" in log
    assert losses(run) == whole and steps(run) == [8, 6, 4, 2]
    assert (run / "checkpoints" / "step-00000008.damaged").is_dir()


def test_a_run_that_left_no_checkpoint_begins_anew(tmp_path: Path) -> None:
    fit(tmp_path)
    lose(tmp_path, 2, 4, 6, 8)
    fit(tmp_path, resume="auto")
    assert list(losses(tmp_path)) == list(range(1, 9)) and len(rows(tmp_path)) == 8


def test_auto_goes_on_only_in_the_folder_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match=r"output_dir.*holds files already"):
        fit(tmp_path, resume="auto")


def names(run: Path) -> list[str]:
    return sorted(os.listdir(run / "checkpoints"))


@pytest.mark.parametrize("resume", ["auto", "path"])
def test_a_checkpoint_of_a_newer_format_is_refused_and_keeps_its_name(resume: str, tmp_path: Path) -> None:
    fit(tmp_path, max_steps=6)
    reseal(checkpoint(tmp_path, 6), version=2)
    before = names(tmp_path)
    with pytest.raises(CheckpointError, match=r"step-00000006: has version 2 of the format; this program reads 1"):
        fit(tmp_path, resume=resume if resume == "auto" else str(checkpoint(tmp_path, 6)))
    assert names(tmp_path) == before


def test_a_checkpoint_that_cannot_be_read_just_now_is_no_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(tmp_path, max_steps=6)
    before = names(tmp_path)
    real = discover.hash_file

    def failing(path: Path) -> str:
        if path.parent.name == store.name_of(6):
            raise OSError(5, "Input/output error", str(path))
        return real(path)

    monkeypatch.setattr(discover, "hash_file", failing)
    with pytest.raises(
        CheckpointError, match=r"step-00000006: cannot be read: .*Input/output error.*; resume: auto pas"
    ):
        fit(tmp_path, resume="auto")
    capsys.readouterr()
    assert cli.main(["checkpoints", str(tmp_path), "--verify"]) == 1
    assert "damaged" not in capsys.readouterr().out
    monkeypatch.undo()
    assert names(tmp_path) == before
    fit(tmp_path, resume="auto")
    assert steps(tmp_path) == [8, 6, 4, 2]


def test_where_all_are_damaged_auto_does_not_begin_anew_by_itself(tmp_path: Path) -> None:
    fit(tmp_path, max_steps=4)
    for step in (2, 4):
        (checkpoint(tmp_path, step) / discover.STATE).write_text("{}")
    before = names(tmp_path)
    said = (
        r"all checkpoints are damaged \(step-00000004: .*; step-00000002: .*\); to start anew give another output_dir"
    )
    with pytest.raises(CheckpointError, match=said):
        fit(tmp_path, resume="auto")
    assert names(tmp_path) == before
    fit(tmp_path, overwrite=True)
    assert list(losses(tmp_path)) == list(range(1, 9))


def test_a_checkpoint_whose_model_is_not_whole_is_passed_over(tmp_path: Path) -> None:
    fit(tmp_path)
    path = checkpoint(tmp_path, 8) / discover.STATE
    path.write_text(path.read_text().replace('"middle.weight"', '"middle.wight"'))
    reseal(path.parent)
    fit(tmp_path, resume="auto")
    assert "passed over step-00000008: parameter middle.wight: elements 0 to 15 are in no file" in log_of(tmp_path)
    assert (tmp_path / "checkpoints" / "step-00000008.damaged").is_dir()


@pytest.mark.parametrize(("length", "key"), [({"max_steps": 6}, "max_steps: 6"), ({"epochs": 2}, "epochs: 2")], ids=str)
def test_an_end_before_the_checkpoint_is_refused(length: dict[str, int], key: str, tmp_path: Path) -> None:
    fit(tmp_path)
    before = names(tmp_path)
    length = {"max_steps": None, **length}  # type: ignore[dict-item]
    said = rf"{key}: ends the run at step 6, and .*step-00000008 is at step 8 already; raise it"
    with pytest.raises(ConfigError, match=said):
        fit(tmp_path, resume="auto", **length)
    with pytest.raises(ConfigError, match=said):
        fit(tmp_path / "new", resume=str(checkpoint(tmp_path, 8)), **length)
    assert names(tmp_path) == before and list(losses(tmp_path)) == list(range(1, 9))


# -- a path ----------------------------------------------------------------------------------------


def test_a_path_is_that_checkpoint_or_an_error(tmp_path: Path) -> None:
    run, branch = tmp_path / "run", tmp_path / "branch"
    fit(run)
    four = run / "checkpoints" / store.name_of(4)
    fit(branch, resume=str(four))
    assert losses(branch) == {step: loss for step, loss in losses(run).items() if step > 4}
    with pytest.raises(ConfigError, match=r"goes on to step-00000008; give another output_dir to branch off"):
        fit(run, resume=str(four))
    lose(run, 8, 6)
    fit(run, resume=str(four))  # the newest of its own run: that run goes on
    assert list(losses(run)) == list(range(1, 9))
    with pytest.raises(ConfigError, match=r"holds checkpoints and is none; name one of step-00000008, .*resume: auto"):
        fit(tmp_path / "other", resume=str(run))
    with pytest.raises(CheckpointError, match="nowhere: does not exist"):
        fit(tmp_path / "other", resume=str(tmp_path / "nowhere"))
    (four / discover.STATE).write_text("{}")
    with pytest.raises(CheckpointError, match=r"step-00000004: state.json has 2 bytes instead of \d+; resume: auto"):
        fit(tmp_path / "other", resume=str(four))


def test_weights_alone_start_a_new_run(tmp_path: Path) -> None:
    fit(tmp_path / "run")
    for weights in (tmp_path / "run" / "model", tmp_path / "run" / "checkpoints" / store.name_of(8)):
        new = tmp_path / weights.name
        fit(new, Odd(dropout=0.0), weights=str(weights))
        assert f"note: starts with the weights of {weights}" in (new / "log.txt").read_text()
        assert list(losses(new)) == list(range(1, 9)) and losses(new)[1] < losses(tmp_path / "run")[8] + 0.1
    with pytest.raises(
        CheckpointError, match=r"not hold this model: middle.weight has shape \(3, 5\), the model's is \(4, 5\)"
    ):
        fit(tmp_path / "wider", Wider(), weights=str(tmp_path / "run" / "model"))
    with pytest.raises(CheckpointError, match=r"nowhere: holds no .safetensors file"):
        fit(tmp_path / "other", weights=str(tmp_path / "nowhere"))


@pytest.mark.parametrize("source", ["model", "checkpoint"])
def test_weights_of_another_shape_and_those_that_the_model_lacks_are_named(source: str, tmp_path: Path) -> None:
    fit(tmp_path / "run", max_steps=2)
    weights = str(tmp_path / "run" / "model" if source == "model" else checkpoint(tmp_path / "run", 2))
    said = r"not hold this model: middle.weight has shape \(3, 5\), the model's is \(5, 3\) \(is it transposed\?\)$"
    with pytest.raises(CheckpointError, match=said):
        fit(tmp_path / "turned", Turned(), weights=weights)
    fit(tmp_path / "less", Smaller(), max_steps=2, weights=weights)
    assert f"note: 3 tensors of {weights} are not in the model: forwards, frozen.weight, frozen.bias\n" in log_of(
        tmp_path / "less"
    )


def test_a_tensor_that_stands_in_two_files_is_not_chosen_by_chance(tmp_path: Path) -> None:
    fit(tmp_path / "run", max_steps=2)
    model = tmp_path / "run" / "model" / "model.safetensors"
    shutil.copy(model, model.with_name("model.fp16.safetensors"))
    said = r"model: scale stands in model.fp16.safetensors and model.safetensors; leave one of them"
    with pytest.raises(CheckpointError, match=said):
        fit(tmp_path / "new", weights=str(model.parent))


class Turned(Odd):
    def build_model(self) -> nn.Module:
        model = super().build_model()
        model.middle.weight = nn.Parameter(torch.zeros(5, 3))
        return model


class Smaller(Odd):
    def build_model(self) -> nn.Module:
        model = super().build_model()
        model.frozen = nn.Identity()
        del model.forwards
        model.forwards = 0
        return model


# -- another config --------------------------------------------------------------------------------


def test_what_changes_the_numbers_is_shown_and_asked_for(tmp_path: Path) -> None:
    fit(tmp_path / "run")
    resume = str(tmp_path / "run" / "checkpoints" / store.name_of(4))
    changed: dict[str, Any] = {"seed": 7, "weight_decay": 0.1, "log_every": 2}
    with pytest.raises(ConfigError) as caught:
        fit(tmp_path / "new", resume=resume, **changed)
    text = str(caught.value)
    assert "seed: 0 -> 7" in text and "optimizer_groups.0.settings.weight_decay: 0.01 -> 0.1" in text
    assert "allow_config_change: true" in text and "log_every" not in text
    fit(tmp_path / "new", resume=resume, allow_config_change=True, **changed)
    assert "note: changed since the checkpoint: seed: 0 -> 7" in (tmp_path / "new" / "log.txt").read_text()


def test_another_model_is_never_loaded(tmp_path: Path) -> None:
    fit(tmp_path / "run")
    resume = str(tmp_path / "run" / "checkpoints" / store.name_of(4))
    with pytest.raises(CheckpointError, match=r"does not hold this model: .*middle.weight has shape \(3, 5\), the mod"):
        fit(tmp_path / "new", Wider(), resume=resume, allow_config_change=True)


@dataclass(frozen=True, kw_only=True)
class Wider(Odd):
    def build_model(self) -> nn.Module:
        model = super().build_model()
        model.middle, model.back = nn.Linear(5, 4), nn.Linear(4, 5)
        return model


def test_another_optimizer_starts_anew_and_says_so(tmp_path: Path) -> None:
    fit(tmp_path / "run")
    resume = str(tmp_path / "run" / "checkpoints" / store.name_of(4))
    fit(tmp_path / "new", Odd(dropout=0.2, sgd=True), resume=resume, allow_config_change=True)
    assert "the optimizer is another one: its state starts anew" in (tmp_path / "new" / "log.txt").read_text()


@dataclass(frozen=True, kw_only=True)
class Part(Odd):
    """Learns with some of its layers only."""

    learns: tuple[str, ...] = ("middle", "back", "embedding", "scale")

    def build_model(self) -> nn.Module:
        model = super().build_model()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.partition(".")[0] in self.learns)
        return model


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (
            ("middle", "back"),
            ("middle", "back", "scale"),
            "1 tensors learn now that were frozen: their optimizer state",
        ),
        (("middle", "back"), ("middle",), "2 tensors are frozen now that learnt"),
        (("middle",), ("back",), "2 tensors are frozen now that learnt"),
    ],
)
@pytest.mark.parametrize("average", [None, 0.9])
def test_layers_may_be_frozen_and_thawed_over_a_resume(
    before: tuple[str, ...], now: tuple[str, ...], said: str, average: float | None, tmp_path: Path
) -> None:
    fit(tmp_path / "run", Part(learns=before), max_steps=4, ema_decay=average)
    path = checkpoint(tmp_path / "run", 4)
    with pytest.raises(ConfigError, match=rf"belongs to a run with other numbers; .*{said}"):
        fit(tmp_path / "no", Part(learns=now), resume=str(path), ema_decay=average)
    settings: dict[str, Any] = {"resume": str(path), "allow_config_change": True, "ema_decay": average}
    trainer = Trainer(Part(learns=now), configured(tmp_path / "new", **settings))
    assert f"note: changed since the checkpoint: {said}" in log_of(tmp_path / "new")
    kept = discover.look(path).open()
    for name, parameter in trainer.model.named_parameters():
        saved = kept.ranges.whole(str(kept.kind(name)), name).view_as(parameter)
        assert torch.equal(parameter.data, saved), f"{name} is as it was saved"
        known = trainer.strategy.optimizer.state.get(parameter, {})
        assert bool(known) == (name.partition(".")[0] in before and parameter.requires_grad), name
    trainer.fit()
    assert list(losses(tmp_path / "new")) == [5, 6, 7, 8]


def configured(folder: Path, **settings: Any) -> TrainConfig:
    given = {"max_steps": 8, "save_every": 2, "log_every": 1, "micro_batch_size": 24, "lr": 0.05, **settings}
    return TrainConfig(task="resuming:Odd", output_dir=str(folder), **given)


# -- optimizers ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Factored(Odd):
    def build_optimizer(self, model: nn.Module, plan: Plan) -> Optimizer:
        return torch.optim.Adafactor([p for p in model.parameters() if p.requires_grad], lr=plan.lr)


def test_state_that_cannot_be_cut_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"Adafactor keeps 'row_var' of shape \(3, 1\) for a parameter of shape \(3,"
    ):
        fit(tmp_path / "a", Factored())
    fit(tmp_path / "b", Factored(), keep_last=0, save_every=None)
    assert steps(tmp_path / "b") == []


@dataclass(frozen=True, kw_only=True)
class Steep(Odd):
    """Gradients that fp16 cannot hold at the scale that the scaler begins with."""

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return 30 * super().training_step(model, batch)


def test_the_scaler_of_fp16_goes_on(tmp_path: Path) -> None:
    settings = {"mixed_precision": "fp16", "max_steps": 24}
    whole = fit(tmp_path / "run", Steep(), **settings)
    assert whole.skipped_steps > 0, "it had to look for its scale"
    resume = str(tmp_path / "run" / "checkpoints" / store.name_of(20))
    resumed = fit(tmp_path / "new", Steep(), resume=resume, **settings)
    assert losses(tmp_path / "new") == {step: loss for step, loss in losses(tmp_path / "run").items() if step > 20}
    assert resumed.strategy.scaler_state() == whole.strategy.scaler_state() != {}
    assert (resumed.skipped_steps, resumed.schedule.last_epoch) == (whole.skipped_steps, whole.schedule.last_epoch)


@dataclass(frozen=True, kw_only=True)
class Chosen(Odd):
    name: str = "Adam"

    def build_optimizer(self, model: nn.Module, plan: Plan) -> Optimizer:
        kinds: dict[str, Any] = {
            "amsgrad": lambda p: torch.optim.AdamW(p, lr=plan.lr, amsgrad=True),
            "momentum": lambda p: torch.optim.SGD(p, lr=plan.lr, momentum=0.9),
            "plain": lambda p: torch.optim.SGD(p, lr=plan.lr),
            "NAdam": lambda p: torch.optim.NAdam(p, lr=plan.lr),
            "RMSprop": lambda p: torch.optim.RMSprop(p, lr=plan.lr, momentum=0.5, centered=True),
            "Adagrad": lambda p: torch.optim.Adagrad(p, lr=plan.lr),
            "foreach": lambda p: torch.optim.Adam(p, lr=plan.lr, foreach=True),
        }
        return kinds[self.name]([p for p in model.parameters() if p.requires_grad])


@pytest.mark.parametrize("name", ["amsgrad", "momentum", "plain", "NAdam", "RMSprop", "Adagrad", "foreach"])
def test_optimizers_of_torch_go_on_bit_by_bit(name: str, tmp_path: Path) -> None:
    fit(tmp_path / "run", Chosen(name=name))
    fit(tmp_path / "new", Chosen(name=name), resume=str(tmp_path / "run" / "checkpoints" / store.name_of(4)))
    assert losses(tmp_path / "new") == {step: loss for step, loss in losses(tmp_path / "run").items() if step > 4}


# -- schedules and streams --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule",
    [
        {"schedule": "linear", "warmup_steps": 3},
        {"schedule": "wsd", "schedule_settings": {"decay_steps": 3}},
        {"schedule": "torch:ExponentialLR", "schedule_settings": {"gamma": 0.9}},
        {"schedule": "torch:MultiStepLR", "schedule_settings": {"milestones": [3, 5], "gamma": 0.5}},
        {"schedule": "torch:CosineAnnealingLR", "schedule_settings": {"T_max": 8}, "warmup_steps": 5},
        {"schedule": "torch:OneCycleLR", "schedule_settings": {"max_lr": 0.1, "total_steps": 9}},
    ],
    ids=lambda schedule: schedule["schedule"],
)
def test_schedules_go_on(schedule: dict[str, Any], tmp_path: Path) -> None:
    fit(tmp_path / "run", **schedule)
    fit(tmp_path / "new", resume=str(tmp_path / "run" / "checkpoints" / store.name_of(4)), **schedule)
    ours, theirs = ([(row["lr"], row["loss"]) for row in rows(tmp_path / name)] for name in ("run", "new"))
    assert theirs == ours[4:]


def test_another_schedule_takes_its_own_rate_at_that_step(tmp_path: Path) -> None:
    fit(tmp_path / "run")
    resume = str(tmp_path / "run" / "checkpoints" / store.name_of(4))
    fit(tmp_path / "new", resume=resume, schedule="linear", allow_config_change=True)
    assert rows(tmp_path / "new")[0]["lr"] == pytest.approx(0.05 * (1 - 4 / 8))


class Counting:
    """A stream that keeps its state, and one that does not, without it."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[Tensor]:
        while self.at < 50:
            self.at += 1
            yield torch.randint(0, 7, (6,), generator=torch.Generator().manual_seed(self.at))
        self.at = 0


class Keeping(Counting):
    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@dataclass(frozen=True, kw_only=True)
class Streamed(Odd):
    keeps: bool = False

    def build_data(self) -> Any:
        return type(super().build_data())(train=Keeping() if self.keeps else Counting())


@pytest.mark.parametrize("keeps", [True, False])
def test_streams_go_on(keeps: bool, tmp_path: Path) -> None:
    fit(tmp_path / "run", Streamed(keeps=keeps))
    fit(tmp_path / "new", Streamed(keeps=keeps), resume=str(tmp_path / "run" / "checkpoints" / store.name_of(4)))
    assert losses(tmp_path / "new") == {step: loss for step, loss in losses(tmp_path / "run").items() if step > 4}


@pytest.mark.parametrize("tasks", [(Odd(), Streamed()), (Streamed(keeps=True), Odd())], ids=["to", "from"])
def test_data_of_another_sort_starts_at_its_beginning(tasks: tuple[Odd, Odd], tmp_path: Path) -> None:
    first, second = tasks
    fit(tmp_path / "run", first)
    resume = str(checkpoint(tmp_path / "run", 4))
    with pytest.raises(ConfigError, match=r"train_samples: (50 -> null|null -> 50)"):
        fit(tmp_path / "no", second, resume=resume)
    trainer = fit(tmp_path / "new", second, resume=resume, allow_config_change=True)
    assert "note: the training data was a" in log_of(tmp_path / "new")
    samples = [row["samples"] for row in rows(tmp_path / "new")]
    assert samples == [24, 48, 50, 74] and trainer.step == 8
    fit(tmp_path / "again", second, resume=str(checkpoint(tmp_path / "new", 6)))
    assert losses(tmp_path / "again") == {step: loss for step, loss in losses(tmp_path / "new").items() if step > 6}


# -- callbacks -------------------------------------------------------------------------------------


class Remembers(Callback):
    def __init__(self) -> None:
        self.seen: list[float] = []
        self.total = torch.zeros(3)

    def on_step(self, trainer: Trainer, info: StepInfo) -> None:
        self.seen.append(float(info.loss))
        self.total += 1

    def state_dict(self) -> Mapping[str, Any]:
        return {"seen": self.seen, "total": self.total, "none": float("inf")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seen, self.total = state["seen"], state["total"]
        assert state["none"] == float("inf")


def test_callbacks_go_on_with_what_they_know(tmp_path: Path) -> None:
    whole, again, other = Remembers(), Remembers(), Remembers()
    fit(tmp_path / "run", None, whole, other)
    fit(tmp_path / "new", None, again, Remembers(), resume=str(tmp_path / "run" / "checkpoints" / store.name_of(4)))
    assert again.seen == whole.seen and len(again.seen) == 8 and again.total.tolist() == [8, 8, 8]


def test_state_is_json_and_tensors() -> None:
    tensors: dict[str, Tensor] = {}
    value = {"a": [1, 2.5, None, "x", True], "b": {"t": torch.eye(2)}, "c": float("-inf")}
    text = json.dumps(encode(value, tensors, "me"), allow_nan=False)
    back = decode(json.loads(text), tensors.__getitem__)
    assert torch.equal(back["b"].pop("t"), torch.eye(2)) and value["b"].pop("t") is not None
    assert back == value
    with pytest.raises(CheckpointError, match=r"me.f: a set is neither JSON nor a tensor"):
        encode({"f": {1}}, {}, "me")


def test_the_best_stays(tmp_path: Path) -> None:
    best = {"eval_every": 1, "best_metric": "eval/loss", "keep_last": 1, "save_every": 1, "lr_scaling": "none"}
    trainer = fit(tmp_path, Evaluated(), **best)
    [kept] = [step for callback in trainer.callbacks.builtin for step in callback.pinned_steps()]
    assert kept == 3 and steps(tmp_path) == [8, 3]


def test_the_best_of_another_folder_is_forgotten(tmp_path: Path) -> None:
    best = {"eval_every": 1, "best_metric": "eval/loss", "save_every": 1, "keep_last": 9}
    fit(tmp_path / "run", Evaluated(), **best)
    resume = str(checkpoint(tmp_path / "run", 5))
    trainer = fit(tmp_path / "branch", Evaluated(), resume=resume, **best)
    said = "note: best/, of step 3, is not in this output_dir: eval/loss starts anew"
    assert said in log_of(tmp_path / "branch")
    assert [step for callback in trainer.callbacks.builtin for step in callback.pinned_steps()] == [6]
    assert (tmp_path / "branch" / "best" / "model.safetensors").is_file()
    lose(tmp_path / "run", 8, 7)
    trainer = fit(tmp_path / "run", Evaluated(), resume="auto", **best)
    assert [step for callback in trainer.callbacks.builtin for step in callback.pinned_steps()] == [3]
    assert "starts anew" not in log_of(tmp_path / "run")


@dataclass(frozen=True, kw_only=True)
class Evaluated(Odd):
    """Best after three steps."""

    def build_data(self) -> Any:
        data = super().build_data()
        return type(data)(train=data.train, evaluation=data.train[:4])

    def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"loss": torch.full((len(batch),), abs(self.seen["steps"] - 3.0))}


# -- saves that fail -------------------------------------------------------------------------------


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes no tensors after step 4."""
    real = background.Snapshot.write

    def write(self: background.Snapshot, folder: Path) -> Any:
        if self.step > 4:
            raise OSError(28, "No space left on device")
        return real(self, folder)

    monkeypatch.setattr(background.Snapshot, "write", write)


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("in_background", [True, False])
def test_a_save_that_fails_stops_the_run(in_background: bool, tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"step 6 was not saved: OSError: .*No space left.*on_save_error: continue"
    ):
        fit(tmp_path, save_in_background=in_background)
    assert steps(tmp_path) == [4, 2] and len(os.listdir(tmp_path / "checkpoints")) == 2
    assert len(rows(tmp_path)) in ((6, 7, 8) if in_background else (6,)), "known at a step soon after"


@pytest.mark.usefixtures("broken")
def test_a_save_that_fails_is_told_and_the_run_goes_on(tmp_path: Path) -> None:
    fit(tmp_path, on_save_error="continue")
    log = (tmp_path / "log.txt").read_text()
    assert log.count("was not saved: OSError: [Errno 28] No space left on device; the ones before are kept") == 2
    assert steps(tmp_path) == [4, 2] and len(rows(tmp_path)) == 8


def test_an_older_one_that_cannot_be_deleted_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object, **__: object) -> list[int]:
        raise PermissionError("may not be deleted")

    monkeypatch.setattr(store, "prune", refuses)
    fit(tmp_path)
    assert steps(tmp_path) == [8, 6, 4, 2], "none is lost, the newer ones least of all"
    log = (tmp_path / "log.txt").read_text()
    assert "an older checkpoint than that of step 6 cannot be deleted: may not be deleted" in log
    assert "not saved" not in log


Usage = namedtuple("Usage", "total used free")


def test_a_full_disk_is_found_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space.shutil, "disk_usage", lambda path: Usage(1, 1, 3000))
    with pytest.raises(CheckpointError, match=r"room for 4 checkpoints of 1016 B needs 4.0 KiB, but 2.9 KiB are free"):
        fit(tmp_path)
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_disk_that_fills_up_is_named_at_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fills(Callback):
        def on_step(self, trainer: Trainer, info: StepInfo) -> None:
            if info.step == 4:
                monkeypatch.setattr(space.shutil, "disk_usage", lambda path: Usage(1, 1, 10))

    with pytest.raises(CheckpointError, match=r"step 4 was not saved: .*a checkpoint needs .* but 10 B are free"):
        fit(tmp_path, None, Fills())
    assert steps(tmp_path) == [2]


def test_a_read_only_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"output_dir: .*cannot be made: Not a directory"):
        fit(tmp_path / "file" / "run")


def test_a_disk_of_each_nodes_own_is_refused(tmp_path: Path) -> None:
    class Nodes(Control):
        """Two ranks, the second of which sees nothing."""

        def gather(self, value: Any) -> list[Any]:
            return [value, False if isinstance(value, bool) else value]

    with pytest.raises(LaunchError, match="rank 1 does not see what the main process writes there"):
        check_shared(tmp_path, Nodes())
    check_shared(tmp_path, Control())
    assert os.listdir(tmp_path) == []


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"overwrite": True, "resume": "auto"}, "overwrite: true: would delete what resume: auto goes on from"),
        ({"allow_config_change": True}, "allow_config_change: true: has no effect without resume"),
        ({"keep_last": 0, "save_every": 2}, "save_every: 2: has no effect with keep_last: 0"),
        ({"keep_last": 0, "keep_every": 2}, "keep_every: 2: has no effect with keep_last: 0"),
        ({"resume": ""}, "resume: '': must be 'none', 'auto' or the path of a checkpoint"),
    ],
)
def test_settings_that_do_not_go_together(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(task="a:B", max_steps=1, **wrong)
    assert told in str(caught.value)


# -- commands --------------------------------------------------------------------------------------


def test_the_list_of_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(tmp_path)
    assert cli.main(["checkpoints", str(tmp_path)]) == 0
    path = tmp_path / "checkpoints" / store.name_of(6) / "rank-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    capsys.readouterr()
    assert cli.main(["checkpoints", str(tmp_path)]) == 0, "sizes are right"
    assert cli.main(["checkpoints", str(tmp_path / "checkpoints"), "--verify"]) == 1
    lines = capsys.readouterr().out.splitlines()[-5:]
    assert lines[0].split() == ["checkpoint", "strategy", "world", "size", "age", "state"]
    assert lines[1].split()[:3] == ["step-00000008", "single", "1"] and lines[1].endswith("complete")
    assert lines[2].endswith("damaged: rank-00000.safetensors was changed after it was written")
    assert cli.main(["checkpoints", str(tmp_path / "model")]) == 1
    assert "holds no checkpoints" in capsys.readouterr().err


@pytest.mark.parametrize("average", [None, 0.9])
def test_a_checkpoint_is_exported_on_its_own(average: float | None, tmp_path: Path) -> None:
    fit(tmp_path / "run", ema_decay=average)
    last = str(tmp_path / "run" / "checkpoints" / store.name_of(8))
    assert cli.main(["export", last, "--to", str(tmp_path / "model")]) == 0
    ours, theirs = (tmp_path / name / "model.safetensors" for name in ("model", "run/model"))
    assert ours.read_bytes() == theirs.read_bytes(), "what the run itself exported"
    assert cli.main(["export", last, "--to", str(tmp_path / "model")]) == 1, "exists already"
    assert cli.main(["export", last, "--to", str(tmp_path / "plain"), "--without-average"]) == 0
    same = (tmp_path / "plain" / "model.safetensors").read_bytes() == ours.read_bytes()
    assert same == (average is None)
