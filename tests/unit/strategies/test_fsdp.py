"""FSDP2: which modules become units, what launch files may name, what a rank holds."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from plans import plan, request
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import AdamW

from trainer.errors import ConfigError, LaunchError
from trainer.private.torch import RECOMPUTED
from trainer.strategies.fsdp import FSDP2


class Block(nn.Module):
    _no_split_modules = ("Block",)

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)


class Model(nn.Module):
    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2, 2)
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(2, 2, bias=False)
        if tied:
            self.head.weight = self.layers[1].inner.weight  # type: ignore[union-attr,assignment]


def fsdp(**settings: Any) -> FSDP2:
    made = plan(request("fsdp", fsdp={"reshard_after_forward": True, **settings}))
    return FSDP2(made, Accelerator(cpu=True))


def units(model: nn.Module, **settings: Any) -> list[str]:
    names = {module: name for name, module in model.named_modules()}
    return [names[unit] for unit in fsdp(**settings)._units(model)]


def test_layers_that_the_model_names_are_units() -> None:
    assert units(Model(), auto_wrap_policy="TRANSFORMER_BASED_WRAP") == ["layers.1", "layers.0"]


class Own(nn.Module):
    """A user's own transformer: blocks with experts, and a list of heads."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.block() for _ in range(2))
        self.heads = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
        self.once = nn.ModuleList([nn.Sequential(nn.Linear(2, 2))])
        self.lists = nn.ModuleList(nn.ModuleList([nn.Linear(2, 2)]) for _ in range(2))

    def block(self) -> nn.Module:
        experts = nn.ModuleList(nn.Sequential(nn.Linear(2, 2)) for _ in range(2))
        return nn.Sequential(nn.Linear(2, 2), experts)


def test_repeated_children_of_a_list_are_units() -> None:
    policy = {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
    assert units(Own(), **policy) == ["layers.1", "layers.0"]
    assert units(Own(), **policy, transformer_cls_names_to_wrap=["Linear"])[0] == "lists.1.0"
    assert units(Own(), auto_wrap_policy="NO_WRAP") == []


def test_layers_that_ranks_may_leave_out_are_no_units() -> None:
    settings = {"reshard_after_forward": True, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
    made = plan(request("fsdp", fsdp=settings), find_unused_parameters=True)
    assert FSDP2(made, Accelerator(cpu=True))._units(Own()) == []


def test_layers_that_the_launch_file_names_are_units() -> None:
    named = {"transformer_cls_names_to_wrap": ["Embedding"]}
    assert units(Model(), auto_wrap_policy="TRANSFORMER_BASED_WRAP", **named) == ["embedding"]


def test_a_layer_that_shares_a_parameter_with_another_part_is_no_unit() -> None:
    model = Model(tied=True)
    assert units(model, auto_wrap_policy="TRANSFORMER_BASED_WRAP") == ["layers.0"]


def test_modules_above_a_size_are_units_without_what_inner_ones_took() -> None:
    found = units(Model(), auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=4)
    assert found == ["layers.1.inner", "layers.0.inner"], "six elements each; blocks have no more"


def test_without_a_policy_the_model_is_one_unit() -> None:
    assert units(Model()) == []


def test_activation_checkpointing_needs_units() -> None:
    with pytest.raises(
        LaunchError, match="needs units to recompute: set fsdp_auto_wrap_policy, and"
    ):
        fsdp()._checkpointed(Model(), [])


def test_checkpointed_units_take_the_place_of_the_modules() -> None:
    model = Model()
    blocks = list(model.layers)
    wrapped = fsdp()._checkpointed(model, blocks)
    assert list(model.layers) == wrapped
    assert [name for name, _ in wrapped[0].named_modules()][1] == RECOMPUTED


def test_classes_that_the_model_does_not_have_are_named() -> None:
    with pytest.raises(ConfigError, match="no module of this class; did you mean 'Block'"):
        fsdp(transformer_cls_names_to_wrap=["Blok"])._units(Model())


def test_the_optimizer_steps_rows_with_the_bits_of_distributed_tensors() -> None:
    """Also in a loop that steps ``run.optimizer`` itself, and with rows in other memory."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        x = torch.arange(6.0).reshape(2, 3)
        torch.manual_seed(0)
        first = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
        second = copy.deepcopy(first)
        plan_of_one = plan(request("fsdp", fsdp={"reshard_after_forward": True}), world=1)
        made = FSDP2(plan_of_one, Accelerator(cpu=True))
        made.prepare(first, AdamW(first.parameters(), lr=0.1))
        fully_shard(second, mesh=init_device_mesh("cpu", (1,)))
        divided = AdamW(second.parameters(), lr=0.1)
        for number in range(4):
            for model in (first, second):
                model(x + number).square().sum().backward()
            made.prepared_optimizer.step()
            divided.step()
            made.prepared_optimizer.zero_grad()
            divided.zero_grad()

        rows = made.optimizer.param_groups[0]["params"]
        assert {type(row) for row in rows} == {nn.Parameter}
        for row, own, other in zip(rows, first.parameters(), second.parameters(), strict=True):
            whole, same = cast("Any", own).full_tensor(), cast("Any", other).full_tensor()
            assert whole.equal(same) and own.grad is None
            kept = made.optimizer.state[row]["exp_avg"]
            assert kept.equal(cast("Any", divided.state[other]["exp_avg"]).full_tensor())

        moved: Any = first[0].weight
        moved._local_tensor = moved._local_tensor.clone()
        moved.grad = torch.ones_like(moved)
        before = moved._local_tensor.clone()
        made.finish_step()
        assert bool((moved._local_tensor != before).all())
    finally:
        dist.destroy_process_group()
