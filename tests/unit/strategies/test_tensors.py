"""Names of a prepared model's tensors, this rank's part of them, and scalars kept as vectors.

Norm and clipping are in ``tests/unit/test_step.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.strategies.scalars import hold_scalars_as_vectors
from trainer.strategies.tensors import (
    canonical_names,
    canonical_state,
    keep_in_step,
)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.layer = nn.Linear(2, 2, bias=False)
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("hidden", torch.ones(1), persistent=False)

    def forward(self, value: Tensor) -> Tensor:
        output: Tensor = self.layer(value) * self.scale
        return output


def test_a_shared_parameter_has_each_of_its_names() -> None:
    model = nn.ModuleDict(
        {"first": nn.Linear(2, 2, bias=False), "last": nn.Linear(2, 2, bias=False)}
    )
    model["last"].weight = model["first"].weight
    assert [*canonical_state(model)] == ["first.weight", "last.weight"]


def test_trainable_parameters_are_written_in_full_precision() -> None:
    model = Scaled().bfloat16()
    model.layer.requires_grad_(False)
    assert canonical_names(model) == {
        "scale": ((), torch.float32),
        "count": ((), torch.int64),
        "layer.weight": ((2, 2), torch.bfloat16),
    }


def test_the_model_sees_a_scalar_where_a_vector_is_kept() -> None:
    model = Scaled()
    before = model(torch.ones(1, 2))
    hold_scalars_as_vectors(model)
    assert dict(model.named_parameters())["scale"].shape == (1,)
    assert model.scale.shape == () and type(model).__name__ == "Scaled"
    assert torch.equal(model(torch.ones(1, 2)), before)


def test_a_scalar_that_two_modules_share_stays_shared() -> None:
    first, second = Scaled(), Scaled()
    second.scale = first.scale
    model = nn.ModuleList([first, second])
    hold_scalars_as_vectors(model)
    assert first.scale.shape == second.scale.shape == ()
    assert len([name for name, _ in model.named_parameters() if "scale" in name]) == 1


def test_every_module_is_marked_for_generate() -> None:
    model = Scaled()
    keep_in_step(model)
    assert all(module._is_fsdp_managed_module for module in model.modules())


def test_a_model_that_is_kept_in_step_is_compiled() -> None:
    """The mark is one that torch.compile reads, too: it would silently run every module eagerly."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    keep_in_step(model)
    forward = torch.compile(model.forward, backend="eager", fullgraph=True)
    assert forward(torch.ones(1, 2)).shape == (1, 2)
