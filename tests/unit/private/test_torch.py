"""Private attributes of torch: a release that removes one is named here.

The attributes here are those that the code writes, or reads with a default: jobs fail without any
other one. Where a test fails, read the function that uses the name in ``trainer/private/torch.py``: it says
what the attribute is needed for.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trainer.private import torch as private_torch

TORCH = f"torch {torch.__version__}"
OPTIMIZER = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], fused=True)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (OPTIMIZER, "_step_supports_amp_scaling"),
        (torch.Tensor, "_backward_hooks"),
        (torch.Tensor, "_post_accumulate_grad_hooks"),
    ],
)
def test_torch_has_the_attribute(owner: object, name: str) -> None:
    assert hasattr(owner, name), f"{TORCH} has no {name} of {owner}"


def test_batch_norm_base_is_the_class_of_modules_with_running_statistics() -> None:
    for module in (nn.BatchNorm1d(2), nn.SyncBatchNorm(2), nn.InstanceNorm2d(2)):
        assert isinstance(module, private_torch.BatchNormBase), (
            f"{TORCH} has no _NormBase of {type(module).__name__}"
        )


class Buffers(nn.Module):
    """A saved buffer, one that is not saved, one that is None, and a parameter that is None."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_parameter("bias", None)
        self.register_buffer("saved", torch.zeros(1))
        self.register_buffer("temporary", torch.zeros(1), persistent=False)
        self.register_buffer("absent", None)


def test_a_buffer_is_replaced_and_stays_saved_or_not() -> None:
    module = Buffers()
    for key in ("saved", "temporary", "absent"):
        private_torch.own_buffers(module)[key] = torch.ones(2)
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


def test_hooks_on_the_step_of_an_optimizer_are_seen() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    assert not private_torch.has_step_hooks(optimizer), TORCH
    optimizer.register_step_pre_hook(lambda *given: pytest.fail("called"))
    assert private_torch.has_step_hooks(optimizer), TORCH


def test_hooks_on_a_gradient_can_be_shared() -> None:
    parameter, other = (nn.Parameter(torch.ones(2)) for _ in range(2))
    called: list[torch.Tensor] = []
    parameter.register_hook(called.append)  # type: ignore[no-untyped-call]
    private_torch.share_gradient_hooks(other, parameter)
    other.sum().backward()  # type: ignore[no-untyped-call]
    assert len(called) == 1, f"{TORCH} does not call hooks that were set as _backward_hooks"
