"""Private attributes of torch: a release that removes one is named here.

Each test uses the attribute as the package does. Where one fails, read the function of the same
name in ``trainer/private/torch.py``: it says what the attribute is needed for.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.private import fsdp as private_fsdp
from trainer.private import torch as private_torch

TORCH = f"torch {torch.__version__}"


def test_batch_norm_base_is_the_class_of_modules_with_running_statistics() -> None:
    for module in (nn.BatchNorm1d(2), nn.SyncBatchNorm(2), nn.InstanceNorm2d(2)):
        assert isinstance(module, private_torch.BatchNormBase), (
            f"{TORCH} has no _NormBase of {type(module).__name__}"
        )


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


@pytest.mark.parametrize("name", ["_foreach_norm", "_foreach_mul_", "_foreach_lerp_"])
def test_torch_has_operations_on_lists_of_tensors(name: str) -> None:
    assert hasattr(torch, name), f"{TORCH} has no torch.{name}"


class Buffers(nn.Module):
    """A saved buffer, one that is not saved, one that is None, and a parameter that is None."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_parameter("bias", None)
        self.register_buffer("saved", torch.zeros(1))
        self.register_buffer("temporary", torch.zeros(1), persistent=False)
        self.register_buffer("absent", None)


@pytest.mark.parametrize(
    "name", ["_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"]
)
def test_modules_have_the_attribute(name: str) -> None:
    assert hasattr(nn.Module(), name), f"{TORCH} has no Module.{name}"


def test_a_buffer_is_replaced_and_stays_saved_or_not() -> None:
    module = Buffers()
    for key in ("saved", "temporary", "absent"):
        private_torch.set_buffer(module, key, torch.ones(2))
    assert [buffer.tolist() for buffer in module.buffers()] == [[1.0, 1.0]] * 3
    saved = [
        key for key in dict(module.named_buffers()) if private_torch.is_persistent(module, key)
    ]
    assert saved == ["saved", "absent"]
    assert [*module.state_dict()] == ["weight", "saved", "absent"], (
        f"{TORCH} does not read Module._non_persistent_buffers_set"
    )


# Importing what compiles.
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
def test_compiled_and_recomputed_modules_have_the_names_of_wrappers() -> None:
    module = nn.Linear(1, 1)
    compiled = torch.compile(module)
    recomputed = private_fsdp.recomputed(module, offload=False)
    name = private_torch.RECOMPUTED
    assert [*dict(recomputed.named_children())] == [name], f"{TORCH} does not name it {name}"
    assert private_torch.is_compiled(compiled), f"{TORCH} has another name for it"
    assert not private_torch.is_compiled(module)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
def test_torch_compile_leaves_a_marked_function_alone() -> None:
    compiled: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        compiled.append(graph.code)
        return graph.forward

    @private_torch.not_compiled
    def marked(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    model = torch.compile(lambda x: marked(x) * 2, backend=backend)
    assert model(torch.ones(())) == 4
    assert len(compiled) == 2, "a graph of its own, where what it calls is compiled"
    assert not any(" + 1" in code and " * 2" in code for code in compiled)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
def test_graphs_and_their_breaks_are_counted() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    try:
        graphs, breaks = private_torch.count_graphs()
        torch.compile(broken, backend="eager")(torch.ones(()))
        assert private_torch.count_graphs() == (graphs + 2, breaks + 1)
    except (AttributeError, KeyError) as error:
        pytest.fail(f"{TORCH} has no torch._dynamo.utils.counters as before: {error}")


def test_dynamo_is_a_module_of_torch() -> None:
    try:
        private_torch.import_dynamo()
    except ImportError:
        pytest.fail(f"{TORCH} has no torch._dynamo")


def test_layers_reset_their_parameters_by_one_of_the_methods() -> None:
    public, private = private_torch.RESET_METHODS
    assert hasattr(nn.Linear(1, 1), public)
    assert hasattr(nn.MultiheadAttention(2, 1), private), (
        f"{TORCH} has no MultiheadAttention.{private}"
    )


def test_hooks_behind_a_gradient_are_seen() -> None:
    parameter = nn.Parameter(torch.ones(2))
    assert not private_torch.has_accumulation_hooks(parameter)
    parameter.register_post_accumulate_grad_hook(lambda parameter: None)
    assert private_torch.has_accumulation_hooks(parameter), (
        f"{TORCH} has no Tensor._post_accumulate_grad_hooks"
    )


def test_edits_in_place_are_counted() -> None:
    tensor = torch.ones(2)
    assert hasattr(tensor, "_version"), f"{TORCH} has no Tensor._version"
    before = private_torch.edit_count(tensor)
    tensor.add_(1)
    assert private_torch.edit_count(tensor) == before + 1


def test_a_schedule_is_set_to_a_step() -> None:
    def schedule() -> torch.optim.lr_scheduler.LambdaLR:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=1.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
        optimizer.step()
        return schedule

    stepped, set_there = schedule(), schedule()
    for _ in range(3):
        stepped.step()
    private_torch.set_schedule(set_there, 3, [0.125])
    before, after = stepped.state_dict(), set_there.state_dict()
    assert after == before, f"{TORCH} keeps a schedule's steps and rates under other names"


def test_process_groups_their_time_outs_and_store(process_group: None) -> None:
    c10d = dist.distributed_c10d
    for name in ("_world", "_get_default_store"):
        assert hasattr(c10d, name), f"{TORCH} has no torch.distributed.distributed_c10d.{name}"
    assert hasattr(dist, "set_timeout") or hasattr(c10d, "_set_pg_timeout"), (
        f"{TORCH} has neither torch.distributed.set_timeout nor _set_pg_timeout"
    )

    [group] = private_torch.process_groups()
    private_torch.set_timeout(group, timedelta(seconds=7))
    private_torch.default_store().set("key", "value")
    assert private_torch.default_store().get("key") == b"value"


def test_hooks_on_the_step_of_an_optimizer_are_seen_and_dropped() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    assert not private_torch.has_step_hooks(optimizer), TORCH
    optimizer.register_step_pre_hook(lambda *given: pytest.fail("called"))
    assert private_torch.has_step_hooks(optimizer), TORCH
    private_torch.drop_step_hooks(optimizer)
    optimizer.step()
