"""Models that bring what a strategy would silently lose."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from trainer.checks.model import SupportedModel
from trainer.errors import LaunchError


class Counting(nn.Linear):
    calls = 0

    def get_extra_state(self) -> Any:
        return {"calls": self.calls}


class Nothing(nn.Linear):
    """As layers of TransformerEngine have it that do not compute in fp8."""

    def get_extra_state(self) -> Any:
        return torch.empty(0)


def notes_of(model: nn.Module) -> list[str]:
    notes: list[str] = []
    run: Any = SimpleNamespace(
        note=notes.append,
        strategy=SimpleNamespace(held="rows of the parameters"),
    )
    SupportedModel().on_model(run, model)
    return notes


def ranked() -> nn.Module:
    from peft import AdaLoraConfig, get_peft_model

    settings = AdaLoraConfig(target_modules=["0"], total_step=9)
    model: Any = nn.Sequential(nn.Linear(2, 2))
    return get_peft_model(model, settings)


def with_hook_behind() -> nn.Module:
    model = nn.Linear(2, 2)
    model.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    return model


@pytest.mark.parametrize(
    ("build", "line"),
    [
        (
            lambda: nn.Sequential(nn.DataParallel(nn.Linear(2, 2))),
            "0 is a DataParallel: build the model itself",
        ),
        (
            ranked,
            "PeftModel ranks its parameters by whole gradients, and each process holds rows",
        ),
        (
            with_hook_behind,
            "weight has a hook behind its gradient (register_post_accumulate_grad_hook)",
        ),
    ],
)
def test_what_strategies_would_lose_is_refused(build: Callable[[], nn.Module], line: str) -> None:
    with pytest.raises(LaunchError) as error:
        notes_of(build())
    assert str(error.value).startswith(line)


def test_extra_state_that_no_checkpoint_holds_is_a_notice() -> None:
    [note] = notes_of(nn.Sequential(Counting(2, 2), Nothing(2, 2)))
    assert note == "0 has extra state, which no checkpoint holds: keep it in buffers"


@pytest.mark.parametrize(
    ("size", "drop_last", "mode", "told"),
    [
        (20, False, True, True),
        (None, False, True, True),
        (16, False, True, False),
        (20, True, True, False),
        (20, False, False, False),
    ],
)
def test_batch_norm_with_a_short_last_step_is_told_once(
    size: int | None, drop_last: bool, mode: bool, told: bool
) -> None:
    layout = SimpleNamespace(global_batch_size=8)
    data = SimpleNamespace(size=size, drop_last=drop_last, layout=layout)
    notes: list[str] = []
    run: Any = SimpleNamespace(
        note=notes.append,
        train_data=data,
        strategy=SimpleNamespace(held=""),
    )
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.BatchNorm2d(2)).train(mode)
    SupportedModel().on_model(run, model)
    assert ["BatchNorm (1, 2) sees other micro-batches" in note for note in notes] == [True] * told
