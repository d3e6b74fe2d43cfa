"""Layers that are frozen at first: which ones an entry names, their groups, rates and state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from plans import plan
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, LRScheduler, OneCycleLR

from trainer import ConfigError, LaunchError, TrainConfig
from trainer.optim.unfreezing import Unfreezing


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
        self.stem2 = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)
        self.table = nn.Embedding(3, 4)
        self.tied = self.table.weight


class Groups:
    """A strategy that holds an optimizer, and sets whether its groups are trained."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.calls: list[tuple[list[int], bool]] = []

    @property
    def trainable(self) -> list[Tensor]:
        groups = self.optimizer.param_groups
        return [p for group in groups for p in group["params"] if p.requires_grad]

    def set_trainable(self, groups: list[int], *, trainable: bool) -> None:
        self.calls.append((list(groups), trainable))
        for number in groups:
            for parameter in self.optimizer.param_groups[number]["params"]:
                parameter.requires_grad_(trainable)


def unfreezing(entries: Any, **settings: Any) -> Unfreezing:
    config = TrainConfig(task="m:T", max_steps=4, unfreeze=entries)
    return Unfreezing(config, replace(plan(), **settings), steps_per_epoch=10, origins={})


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in trained if p.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.1)


def begun(
    entries: Any, schedule: Any = lambda optimizer: LambdaLR(optimizer, lambda step: 0.5**step)
) -> tuple[Unfreezing, Groups, LRScheduler]:
    model = Net()
    found = unfreezing(entries)
    found.find(model)
    optimizer = optimizer_of(model)
    found.split_groups(optimizer, model)
    found.count(sum(p.numel() for p in model.parameters()), 1000, model)
    strategy, made = Groups(optimizer), schedule(optimizer)
    found.begin(strategy, made)  # type: ignore[arg-type]
    return found, strategy, made


STEM = ["stem.0.weight", "stem.0.bias", "stem.1.weight", "stem.1.bias"]


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        ("stem", STEM),
        ("stem.*", STEM),
        ("stem.1", STEM[2:]),
        ("stem*", [*STEM, "stem2.weight", "stem2.bias"]),
        ("*.weight", ["tied", "stem.0.weight", "stem.1.weight", "stem2.weight", "head.weight"]),
        (["stem2.bias", "stem.0.bias"], ["stem.0.bias", "stem2.bias"]),
        ("table", ["tied"]),  # a shared one by any of its names
    ],
)
def test_an_entry_names_modules_and_parameters(layers: Any, names: list[str]) -> None:
    found, model = unfreezing({"layers": layers}), Net()
    model.stem.requires_grad_(False)
    found.find(model)
    assert found.entries[0].names == names
    prepared_for = [model.get_parameter(name).requires_grad for name in names]
    assert all(prepared_for), "the strategy must know what will be trained"


def test_a_parameter_belongs_to_the_first_entry_that_names_it() -> None:
    found = unfreezing([{"layers": "stem", "at": 1}, {"layers": "stem*", "at": "2 epochs"}])
    found.find(Net())
    assert [entry.names for entry in found.entries] == [STEM, ["stem2.weight", "stem2.bias"]]
    assert [entry.at for entry in found.entries] == [1, 20]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"layers": "stam"}, "unfreeze.layers: 'stam': names no parameter of the model; did you"),
        (
            [{"layers": "stem"}, {"layers": "stem.0"}],
            "unfreeze.1.layers: 'stem.0': all of these are in entries before it",
        ),
        ({"layers": "*"}, r"unfreeze.layers: '\*': nothing would be trained before"),
    ],
)
def test_an_entry_that_makes_no_sense_is_refused_in_one_line(entries: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        unfreezing(entries).find(Net())


def test_quantized_weights_adapters_and_tensor_parallelism_are_refused() -> None:
    model = Net()
    model.stem2.weight = nn.Parameter(torch.zeros(4, 4, dtype=torch.uint8), requires_grad=False)
    with pytest.raises(ConfigError, match=r"stem2.weight: stored as integers \(quantized\)"):
        unfreezing({"layers": "stem2"}).find(model)

    with pytest.raises(ConfigError, match="not offered under tensor parallelism"):
        unfreezing({"layers": "stem"}, fsdp={"tp_size": 2}).find(Net())

    model.peft_config = {}  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="not offered for a model with an adapter"):
        unfreezing({"layers": "stem"}).find(model)


def test_each_entry_has_groups_of_its_own_behind_the_others() -> None:
    found, strategy, _ = begun([{"layers": "stem", "lr": 0.3}, {"layers": "stem2.bias"}])
    groups = strategy.optimizer.param_groups
    assert [(len(g["params"]), g["weight_decay"], g["initial_lr"]) for g in groups] == [
        (3, 0.1, 0.1),
        (1, 0.0, 0.1),
        (1, 0.1, 0.3),
        (3, 0.0, 0.3),
        (1, 0.0, 0.1),
    ]
    assert [entry.groups for entry in found.entries] == [[2, 3], [4]]
    assert strategy.calls == [([2, 3, 4], False)], "all are frozen at first"


def test_an_optimizer_of_a_task_must_hold_them() -> None:
    model, found = Net(), unfreezing({"layers": "stem"})
    found.find(model)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    with pytest.raises(LaunchError, match=r"m:T.build_optimizer leaves out stem.0.weight, .*"):
        found.check_held(optimizer, model, "m:T.build_optimizer")

    alone = torch.optim.SGD(model.stem.parameters(), lr=0.1)
    with pytest.raises(LaunchError, match="holds no parameter beside those that unfreeze names"):
        found.split_groups(alone, model)


def test_names_of_groups_and_rates_that_are_tensors_stay() -> None:
    model, found = Net(), unfreezing({"layers": "stem", "lr": 0.3})
    found.find(model)
    groups = [{"params": model.parameters(), "name": "all", "lr": torch.tensor(0.1)}]
    optimizer = torch.optim.AdamW(groups, capturable=False)
    found.split_groups(optimizer, model)
    assert [group["name"] for group in optimizer.param_groups] == ["all", "all of stem"]
    rates = [group["lr"] for group in optimizer.param_groups]
    assert all(isinstance(rate, Tensor) for rate in rates)
    assert [round(float(rate), 6) for rate in rates] == [0.1, 0.3]


def test_a_rate_follows_the_global_batch_as_the_configs_does() -> None:
    found = unfreezing({"layers": "stem", "lr": 0.3}, lr=0.2, lr_reference=0.1)
    assert found.entries[0].lr == 0.6


def test_rates_are_zero_while_layers_are_frozen_and_counts_are_of_what_is_trained() -> None:
    found, strategy, _ = begun({"layers": "stem", "at": 2})
    of_stem = sum(
        p.numel() for number in (2, 3) for p in strategy.optimizer.param_groups[number]["params"]
    )
    whole = sum(p.numel() for p in Net().parameters())
    assert (found.trainable, found.operations) == (whole - of_stem, 1000 - 2 * of_stem)
    assert found.rates([1.0, 2.0, 3.0, 4.0]) == [1.0, 2.0, 0.0, 0.0]
    assert found.due(1) == [] and found.due(3) == found.entries

    found.unfreeze(found.entries[0], 2)
    assert (found.trainable, found.operations) == (whole, 1000)
    assert found.rates([1.0, 2.0, 3.0, 4.0]) == [1.0, 2.0, 3.0, 4.0]
    assert found.due(3) == [] and strategy.calls[-1] == ([2, 3], True)
    assert found.facts()[0]["text"] == f"stem: {of_stem} parameters, lr 0.1, trained since step 2"


def test_code_names_whole_entries() -> None:
    found, *_ = begun([{"layers": "stem", "at": 2}, {"layers": "stem*"}])
    first, second = found.entries
    assert found.named(["stem"]) == [first]
    assert found.named(["stem*"]) == [second], "an entry's own patterns mean this entry"
    assert found.named(["ste*"]) == [first, second]
    with pytest.raises(LaunchError, match=r"run.unfreeze\(stem.0\) names a part of unfreeze.0"):
        found.named(["stem.0"])
    with pytest.raises(
        LaunchError, match=r"run.unfreeze\(head\): the key unfreeze names stem; stem"
    ):
        found.named(["head"])


def test_code_may_give_another_rate_which_moves_with_the_schedule() -> None:
    found, strategy, schedule = begun({"layers": "stem"})
    strategy.optimizer.step()
    schedule.step()
    found.unfreeze(found.entries[0], 1, lr=0.8)
    assert [group["lr"] for group in strategy.optimizer.param_groups] == [0.05, 0.05, 0.4, 0.4]
    assert schedule.get_last_lr() == [0.05, 0.05, 0.4, 0.4]
    schedule.step()
    assert schedule.get_last_lr() == [0.025, 0.025, 0.2, 0.2]


def test_a_rate_that_a_schedule_would_not_follow_is_refused() -> None:
    found, *_ = begun({"layers": "stem"}, lambda optimizer: ExponentialLR(optimizer, 0.9))
    with pytest.raises(LaunchError, match="ExponentialLR computes each rate from the one before"):
        found.unfreeze(found.entries[0], 1, lr=0.8)
    with pytest.raises(ConfigError, match=r"unfreeze.lr: 0.3: has no effect: OneCycleLR sets"):
        begun(
            {"layers": "stem", "lr": 0.3},
            lambda optimizer: OneCycleLR(optimizer, max_lr=1.0, total_steps=10),
        )


def test_within_a_step_nothing_is_unfrozen() -> None:
    found, strategy, _ = begun({"layers": "stem"})
    strategy.trainable[0].grad = torch.zeros_like(strategy.trainable[0])
    with pytest.raises(LaunchError, match="within step 4, whose gradients are there already"):
        found.unfreeze(found.entries[0], 3)


def test_what_was_unfrozen_is_kept_over_a_resume() -> None:
    entries = [{"layers": "stem"}, {"layers": ["stem2"], "at": 3}]
    found, *_ = begun(entries)
    assert found.state() == []
    found.unfreeze(found.entries[0], 2, lr=0.8)
    kept = found.state()
    assert kept == [{"layers": ["stem"], "step": 2, "lr": 0.8}]

    again, _, schedule = begun(entries)
    again.restore(kept)
    assert again.state() == kept
    assert [entry.is_frozen for entry in again.entries] == [False, True]
    assert schedule.base_lrs[2:4] == [0.8, 0.8]
