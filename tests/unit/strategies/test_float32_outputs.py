"""Outputs in 16 bits are float32 for whoever reads them, and nobody else pays for it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.utils import convert_outputs_to_fp32
from one_process import fit
from resuming import Odd
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.modeling_outputs import CausalLMOutputWithPast, SequenceClassifierOutput

from trainer.strategies.base import compute_in
from trainer.strategies.float32_outputs import LateConverter, cast_when_read, float32_when_read


class Model(nn.Module):
    """A model that returns its loss and, in 16 bits, its logits and hidden states."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 500)

    def forward(self, hidden: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.head(hidden)
        loss = logits.float().logsumexp(-1).mean()
        return CausalLMOutputWithPast(loss=loss, logits=logits, hidden_states=(logits[:, :3],))


class CastBytes(TorchDispatchMode):
    """Counts the bytes of casts of logits."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = f(*args, **(kwargs or {}))
        if "_to_copy" in str(f):
            self.count += sum(leaf.nbytes for leaf in tree_leaves(output) if leaf.numel() == 8000)
        return output


def as_accelerate_does(model: nn.Module) -> None:
    from types import MethodType

    function: Any = type(model).forward
    model.forward = MethodType(convert_outputs_to_fp32(function), model)  # type: ignore[method-assign]


def as_accelerate_does_but_late(model: nn.Module) -> None:
    as_accelerate_does(model)
    cast_when_read(model)


def in_the_compute_dtype(model: nn.Module) -> None:
    compute_in(model, None)


WAYS = [as_accelerate_does_but_late, in_the_compute_dtype]


@pytest.mark.parametrize("way", WAYS)
def test_logits_that_nobody_reads_are_not_copied(way: Callable[[nn.Module], None]) -> None:
    counts = {}
    for wrap in (as_accelerate_does, way):
        model = Model()
        wrap(model)
        with CastBytes() as casts:
            model(torch.randn(16, 8)).loss.backward()
        counts[wrap] = casts.count
    logits = 16 * 500
    # One for the loss, and in the backward pass one to 16 bits again.
    assert counts[way] == (4 + 2) * logits
    assert counts[as_accelerate_does] == (4 + 2) * logits + 4 * logits


@pytest.mark.parametrize("way", WAYS)
def test_what_is_read_is_float32_with_its_gradient(way: Callable[[nn.Module], None]) -> None:
    gradients = []
    for wrap in (as_accelerate_does, way):
        torch.manual_seed(0)
        model = Model()
        wrap(model)
        output = model(torch.randn(16, 8))
        assert isinstance(output, CausalLMOutputWithPast)
        assert output.logits.dtype == torch.float32 and output.logits is output.logits
        assert output.hidden_states[0].dtype == torch.float32
        output.logits.square().mean().backward()
        gradients.append(model.head.weight.grad)
    assert torch.equal(gradients[0], gradients[1])  # type: ignore[arg-type]


READERS: list[Callable[[Any], torch.Tensor]] = [
    lambda output: output.logits,
    lambda output: output["logits"],
    lambda output: output[1],
    lambda output: output.get("logits"),
    lambda output: output.to_tuple()[1],
    lambda output: dict(output)["logits"],
    lambda output: {**output}["logits"],
    lambda output: dict(output.items())["logits"],
    lambda output: list(output.values())[1],
    lambda output: copy.copy(output).logits,
    lambda output: copy.copy(output)["logits"],
    lambda output: pickle.loads(pickle.dumps(output)).logits,
    lambda output: torch.utils._pytree.tree_leaves(output)[1],
]


@pytest.mark.parametrize("read", READERS)
def test_every_way_to_read_a_value_gives_float32(read: Callable[[Any], torch.Tensor]) -> None:
    logits = torch.randn(2, 3).bfloat16()
    output = float32_when_read(CausalLMOutputWithPast(loss=torch.ones(()), logits=logits))
    assert torch.equal(read(output), logits.float()) and read(output).dtype == torch.float32
    assert output.past_key_values is None and output.get("nothing", 3) == 3
    assert list(output) == ["loss", "logits"] and "logits" in output
    with pytest.raises(KeyError):
        output["nothing"]


def test_what_was_read_without_gradients_has_them_when_it_is_read_again() -> None:
    model = Model()
    as_accelerate_does_but_late(model)
    output = model(torch.randn(4, 8))
    with torch.no_grad():
        assert not output.logits.requires_grad
    assert output.logits.requires_grad


def test_other_outputs_are_cast_at_once() -> None:
    narrow = torch.ones(2, dtype=torch.bfloat16)
    assert float32_when_read(narrow).dtype == torch.float32
    assert float32_when_read({"a": (narrow,)})["a"][0].dtype == torch.float32
    first = float32_when_read(SequenceClassifierOutput(logits=narrow))  # type: ignore[arg-type]
    assert first is float32_when_read(first) and first.logits.dtype == torch.float32


def test_a_model_in_full_precision_stays_as_it_is() -> None:
    model = Model()
    cast_when_read(model)
    assert type(model(torch.randn(2, 8))) is CausalLMOutputWithPast


class WithOutput(nn.Module):
    """A module that returns its loss as a transformers model does."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> Any:
        logits = self.inner(x)
        return CausalLMOutputWithPast(loss=logits.float().square().mean(), logits=logits)


class Reads(Odd):
    """A task that takes the loss of its model, and notes the dtype of the logits beside it."""

    def build_model(self) -> nn.Module:
        return WithOutput(super().build_model())

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        output = model(batch[:, :-1])
        self.seen["dtype"] = str(dict.__getitem__(output, "logits").dtype)
        return output.loss


@pytest.mark.usefixtures("fresh_accelerate")
def test_a_model_that_accelerate_prepares_casts_outputs_when_they_are_read(tmp_path: Path) -> None:
    task = Reads()
    run = fit(tmp_path / "run", task, max_steps=1, save_every=None, mixed_precision="bf16")
    assert task.seen["dtype"] == "torch.bfloat16"
    assert type(run.model.forward.__wrapped__) is LateConverter
