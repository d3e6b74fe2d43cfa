"""Private attributes of torch's FSDP2: a release that removes one is named here.

Each test uses the attribute as the package does. If one fails, read the function of the same name
in ``trainer/private/torch_fsdp.py``: it says what the attribute is needed for.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from trainer.private import torch_fsdp as private_fsdp
from trainer.strategies.fsdp import FSDP2

TORCH = f"torch {torch.__version__}"


def test_a_unit_lists_the_parameters_that_it_gathers(process_group: None) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    assert isinstance(model, FSDPModule)
    assert hasattr(model, "_get_fsdp_state"), f"{TORCH} has no FSDPModule._get_fsdp_state"
    state: Any = model._get_fsdp_state()
    assert hasattr(state, "_fsdp_param_groups") or hasattr(state, "_fsdp_param_group"), (
        f"{TORCH} has no _fsdp_param_groups in the state of an FSDPModule"
    )

    model(torch.ones(1, 2))
    (name, weight), _ = private_fsdp.gathered_by(model)
    assert name == "0.weight", f"{TORCH} has no FSDPParam._param_fqn"
    assert weight is not None, f"{TORCH} has no FSDPParam._unsharded_param"
    assert weight.shape == (3, 2)


def test_a_pass_ends_where_it_has_failed(process_group: None) -> None:
    model: Any = nn.Linear(2, 3)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(RuntimeError, match="mat1"):
        model(torch.ones(1, 5))
    model.reshard()
    assert not hasattr(model.weight, "placements"), f"{TORCH}: reshard alone divides it by now"
    private_fsdp.end_pass(model)
    model.reshard()
    assert hasattr(model.weight, "placements"), f"{TORCH} has no _training_state"
    assert model._get_fsdp_state()._state_ctx.iter_forward_root is None


def test_a_layer_outside_of_its_unit_ends_in_an_error_that_is_known(process_group: None) -> None:
    model = nn.Sequential(nn.Linear(2, 3))
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(RuntimeError) as found:
        model.forward(torch.ones(1, 2))
    assert any(part in str(found.value) for part in FSDP2.known_errors), f"{TORCH} says otherwise"


@pytest.mark.parametrize("offload", [False, True])
def test_a_recomputed_module_draws_the_random_numbers_of_before(offload: bool) -> None:
    try:
        module = private_fsdp.recomputed(nn.Dropout(0.5), offload=offload)
    except ImportError:
        pytest.fail(
            f"{TORCH} has no checkpoint_wrapper in torch.distributed.algorithms._checkpoint"
        )
    value = torch.ones(64, requires_grad=True)
    output = module(value)
    output.sum().backward()
    assert torch.equal(value.grad, output.detach()), "the second pass dropped other elements"


def test_a_number_of_a_distributed_tensor_is_read_whole(process_group: None) -> None:
    """Jobs on two processes hold the values. torch may give the table another name."""
    private_fsdp.read_whole_numbers()
    tensor = distribute_tensor(torch.ones(4, 3), init_device_mesh("cpu", (1,)), [Shard(0)])
    assert float(tensor.sum()) == 12
