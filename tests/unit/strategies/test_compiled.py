"""Functions of a task are compiled where its model is, once, and never elsewhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trainer.strategies.compiled import compiled_as, remember_settings


def double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2


def test_a_function_is_compiled_once_with_the_settings_of_its_model() -> None:
    torch._dynamo.reset()
    model = nn.Linear(2, 2)
    assert compiled_as(model, double) is double

    graphs = []

    def backend(graph: torch.fx.GraphModule, examples: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    names = list(model.state_dict())
    remember_settings(model, {"backend": backend})
    assert list(model.state_dict()) == names and len(list(model.modules())) == 1
    for _ in range(3):
        assert torch.equal(compiled_as(model, double)(torch.ones(3)), torch.full((3,), 2.0))
    assert len(graphs) == 1
    assert compiled_as(nn.Linear(2, 2), double) is double
