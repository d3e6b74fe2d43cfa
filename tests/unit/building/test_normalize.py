"""The form that every strategy can take."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trainer.building.normalize import make_contiguous, refuse_compiled
from trainer.errors import LaunchError


def test_parameters_are_laid_out_row_by_row_with_their_values() -> None:
    model = nn.Linear(3, 2)
    model.weight = nn.Parameter(torch.arange(6.0).reshape(3, 2).t())
    before = model.weight.detach().clone()
    make_contiguous(model)
    assert model.weight.is_contiguous() and torch.equal(model.weight, before)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_buffers_that_have_no_rows_stay_as_they_are() -> None:
    model, dense = nn.Module(), torch.eye(4)
    model.register_buffer("coo", dense.to_sparse(), persistent=False)
    model.register_buffer("csr", dense.to_sparse_csr(), persistent=False)
    model.register_buffer("expanded", torch.ones(1, 4).expand(3, 4))
    make_contiguous(model)
    assert model.expanded.is_contiguous()
    assert torch.equal(model.coo.to_dense(), dense) and torch.equal(model.csr.to_dense(), dense)


@pytest.mark.parametrize("inside", [False, True])
def test_compiled_layers_are_refused_with_the_key_to_set(inside: bool) -> None:
    layer = torch.compile(nn.Linear(2, 2), backend="eager")
    model = nn.Sequential(layer) if inside else layer
    name = "0" if inside else "the model"
    with pytest.raises(LaunchError, match=f"^{name} is compiled already: .* set compile: true"):
        refuse_compiled(model)
