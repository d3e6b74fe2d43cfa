"""Optimizers of all sorts go on, or are refused in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from one_process import fit, rows
from own_optimizers import Calls, Codes, Counting
from plans import plan, request
from refusing import refused
from resuming import Odd
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer import Plan, Run
from trainer.checkpoint.optimizer_state import OptimizerForm
from trainer.launching.request import Request
from trainer.strategies import strategy_class


@dataclass(frozen=True, kw_only=True)
class Stepped(Odd):
    name: str = "LBFGS"

    def build_model(self) -> nn.Module:
        model = super().build_model()
        for parameter in model.parameters():
            parameter.requires_grad_(
                parameter.requires_grad and (self.name != "Muon" or parameter.dim() == 2)
            )
        return model

    def build_optimizer(self, model: nn.Module, plan: Plan) -> Optimizer:
        learning = [p for p in model.parameters() if p.requires_grad]
        halves = [
            {"params": learning[:2], "momentum": 0.0},
            {"params": learning[2:], "momentum": 0.9},
        ]
        kinds: dict[str, Any] = {
            "LBFGS": lambda: torch.optim.LBFGS(learning, lr=plan.lr),
            "Muon": lambda: torch.optim.Muon(learning, lr=plan.lr),
            "halves": lambda: torch.optim.SGD(halves, lr=plan.lr),
            "tensor_lr": lambda: torch.optim.AdamW(
                learning, lr=torch.tensor(plan.lr), foreach=False
            ),
            "infinite": lambda: torch.optim.AdamW(
                [{"params": learning, "limit": float("inf")}], lr=plan.lr
            ),
            "sam": lambda: Sam(learning, lr=plan.lr),
            "NAdam": lambda: torch.optim.NAdam(learning, lr=plan.lr),
            "Adagrad": lambda: torch.optim.Adagrad(learning, lr=plan.lr),
            "codes": lambda: Codes(learning, lr=plan.lr),
            "tensor": lambda: Counting(learning, lr=plan.lr, kept=torch.zeros(())),
            "later": lambda: Counting(learning, lr=plan.lr, kept="later"),
            "within": lambda: Counting(learning, lr=plan.lr, kept=Calls()),
            "closure": lambda: Counting(learning, lr=plan.lr, kept=closure()),
            "flag": lambda: Counting(learning, lr=plan.lr, kept=None),
            "schedule_free": lambda: ScheduleFree(learning, lr=plan.lr),
        }
        return kinds[self.name]()  # type: ignore[no-any-return]


def closure() -> Callable[[], None]:
    calls = Calls()
    return lambda: calls()


class Sam(torch.optim.SGD):
    def first_step(self) -> None:
        """Move the weights to where the second gradient is taken."""


class ScheduleFree(torch.optim.SGD):
    def eval(self) -> None:
        """Move the weights to the average."""


def test_an_optimizer_whose_step_needs_a_closure_is_refused(tmp_path: Path) -> None:
    message = refused(tmp_path, r"LBFGS: a step on small parameters fails .*closure", Stepped())
    assert "keep_last" not in message


@pytest.mark.parametrize("keep_last", [0, 1])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sam", r"^Sam.first_step must be called, and no loop here does: take another one$"),
        ("schedule_free", r"^ScheduleFree.eval must be called, .*: take another one$"),
    ],
)
def test_an_optimizer_of_another_loop_is_refused_with_and_without_checkpoints(
    name: str, message: str, keep_last: int, tmp_path: Path
) -> None:
    """Without checkpoints the weights would be exported that no evaluation is meant to see."""
    refused(tmp_path, message, Stepped(name=name), keep_last=keep_last)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("codes", r"Codes keeps 'scales' .* cannot be saved by ranges of the parameter"),
        ("tensor", "^Counting changes its kept in each step"),
        ("within", "^Counting changes its kept in each step"),
        ("closure", "^Counting changes its kept in each step"),
        ("later", "^Counting changes its count in each step"),
    ],
)
def test_state_that_no_checkpoint_holds_is_refused_only_if_checkpoints_are_kept(
    name: str, told: str, tmp_path: Path
) -> None:
    message = refused(tmp_path / "refused", told, Stepped(name=name))
    assert "keep_last: 0" in message and "\n" not in message
    run = fit(tmp_path / "run", Stepped(name=name), keep_last=0, max_steps=2)
    if name == "within":
        assert run.strategy.optimizer.kept.made.calls == 2, "a trial step counts elsewhere"


@pytest.mark.parametrize(
    "name", ["flag", "Muon", "halves", "tensor_lr", "infinite", "NAdam", "Adagrad"]
)
@pytest.mark.parametrize("schedule", ["cosine", "torch:ExponentialLR"])
def test_optimizers_with_groups_of_all_sorts_resume_bit_by_bit(
    name: str, schedule: str, goes_on: Callable[..., tuple[Run, Run]], tmp_path: Path
) -> None:
    settings = {
        "schedule": schedule,
        "schedule_settings": {"gamma": 0.8} if ":" in schedule else {},
    }
    _, resumed = goes_on(Stepped(name=name), **settings)
    assert len({row["lr"] for row in rows(tmp_path / "run")}) > 4
    group = resumed.strategy.optimizer.param_groups[0]
    assert isinstance(group["lr"], Tensor) == (name == "tensor_lr")
    assert group.get("limit", float("inf")) == float("inf")


class OnlyThere(torch.optim.Adam):
    """One of those that exist on GPUs only; the meta device stands in for one."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            assert all(p.is_meta and p.grad.is_meta for p in group["params"]), (
                "no kernel for the CPU"
            )
        return super().step(closure)


def test_an_optimizer_is_tried_where_it_will_step() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5))  # on the CPU, as build_model leaves it
    form = OptimizerForm.of(
        model, OnlyThere(model.parameters()), saved=True, device=torch.device("meta")
    )
    assert form.ranges == {
        "exp_avg": torch.float32,
        "exp_avg_sq": torch.float32,
    } and form.values == {"step": True}


OFFLOADED = {"stage": 2, "offload_optimizer": {"device": "cpu"}}


@pytest.mark.parametrize(
    ("asks", "device"),
    [
        (request("fsdp", fsdp={"cpu_offload": False}), "cuda:3"),
        (request("fsdp", fsdp={"cpu_offload": True}), "cpu"),
        (request("zero2"), "cuda:3"),
        (request("zero2", deepspeed={"zero_optimization": OFFLOADED}), "cpu"),
    ],
)
def test_an_optimizer_steps_on_the_device_unless_its_state_is_offloaded(
    asks: Request, device: str
) -> None:
    state = SimpleNamespace(deepspeed_plugin=SimpleNamespace(deepspeed_config={}))
    accelerator: Any = SimpleNamespace(device=torch.device("cuda", 3), state=state)
    made = plan(asks, world=4, machine=4)
    assert strategy_class(made.strategy)(made, accelerator).step_device == torch.device(device)
