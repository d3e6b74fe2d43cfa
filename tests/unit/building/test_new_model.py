"""The model of a run, built as every strategy can take it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from plans import plan
from torch import nn

from trainer import LaunchError, Task, TrainConfig
from trainer.building.new_model import (
    build_model,
    enter_training_mode,
    operations_per_token,
)


class Builds(Task):
    """A task that builds what a test gives it."""

    def __init__(self, build: Callable[[], Any]) -> None:
        super().__init__()
        object.__setattr__(self, "build_model", build)


def built(
    build: Callable[[], Any], mixed_precision: str = "no", **settings: Any
) -> tuple[Any, list[str]]:
    config = TrainConfig(task="m:T", max_steps=4, **settings)
    return build_model(Builds(build), config, plan(mixed_precision=mixed_precision))


def with_frozen(dtype: torch.dtype) -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).to(dtype)
    model[1].requires_grad_(False)
    return model


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_trainable_weights_are_kept_in_float32_and_a_notice_says_so(dtype: torch.dtype) -> None:
    model, notices = built(lambda: with_frozen(dtype), mixed_precision="bf16")
    assert model[0].weight.dtype == torch.float32
    assert model[1].weight.dtype == dtype, "frozen layers compute in mixed precision anyway"
    name = str(dtype).removeprefix("torch.")
    assert notices == [f"2 parameters of {name} are kept in float32"]


def test_without_mixed_precision_frozen_layers_compute_in_float32_too() -> None:
    model, notices = built(lambda: with_frozen(torch.bfloat16), mixed_precision="no")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert notices == ["4 parameters of bfloat16 are kept in float32"]
    assert model(torch.ones(1, 2, dtype=torch.bfloat16)).dtype == torch.float32


def test_narrow_buffers_and_the_models_own_config_follow() -> None:
    def build() -> nn.Module:
        model = nn.Linear(2, 1).bfloat16()
        model.register_buffer("scale", torch.ones(1, dtype=torch.bfloat16))
        model.register_buffer("count", torch.ones(1, dtype=torch.int64))
        object.__setattr__(model, "config", SimpleNamespace(dtype=torch.bfloat16))
        return model

    model, _ = built(build)
    assert (model.scale.dtype, model.count.dtype) == (torch.float32, torch.int64)
    assert model.config.dtype == torch.float32


def test_a_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(LaunchError, match="the model has no trainable parameters"):
        built(lambda: nn.Linear(2, 1).requires_grad_(False))


def transposed(model: Any) -> None:
    model[1].weight = nn.Parameter(model[0].weight.t())


def plain(model: Any) -> None:
    model[1].weight = nn.Parameter(model[0].weight.data)


def rows(model: Any) -> None:
    model[1].weight = nn.Parameter(model[0].weight.data[5:])


def buffer(model: Any) -> None:
    model.register_buffer("seen", model[0].weight.detach()[:, 3:])


def columns(model: Any) -> None:
    both = torch.randn(8, 16).to(model[0].weight)
    model[0].weight, model[1].weight = nn.Parameter(both[:, :8]), nn.Parameter(both[:, 8:])


def constants(model: Any) -> None:
    shared = torch.ones(4, dtype=model[0].weight.dtype)
    model.register_buffer("one", shared)
    model.register_buffer("other", shared[:2])
    model.frozen = nn.Parameter(shared, requires_grad=False)
    model[1].weight = model[0].weight
    model.register_buffer("meta", torch.empty(2, device="meta"))
    model.register_buffer("meta_too", torch.empty(2, device="meta"))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    ("tie", "names"),
    [
        (transposed, "1.weight and 0.weight"),
        (plain, "0.weight and 1.weight"),
        (rows, "0.weight and 1.weight"),
        (buffer, "0.weight and seen"),
        (columns, None),
        (constants, None),
    ],
)
def test_a_memory_of_two_is_refused_before_the_cast_cuts_it(
    tie: Callable[[Any], None], names: str | None, dtype: torch.dtype, device: str
) -> None:
    def build() -> nn.Module:
        with torch.device(device):
            model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to(dtype)
            tie(model)
        return model

    if names is None:
        built(build)
        return
    with pytest.raises(LaunchError, match=f"^{names} share a memory, which stays so only if"):
        built(build)


@pytest.mark.parametrize("asked", [False, True])
def test_batch_norms_are_made_synchronous_where_the_config_asks(asked: bool) -> None:
    model, _ = built(lambda: nn.Sequential(nn.BatchNorm1d(2)), sync_batchnorm=asked)
    assert isinstance(model[0], nn.SyncBatchNorm) == asked


class Holds(Builds):
    """Holds the named modules of its model in evaluation mode."""

    def __init__(self, build: Callable[[], Any], *names: str) -> None:
        super().__init__(build)
        object.__setattr__(self, "names", names)

    def held_in_evaluation(self, model: nn.Module) -> list[nn.Module]:
        return [model.get_submodule(name) for name in self.names]


def small() -> nn.Module:
    return nn.Sequential(
        nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.5)), nn.Linear(2, 1)
    )


def modes(model: nn.Module, task: Task | None = None) -> tuple[str, list[str]]:
    """Return the modules that stay in evaluation mode, and the notices."""
    _, notices = enter_training_mode(task or Builds(lambda: model), model)
    stay = [name for name, module in model.named_modules() if not module.training]
    return " ".join(stay), notices


class Adapted(nn.Sequential):
    """As peft leaves a pretrained model."""

    peft_config: ClassVar = {}


def test_a_pretrained_model_trains_in_training_mode() -> None:
    for build in (small, lambda: Adapted(small().eval(), nn.Dropout(0.1))):
        assert modes(build().eval())[0] == ""
    released = "build_model left 0.1, 0.2 in evaluation mode: they train in training mode"
    assert modes(small().eval())[1][0].split(";")[0] == released
    assert modes(Adapted(small().eval(), nn.Dropout(0.1))) == ("", [])


@pytest.mark.parametrize(
    ("build", "parts"),
    [
          # a teacher
        (lambda: nn.ModuleDict({"body": small().eval(), "head": nn.Linear(1, 1)}), "body"),
        (lambda: nn.Sequential(small().eval(), nn.Dropout(0.1).eval(), small()), "0, 1"),
        (lambda: nn.Sequential(small(), nn.Dropout(0.1)).eval().append(small()), "0.0.1, 0.0.2, 1"),
    ],
)  # fmt: skip
def test_a_model_with_parts_in_evaluation_mode_asks_which_stay(
    build: Callable[[], nn.Module], parts: str
) -> None:
    with pytest.raises(LaunchError, match=rf"\({parts}\): write a method held"):
        modes(build())
    model = build()
    assert modes(model, Holds(lambda: model)) == ("", [])
    name = next(iter(dict(model.named_children())))
    stay, notices = modes(model, Holds(lambda: model, name))
    assert stay.startswith(name) and notices == []


def test_modes_that_make_no_difference_are_not_asked_for() -> None:
    teacher = nn.Sequential(nn.Linear(2, 2), nn.Tanh()).eval().requires_grad_(False)
    assert modes(nn.Sequential(small(), teacher)) == ("", [])


def test_operations_of_a_token_leave_out_embeddings_that_multiply_nothing() -> None:
    class Model(torch.nn.Module):
        def __init__(self, *, tied: bool) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(50, 4)
            self.positions = torch.nn.Embedding(9, 4)
            self.body = torch.nn.Linear(4, 4, bias=False)
            self.head = torch.nn.Linear(4, 50, bias=False)
            if tied:
                self.head.weight = self.embedding.weight

    for tied in (False, True):
        model = Model(tied=tied)
        assert operations_per_token(model) == 6 * (16 + 200)
        model.body.requires_grad_(False)
        assert operations_per_token(model) == 6 * 200 + 4 * 16


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable:FutureWarning")
@pytest.mark.parametrize("place", ["root", "inside", "peft"])
def test_activations_of_a_pretrained_model_are_checkpointed_in_any_place(place: str) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    base = LlamaModel(LlamaConfig(vocab_size=8, num_hidden_layers=1, **sizes)).eval()
    base.gradient_checkpointing_enable()
    counted = []
    base.layers[0].self_attn.register_forward_pre_hook(lambda *_: counted.append(1))
    model: Any = {
        "root": lambda: base,
        "inside": lambda: nn.ModuleDict({"base": base, "head": nn.Linear(8, 1)}),
        "peft": lambda: get_peft_model(base, LoraConfig(target_modules=["q_proj"])),
    }[place]()

    enter_training_mode(Builds(lambda: model), model)
    chosen = model["base"] if place == "inside" else model
    chosen(input_ids=torch.tensor([[1, 2]])).last_hidden_state.sum().backward()
    assert len(counted) == 2, "once forward, and once more in the backward pass"
