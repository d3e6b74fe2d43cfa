"""Private attributes of torch and Accelerate: a release that removes one is named here.

Each test uses the attribute as the strategies do. Where one fails, read the function of the same
name in ``trainer/strategies/private_torch.py``: it says what the attribute is needed for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import accelerate
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from trainer.strategies import private_torch

TORCH = f"torch {torch.__version__}"


@pytest.fixture
def process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_batch_norm_base_is_the_class_of_modules_with_running_statistics() -> None:
    for module in (nn.BatchNorm1d(2), nn.SyncBatchNorm(2), nn.InstanceNorm2d(2)):
        assert isinstance(module, private_torch.BatchNormBase), (
            f"{TORCH} has no _NormBase of {type(module).__name__}"
        )


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
    weight, bias = private_torch.gathered_by(model)
    assert (weight.name, bias.name) == ("0.weight", "0.bias"), (
        f"{TORCH} has no FSDPParam._param_fqn"
    )
    assert (weight.module, weight.key) == (model[0], "weight"), (
        f"{TORCH} has no FSDPParam._module_info"
    )
    assert weight.unsharded is not None, f"{TORCH} has no FSDPParam._unsharded_param"
    assert weight.unsharded.shape == (3, 2)


def test_shape_and_offset_of_a_distributed_tensor(process_group: None) -> None:
    mesh = init_device_mesh("cpu", (1,))
    tensor = distribute_tensor(torch.zeros(4, 3), mesh, [Shard(0)])
    try:
        shape, offset = private_torch.local_shape_and_offset(tensor)
    except ImportError:
        pytest.fail(f"{TORCH} has no compute_local_shape_and_global_offset")
    assert (tuple(shape), tuple(offset)) == ((4, 3), (0, 0))


@pytest.mark.parametrize("offload", [False, True])
def test_a_recomputed_module_draws_the_random_numbers_of_before(offload: bool) -> None:
    try:
        module = private_torch.recomputed(nn.Dropout(0.5), offload=offload)
    except ImportError:
        pytest.fail(
            f"{TORCH} has no checkpoint_wrapper in torch.distributed.algorithms._checkpoint"
        )
    value = torch.ones(64, requires_grad=True)
    output = module(value)
    output.sum().backward()
    assert torch.equal(value.grad, output.detach()), "the second pass dropped other elements"


def test_redistribution_is_logged_under_the_name_that_is_silenced() -> None:
    from torch.distributed.tensor import _redistribute

    assert _redistribute.logger.name == "torch.distributed.tensor._redistribute", (
        f"{TORCH} logs redistribution under another name"
    )
    private_torch.silence_redistribution()
    assert not _redistribute.logger.isEnabledFor(logging.WARNING)


def test_hooks_on_gradients_can_be_read_and_shared() -> None:
    parameter = nn.Parameter(torch.ones(2))
    assert hasattr(parameter, "_backward_hooks"), f"{TORCH} has no Tensor._backward_hooks"
    assert private_torch.gradient_hooks(parameter) == {}

    called: list[Tensor] = []
    parameter.register_hook(called.append)  # type: ignore[no-untyped-call]
    assert list(private_torch.gradient_hooks(parameter).values()) == [called.append]

    other = nn.Parameter(torch.ones(2))
    private_torch.share_gradient_hooks(other, parameter)
    other.sum().backward()  # type: ignore[no-untyped-call]
    assert len(called) == 1, f"{TORCH} does not call hooks that were set as _backward_hooks"


def test_operations_are_numbered_in_the_order_in_which_they_were_recorded() -> None:
    first = torch.ones(2, requires_grad=True).sin()
    second = first.cos()
    assert hasattr(first.grad_fn, "_sequence_nr"), f"{TORCH} has no _sequence_nr of graph nodes"
    assert private_torch.sequence_number(first.grad_fn) < private_torch.sequence_number(
        second.grad_fn
    )


def test_buckets_of_ddp_can_be_rebuilt(process_group: None) -> None:
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    assert hasattr(model.reducer, "_rebuild_buckets"), f"{TORCH} has no Reducer._rebuild_buckets"
    assert hasattr(model.reducer, "prepare_for_backward"), (
        f"{TORCH} has no Reducer.prepare_for_backward"
    )
    model(torch.ones(1, 2)).sum().backward()
    private_torch.rebuild_buckets(model)


def test_fused_optimizers_say_that_they_read_found_inf() -> None:
    parameter = nn.Parameter(torch.ones(2))
    fused = torch.optim.AdamW([parameter], fused=True)
    assert private_torch.reads_found_inf(fused), (
        f"{TORCH} has no _step_supports_amp_scaling of fused optimizers"
    )
    assert not private_torch.reads_found_inf(torch.optim.SGD([parameter], lr=0.1))


def test_a_step_that_was_left_out_on_purpose_gives_no_warning(
    recwarn: pytest.WarningsRecorder,
) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    private_torch.mark_stepped(optimizer)
    schedule.step()
    assert len(recwarn) == 0, f"{TORCH} does not read Optimizer._opt_called"


@pytest.mark.parametrize("name", ["_foreach_norm", "_foreach_mul_", "_foreach_copy_"])
def test_torch_has_operations_on_lists_of_tensors(name: str) -> None:
    assert hasattr(torch, name), f"{TORCH} has no torch.{name}"


def test_norms_products_and_copies_of_all_tensors() -> None:
    tensors = [torch.tensor([3.0, 4.0]), torch.tensor([[2.0]])]
    assert private_torch.norms_of(tensors).tolist() == [5.0, 2.0]
    private_torch.multiply_all(tensors, torch.tensor(0.5))
    assert [tensor.tolist() for tensor in tensors] == [[1.5, 2.0], [[1.0]]]
    private_torch.copy_all(tensors, [torch.zeros(2), torch.ones(1, 1)])
    assert [tensor.tolist() for tensor in tensors] == [[0.0, 0.0], [[1.0]]]


def test_accelerate_forgets_models_that_were_registered() -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    assert hasattr(accelerator, "_models"), (
        f"accelerate {accelerate.__version__} has no Accelerator._models"
    )
    private_torch.register_model(accelerator, nn.Linear(1, 1))
    assert len(accelerator._models) == 1
    accelerator.free_memory()
    assert accelerator._models == []
