"""What a run cannot save is known before its first step; what it can is saved, and no worthless weights are."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from one_process import checkpoint, fit, log_of, losses, reseal, rows, steps
from resuming import Odd
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer import Callback, CheckpointError, Data, LaunchError, Plan, StepInfo, Trainer, TrainerError
from trainer.checkpoint import discover
from trainer.checkpoint import saver as background
from trainer.commands import cli

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


def refused(folder: Path, match: str, task: Odd, *callbacks: Callback, **settings: Any) -> None:
    with pytest.raises((CheckpointError, LaunchError), match=match):
        fit(folder, task, *callbacks, **settings)
    assert not (folder / "metrics.jsonl").exists(), "before the first step"


# -- tensors ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Typed(Odd):
    """Has a tensor of another dtype."""

    dtype: str = "complex64"
    learns: bool = False

    def build_model(self) -> nn.Module:
        model, tensor = super().build_model(), torch.ones(3).to(getattr(torch, self.dtype))
        if self.learns:
            model.register_parameter("typed", nn.Parameter(tensor))
        else:
            model.register_buffer("typed", tensor)
        return model


@pytest.mark.parametrize("keep_last", [0, 4])
@pytest.mark.parametrize("task", [Typed(), Typed(learns=True)], ids=["buffer", "parameter"])
def test_complex_tensors_are_refused_by_name(task: Odd, keep_last: int, tmp_path: Path) -> None:
    save_every = 2 if keep_last else None
    match = "typed: safetensors has no complex64: neither the model nor a checkpoint could be written"
    refused(tmp_path, match, task, keep_last=keep_last, save_every=save_every)


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"])
def test_rare_dtypes_are_saved_and_exported(dtype: str, tmp_path: Path) -> None:
    fit(tmp_path / "run", Typed(dtype=dtype), max_steps=4)
    fit(tmp_path / "new", Typed(dtype=dtype), max_steps=4, resume=str(checkpoint(tmp_path / "run", 2)))
    assert losses(tmp_path / "new") == {step: loss for step, loss in losses(tmp_path / "run").items() if step > 2}
    assert cli.main(["export", str(checkpoint(tmp_path / "new", 4)), "--to", str(tmp_path / "out")]) == 0
    typed = load_file(tmp_path / "out" / "model.safetensors")["typed"]
    assert str(typed.dtype) == f"torch.{dtype}" and typed.to(torch.float32).tolist() == [1, 1, 1]


class Growing(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("bank", torch.zeros(0))

    def forward(self, ids: Tensor) -> Tensor:
        self.bank = torch.cat([self.bank, torch.ones(1)])
        out: Tensor = self.inner(ids)
        return out


class Grows(Odd):
    def build_model(self) -> nn.Module:
        return Growing(super().build_model())


@pytest.mark.parametrize("settings", [{}, {"keep_last": 0, "save_every": None}, {"on_save_error": "continue"}], ids=str)
def test_a_buffer_that_changes_its_shape_is_named(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"buffer bank was built with shape \(0,\) and has \(\d,\) now") as caught:
        fit(tmp_path, Grows(), **settings)
    assert str(caught.value).count("bank") == 1 and "\n" not in str(caught.value)
    assert not [name for name in ("model", ".model.part") if (tmp_path / name).exists()]
    assert steps(tmp_path) == [] and ("checkpoints" in settings or not list(tmp_path.glob("checkpoints/.*")))


class Empty(Odd):
    """Has a parameter and a buffer without elements."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model.register_parameter("nothing", nn.Parameter(torch.zeros(0, 4)))
        model.register_buffer("none", torch.zeros(0))
        return model


def test_tensors_without_elements_are_exported_and_go_on(tmp_path: Path) -> None:
    fit(tmp_path / "run", Empty())
    last = checkpoint(tmp_path / "run", 8)
    fit(tmp_path / "new", Empty(), resume=str(checkpoint(tmp_path / "run", 4)))
    fit(tmp_path / "same", Empty(), max_steps=1, weights=str(last))
    assert cli.main(["export", str(last), "--to", str(tmp_path / "model")]) == 0
    ours, theirs = (tmp_path / name / "model.safetensors" for name in ("model", "run/model"))
    assert ours.read_bytes() == theirs.read_bytes()
    assert load_file(ours)["nothing"].shape == (0, 4)


# -- optimizers ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Stepped(Odd):
    name: str = "LBFGS"

    def build_model(self) -> nn.Module:
        model = super().build_model()
        for parameter in model.parameters():
            parameter.requires_grad_(parameter.requires_grad and (self.name != "Muon" or parameter.dim() == 2))
        return model

    def build_optimizer(self, model: nn.Module, plan: Plan) -> Optimizer:
        learning = [p for p in model.parameters() if p.requires_grad]
        halves = [{"params": learning[:2], "momentum": 0.0}, {"params": learning[2:], "momentum": 0.9}]
        kinds: dict[str, Any] = {
            "LBFGS": lambda: torch.optim.LBFGS(learning, lr=plan.lr),
            "Muon": lambda: torch.optim.Muon(learning, lr=plan.lr),
            "halves": lambda: torch.optim.SGD(halves, lr=plan.lr),
            "tensor_lr": lambda: torch.optim.AdamW(learning, lr=torch.tensor(plan.lr), foreach=False),
            "infinite": lambda: torch.optim.AdamW([{"params": learning, "limit": float("inf")}], lr=plan.lr),
            "picky": lambda: Picky(learning, lr=plan.lr),
        }
        return kinds[self.name]()  # type: ignore[no-any-return]


class Picky(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        if any(p.numel() == 12 for group in self.param_groups for p in group["params"]):
            raise ValueError("not a dozen")
        return super().step(closure)


def test_an_optimizer_that_wants_a_closure_is_refused(tmp_path: Path) -> None:
    for keep_last, save_every in ((4, 2), (0, None)):
        match = r"LBFGS.step wants a closure .*; a step here has one forward and backward pass: take another optimizer"
        refused(tmp_path / str(keep_last), match, Stepped(), keep_last=keep_last, save_every=save_every)


@pytest.mark.parametrize("name", ["Muon", "halves", "tensor_lr", "infinite"])
@pytest.mark.parametrize("schedule", ["cosine", "torch:ExponentialLR"])
def test_optimizers_with_groups_of_all_sorts_go_on_bit_by_bit(name: str, schedule: str, tmp_path: Path) -> None:
    settings = {"schedule": schedule, "schedule_settings": {"gamma": 0.8} if ":" in schedule else {}}
    fit(tmp_path / "run", Stepped(name=name), **settings)
    resume = str(checkpoint(tmp_path / "run", 4))
    trainer = fit(tmp_path / "new", Stepped(name=name), resume=resume, **settings)
    ours, theirs = ([(row["lr"], row["loss"]) for row in rows(tmp_path / run)] for run in ("run", "new"))
    assert theirs == ours[4:] and len({rate for rate, _ in ours}) > 4
    group = trainer.strategy.optimizer.param_groups[0]
    assert isinstance(group["lr"], Tensor) == (name == "tensor_lr")
    assert group.get("limit", float("inf")) == float("inf")


def test_an_optimizer_that_takes_no_small_tensors_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.checkpoint import optimizer_state as optimizer

    monkeypatch.setattr(optimizer, "_tiny", lambda parameters: [torch.zeros(12)])
    match = r"Picky: a step on small parameters fails, .*keep_last: 0 .*\(ValueError: not a dozen\)"
    refused(tmp_path, match, Stepped(name="picky"))


# -- state of callbacks, tasks and streams ---------------------------------------------------------


class Holds(Callback):
    """Has a state, and from some step on another one."""

    def __init__(self, value: Any, later: Any = None, since: int = 99) -> None:
        self.value, self.later, self.since, self.got = value, later, since, None

    def on_step(self, trainer: Trainer, info: StepInfo) -> None:
        if info.step >= self.since:
            self.value = self.later

    def state_dict(self) -> Mapping[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.got = state["value"]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({1, 2}, r"Holds.value: a set is neither JSON nor a tensor"),
        ({3: "x"}, r"Holds.value: a dict with the key 3 is neither"),
        (torch.ones(1, dtype=torch.complex64), r"Holds.value: a Tensor of torch.complex64 is neither"),
        (np.datetime64("2026-11-21"), r"Holds.value: a date is neither"),
        (nested(250), r"state.json: cannot be written: nested too deeply"),
        (nested(100_000), r"nested too deeply"),
        (10**5000, r"state.json: cannot be written: .*digits"),
    ],
    ids=["set", "key", "complex", "date", "deep", "deeper", "digits"],
)
def test_state_that_cannot_be_saved_is_refused_before_the_first_step(value: Any, said: str, tmp_path: Path) -> None:
    match = f"no checkpoint of this run could be written: .*{said}"
    refused(tmp_path / "stop", match, Odd(), Holds(value))
    fit(tmp_path / "none", Odd(), Holds(value), keep_last=0, save_every=None)


def test_state_that_cannot_be_saved_follows_on_save_error(tmp_path: Path) -> None:
    fit(tmp_path / "always", Odd(), Holds({1}), on_save_error="continue")
    log = log_of(tmp_path / "always")
    assert "note: no checkpoint can be written as it is now: Holds.value: a set is neither" in log
    assert log.count("was not saved: Holds.value: a set is neither") == 4 and steps(tmp_path / "always") == []
    fit(tmp_path / "later", Odd(), Holds(1, {1}, since=5), on_save_error="continue")
    assert steps(tmp_path / "later") == [4, 2] and len(rows(tmp_path / "later")) == 8
    assert not list((tmp_path / "later" / "checkpoints").glob(".*"))
    with pytest.raises(CheckpointError, match=r"the checkpoint of step 6 was not saved: Holds.value: a set is neither"):
        fit(tmp_path / "stop", Odd(), Holds(1, {1}, since=5))
    assert steps(tmp_path / "stop") == [4, 2]
    for run in ("always", "later"):
        assert (tmp_path / run / "model" / "model.safetensors").is_file()


def test_numbers_of_numpy_and_tuples_come_back(tmp_path: Path) -> None:
    value = (np.int64(3), [np.float32(0.5), np.bool_(True)], (1, (2.0, "x"), ()), {"inf": (np.float64("inf"),)})
    fit(tmp_path / "run", Odd(), Holds(value), max_steps=2)
    again = Holds(None)
    fit(tmp_path / "new", Odd(), again, max_steps=4, resume=str(checkpoint(tmp_path / "run", 2)))
    assert repr(again.got) == "(3, [0.5, True], (1, (2.0, 'x'), ()), {'inf': (inf,)})"


def test_lists_of_checkpoints_before_tuples_were_kept_still_load(tmp_path: Path) -> None:
    fit(tmp_path / "run", Odd(), Holds((1, [2])), max_steps=2)
    path = checkpoint(tmp_path / "run", 2) / discover.STATE
    former = path.read_text().replace(" ", "").replace("\n", "").replace('{"$tuple":[1,[2]]}', "[1,[2]]")
    assert "$tuple" in path.read_text() and "$tuple" not in former
    path.write_text(former)
    reseal(path.parent)
    again = Holds(None)
    fit(tmp_path / "new", Odd(), again, max_steps=4, resume=str(path.parent))
    assert again.got == [1, [2]]


class Drawn:
    """A stream with a generator of Python's own, whose state is made of tuples."""

    def __init__(self) -> None:
        self.draw = random.Random(0)

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            yield torch.tensor([self.draw.randrange(7) for _ in range(6)])

    def state_dict(self) -> dict[str, Any]:
        return {"draw": self.draw.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.draw.setstate(state["draw"])


class DrawnTask(Odd):
    def build_data(self) -> Data:
        return Data(train=Drawn())


def test_a_stream_with_tuples_in_its_state_goes_on(tmp_path: Path) -> None:
    fit(tmp_path / "run", DrawnTask())
    fit(tmp_path / "new", DrawnTask(), resume=str(checkpoint(tmp_path / "run", 4)))
    assert losses(tmp_path / "new") == {step: loss for step, loss in losses(tmp_path / "run").items() if step > 4}


# -- the last save, and what is not finite ---------------------------------------------------------


@pytest.mark.parametrize(
    ("broken", "settings"),
    [(8, {}), (8, {"save_in_background": False}), (6, {"save_every": 6, "max_steps": 7})],
    ids=["last", "last in front", "one before, known at the last step"],
)
def test_a_failed_last_save_leaves_the_model(
    broken: int, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = background.Snapshot.write

    def write(self: background.Snapshot, folder: Path) -> Any:
        if self.step == broken:
            raise OSError(28, "No space left on device")
        return real(self, folder)

    monkeypatch.setattr(background.Snapshot, "write", write)
    with pytest.raises(
        CheckpointError, match=f"the checkpoint of step {broken} was not saved: OSError: .*No space left"
    ):
        fit(tmp_path / "run", **settings)
    monkeypatch.undo()
    fit(tmp_path / "whole", **settings)
    models = [tmp_path / name / "model" / "model.safetensors" for name in ("run", "whole")]
    assert models[0].read_bytes() == models[1].read_bytes()


@dataclass(frozen=True, kw_only=True)
class Lost(Odd):
    """The loss, or only the gradient, is lost at a step."""

    at: int = 5
    gradient: bool = False

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        loss = super().training_step(model, batch)
        if self.seen["steps"] != self.at:
            return loss
        return loss + (model.scale - model.scale.detach()).sqrt().sum() if self.gradient else loss * float("nan")


@pytest.mark.parametrize(
    ("task", "step", "said"),
    [
        ({"at": 5}, 6, r"step 6: the loss is nan; lower lr, set max_grad_norm"),
        ({"at": 6}, 6, r"step 6: the loss is nan"),
        (
            {"at": 6, "gradient": True},
            6,
            r"step 6: .* holds values that are not finite: no checkpoint of it is written",
        ),
        ({"at": 7, "gradient": True}, 8, r"step 8: the loss is nan"),
    ],
    ids=["before", "loss", "gradient", "last"],
)
@pytest.mark.parametrize("on_save_error", ["stop", "continue"])
def test_weights_that_are_not_finite_never_push_out_good_ones(
    task: dict[str, Any], step: int, said: str, on_save_error: str, tmp_path: Path
) -> None:
    settings = {"log_every": 100, "keep_last": 1, "on_save_error": on_save_error}
    with pytest.raises(TrainerError, match=said):
        fit(tmp_path, Lost(**task), **settings)
    assert steps(tmp_path) == [step - 2], "the one that was being written is complete"
    found = discover.verify(discover.look(checkpoint(tmp_path, step - 2)))
    assert not found.problem and all(found.open().ranges.whole("parameter", n).isfinite().all() for n in ("scale",))
    again = {**settings, "log_every": 1, "allow_config_change": True}  # a task that loses nothing
    fit(tmp_path, Odd(), resume="auto", **again)
    assert all(np.isfinite(loss) for loss in losses(tmp_path).values()) and steps(tmp_path) == [8]


def test_without_checkpoints_nothing_is_asked_of_the_loss_at_their_steps(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match=r"step 8: the loss is nan; lower lr \(0.05\)"):
        fit(tmp_path, Lost(at=7), keep_last=0, save_every=None, log_every=100)


def test_an_export_that_safetensors_cannot_read_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.checkpoint import export
    from trainer.commands import export as convert

    fit(tmp_path / "run")
    before = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    for module in (export, convert):
        real = module.raw
        monkeypatch.setattr(module, "raw", lambda tensor, real=real: real(tensor)[:-1])
    with pytest.raises(CheckpointError, match=r"the model could not be written to .*safetensors cannot read what was"):
        fit(tmp_path / "new")
    shutil.rmtree(tmp_path / "new" / "checkpoints")
    assert sorted(path.name for path in (tmp_path / "new").iterdir() if path.is_dir()) == []
    assert cli.main(["export", str(checkpoint(tmp_path / "run", 8)), "--to", str(tmp_path / "out")]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "run"]
    monkeypatch.undo()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 8
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == before
