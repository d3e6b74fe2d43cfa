"""What goes on over a resume: scalers, optimizers, schedules, streams, callbacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from one_process import checkpoint, fit, log_of, losses, rows
from resuming import Odd
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer import Callback, ConfigError, Plan, Run, StepInfo
from trainer.checkpoint import store
from trainer.data import order

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


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
    assert losses(tmp_path / "new") == {
        step: loss for step, loss in losses(tmp_path / "run").items() if step > 20
    }
    assert resumed.strategy.scaler_state() == whole.strategy.scaler_state() != {}
    assert (resumed.skipped_steps, resumed.schedule.last_epoch) == (
        whole.skipped_steps,
        whole.schedule.last_epoch,
    )


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


@pytest.mark.parametrize(
    "name", ["amsgrad", "momentum", "plain", "NAdam", "RMSprop", "Adagrad", "foreach"]
)
def test_optimizers_of_torch_go_on_bit_by_bit(name: str, tmp_path: Path) -> None:
    fit(tmp_path / "run", Chosen(name=name))
    fit(
        tmp_path / "new",
        Chosen(name=name),
        resume=str(tmp_path / "run" / "checkpoints" / store.name_of(4)),
    )
    assert losses(tmp_path / "new") == {
        step: loss for step, loss in losses(tmp_path / "run").items() if step > 4
    }


# -- schedules and streams
# --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule",
    [
        {"schedule": "linear", "warmup_steps": 3},
        {"schedule": "wsd", "schedule_settings": {"decay_steps": 3}},
        {"schedule": "torch:ExponentialLR", "schedule_settings": {"gamma": 0.9}},
        {
            "schedule": "torch:MultiStepLR",
            "schedule_settings": {"milestones": [3, 5], "gamma": 0.5},
        },
        {
            "schedule": "torch:CosineAnnealingLR",
            "schedule_settings": {"T_max": 8},
            "warmup_steps": 5,
        },
        {"schedule": "torch:OneCycleLR", "schedule_settings": {"max_lr": 0.1, "total_steps": 9}},
    ],
    ids=lambda schedule: schedule["schedule"],
)
def test_schedules_go_on(schedule: dict[str, Any], tmp_path: Path) -> None:
    fit(tmp_path / "run", **schedule)
    fit(
        tmp_path / "new",
        resume=str(tmp_path / "run" / "checkpoints" / store.name_of(4)),
        **schedule,
    )
    ours, theirs = (
        [(row["lr"], row["loss"]) for row in rows(tmp_path / name)] for name in ("run", "new")
    )
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
    fit(
        tmp_path / "new",
        Streamed(keeps=keeps),
        resume=str(tmp_path / "run" / "checkpoints" / store.name_of(4)),
    )
    assert losses(tmp_path / "new") == {
        step: loss for step, loss in losses(tmp_path / "run").items() if step > 4
    }


@pytest.mark.parametrize(
    "tasks", [(Odd(), Streamed()), (Streamed(keeps=True), Odd())], ids=["to", "from"]
)
def test_data_of_another_sort_starts_at_its_beginning(
    tasks: tuple[Odd, Odd], tmp_path: Path
) -> None:
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
    assert losses(tmp_path / "again") == {
        step: loss for step, loss in losses(tmp_path / "new").items() if step > 6
    }


@pytest.mark.parametrize("limits", [(0, 50), (50, 0)], ids=["computed", "permuted"])
def test_a_run_goes_on_in_its_order_whatever_a_new_one_takes(
    limits: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, limit in zip(("run", "new"), limits, strict=True):
        monkeypatch.setattr(order, "PERMUTED_UP_TO", limit)
        fit(
            tmp_path / name,
            resume=str(checkpoint(tmp_path / "run", 4)) if name == "new" else "none",
        )
    assert losses(tmp_path / "new") == {
        step: loss for step, loss in losses(tmp_path / "run").items() if step > 4
    }


# -- callbacks -------------------------------------------------------------------------------------


class Remembers(Callback):
    def __init__(self) -> None:
        self.seen: list[float] = []
        self.total = torch.zeros(3)

    def on_step(self, trainer: Run, info: StepInfo) -> None:
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
    fit(
        tmp_path / "new",
        None,
        again,
        Remembers(),
        resume=str(tmp_path / "run" / "checkpoints" / store.name_of(4)),
    )
    assert again.seen == whole.seen and len(again.seen) == 8 and again.total.tolist() == [8, 8, 8]
