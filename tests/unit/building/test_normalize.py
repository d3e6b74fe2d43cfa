"""What a model brings that a strategy would lose without a word: taken along, or refused in one
line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainer.building.normalize import (
    have_hooks_see_full_precision,
    make_contiguous,
    refuse_what_would_be_lost,
    unwrap_compiled,
)
from trainer.errors import LaunchError
from trainer.strategies.meta_device import allocate


class Counting(nn.Linear):
    calls = 0

    def get_extra_state(self) -> Any:
        return {"calls": self.calls}


class Nothing(nn.Linear):
    """As layers of TransformerEngine have it that do not compute in fp8."""

    def get_extra_state(self) -> Any:
        return torch.empty(0)


def tied(view: Callable[[Tensor], Tensor]) -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = nn.Parameter(view(model[0].weight.data))
    return model


def with_edges() -> nn.Module:
    model = nn.Linear(2, 2)
    model.register_buffer("edges", torch.eye(2).to_sparse())
    return model


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
        (lambda: nn.Sequential(nn.LazyLinear(2)), "0.weight has no shape yet"),
        (lambda: nn.Embedding(4, 2, sparse=True), "Embedding gives sparse gradients"),
        (
            lambda: nn.Sequential(Counting(2, 2)),
            "0 has extra state, which no checkpoint would hold",
        ),
        (
            with_edges,
            "edges is sparse, and no file would hold it: make it dense, or persistent=False",
        ),
        (
            with_hook_behind,
            "weight has a hook behind its gradient (register_post_accumulate_grad_hook)",
        ),
        (
            lambda: tied(lambda weight: weight),
            "0.weight and 1.weight are two parameters in one memory",
        ),
        (
            lambda: tied(lambda weight: weight.t()),
            "0.weight and 1.weight are two parameters in one memory",
        ),
        (
            lambda: tied(lambda weight: weight[5:]),
            "0.weight and 1.weight are two parameters in one memory",
        ),
        (
            lambda: tied(lambda weight: weight[:, ::2]),
            "0.weight and 1.weight are two parameters in one memory",
        ),
    ],
)
def test_what_strategies_would_lose_is_refused(build: Callable[[], nn.Module], line: str) -> None:
    with pytest.raises(LaunchError) as error:
        refuse_what_would_be_lost(build())
    assert str(error.value).startswith(line)


def test_parts_of_one_memory_that_do_not_meet_are_taken() -> None:
    whole, model = torch.randn(6, 8), nn.ParameterDict()
    model["left"], model["right"] = (
        nn.Parameter(whole[:4, :4]),
        nn.Parameter(whole[:4, 4:]),
    )  # columns, between each other
    model["below"], model["shared"] = nn.Parameter(whole[4:]), model["left"]
    model["blank"] = nn.Parameter(torch.empty(2, 2, device="meta"))
    model["blank_too"] = nn.Parameter(torch.empty(2, 2, device="meta"))
    refuse_what_would_be_lost(nn.ModuleList([model, Nothing(2, 2)]))
    before = {name: parameter.clone() for name, parameter in model.items() if not parameter.is_meta}
    assert make_contiguous(model) == [
        "2 parameters are laid out row by row (channels_last, transposed views); inputs in channels_last still compute "
        "in that layout"
    ]
    assert all(
        model[name].is_contiguous() and torch.equal(model[name], value)
        for name, value in before.items()
    )


def test_views_of_one_memory_in_two_dtypes_are_compared_byte_by_byte() -> None:
    """A mapped file of mixed precision: the element numbers meet, the bytes do not."""
    stored = torch.zeros(160, dtype=torch.uint8)
    model = nn.ParameterDict()
    model["short"] = nn.Parameter(stored[40:80].view(torch.bfloat16))
    model["long"] = nn.Parameter(stored[80:120].view(torch.float32))
    refuse_what_would_be_lost(model)
    model["over"] = nn.Parameter(stored[116:124].view(torch.bfloat16))
    with pytest.raises(LaunchError, match=r"^long and over are two parameters in one memory"):
        refuse_what_would_be_lost(model)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_buffers_that_have_no_rows_stay_as_they_are() -> None:
    model, dense = nn.Module(), torch.eye(4)
    model.register_buffer("coo", dense.to_sparse(), persistent=False)
    model.register_buffer("csr", dense.to_sparse_csr(), persistent=False)
    model.register_buffer("expanded", torch.ones(1, 4).expand(3, 4))
    refuse_what_would_be_lost(model)
    assert make_contiguous(model) == [] and model.expanded.is_contiguous()
    assert torch.equal(model.coo.to_dense(), dense) and torch.equal(model.csr.to_dense(), dense)


def test_a_compiled_layer_in_two_places_is_uncovered_in_both() -> None:
    model = nn.Module()
    model.first = model.second = torch.compile(nn.Linear(2, 2), backend="eager")
    unwrap_compiled(model)
    assert type(model.first) is nn.Linear and model.second is model.first
    assert [name for name, _ in model.named_parameters()] == ["first.weight", "first.bias"]


def test_compiled_modules_keep_their_names_and_run_compiled() -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    layer = nn.Linear(2, 2)
    built = torch.compile(
        nn.Sequential(torch.compile(layer, backend=backend), nn.ReLU()), backend=backend
    )
    x = torch.randn(3, 2)
    expected = layer(x).relu()
    assert any("_orig_mod" in name for name, _ in built.named_parameters())  # type: ignore[attr-defined]
    model = unwrap_compiled(built)  # type: ignore[arg-type]
    assert [name for name, _ in model.named_parameters()] == ["0.weight", "0.bias"] and type(
        model[0]
    ) is nn.Linear  # type: ignore[index]
    assert graphs == [] and torch.allclose(model(x), expected) and len(graphs) == 1
    assert (
        torch.allclose(layer(x).relu(), expected) and len(graphs) == 2
    )  # the layer is compiled for itself too


def test_hooks_on_gradients_see_full_precision_and_follow_a_model_without_values() -> None:
    with torch.device("meta"):
        model = nn.Linear(3, 1, bias=False, dtype=torch.bfloat16)
    seen = []
    model.weight.register_hook(
        lambda gradient: seen.append(gradient.dtype) or gradient * torch.tensor([1.0, 0.0, 2.0])
    )
    model.weight.register_hook(lambda gradient: None)  # one that only looks
    have_hooks_see_full_precision(model)
    allocate([model], torch.device("cpu"))
    model(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
    assert seen == [torch.float32]
    assert model.weight.grad is not None and model.weight.grad.tolist() == [[1.0, 0.0, 2.0]]
