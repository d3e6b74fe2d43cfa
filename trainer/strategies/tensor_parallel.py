"""Tensor parallelism: matrices of a layer divided over ranks, by transformers' plan of the model.

Shoeybi et al. 2019, "Megatron-LM". Only the inside of layers is divided: what one layer gives the
next is whole on every rank of a group. So the ranks of a group see the same batch and draw the same
random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from ..errors import LaunchError, Problem
from ..private.torch import own_parameters
from ..text import listed

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from ..plan import Plan

# The dimension of the weight that each style of transformers divides.
_DIVIDED_DIMENSION = {
    "colwise": 0,
    "rowwise": 1,
    "colwise_gather_output": 0,
    "colwise_rep": 0,
    "embedding_rowwise": 0,
}
# Layers of these styles have whole inputs and outputs, so one that cannot be divided may stay
# whole. The other styles depend on one another.
_MAY_STAY_WHOLE = ("colwise_gather_output", "colwise_rep", "embedding_rowwise")


class Columns(NamedTuple):
    """Some columns of a matrix, stored row behind row.

    Args:
        width: how many columns.
        stride: how many elements a row of the whole matrix has.
    """

    width: int
    stride: int

    def within(self, flat: Tensor, count: int) -> Tensor:
        """View ``count`` elements of a flat matrix from its first one on, as ``(rows, width)``."""
        return flat[: self.span(count)].unfold(0, self.width, self.stride)

    def span(self, count: int) -> int:
        """Return how many elements of the matrix lie from the first to the last of ``count``."""
        rows = count // self.width
        return (rows - 1) * self.stride + self.width

    def at(self, index: int) -> int:
        """Return the place in the matrix of element ``index``, counted from the first one."""
        row, column = divmod(index, self.width)
        return row * self.stride + column


def _planned(model: nn.Module) -> Iterator[tuple[str, str, nn.Module]]:
    """Yield name, style and module of each layer of transformers' plan."""
    from transformers.integrations.tensor_parallel import replace_layer_number_by_wildcard

    plan = getattr(model, "tp_plan", None) or {}
    for name, module in model.named_modules():
        style = plan.get(replace_layer_number_by_wildcard(name))
        if style:
            yield name, style, module


def _layer_problem(model: nn.Module, style: str, module: nn.Module, ranks: int) -> str:
    """Return why a layer cannot be divided; empty if it can."""
    if style not in _DIVIDED_DIMENSION:
        return f"is to be {style!r}, which is not supported here"

    # Another class may do more with its weight than multiply.
    if type(module) not in (nn.Linear, nn.Embedding):
        return f"is a {type(module).__name__}, which is not divided here"

    for other in model.modules():
        if other is not module and _has_parameter(other, module.weight):
            return "shares its weight with another layer"

    size = module.get_parameter("weight").shape[_DIVIDED_DIMENSION[style]]
    if size % ranks:
        return f"has {size}, not a multiple of {ranks}"
    return ""


def _has_parameter(module: nn.Module, parameter: Any) -> bool:
    """Return whether a module itself has a parameter, and not a module within it."""
    return any(own is parameter for own in module.parameters(recurse=False))


def problem_of(model: nn.Module, ranks: int) -> str:
    """Return why a model cannot be divided over so many ranks; empty if it can."""
    class_name = type(model).__name__
    layers = list(_planned(model))
    if not layers:
        return (
            f"{class_name} has no plan by which its layers are divided; those of transformers "
            "have, whose configuration has a base_model_tp_plan (Llama, Mistral, Qwen2, ...), "
            "and models with adapters have not"
        )

    problems = []
    config: Any = getattr(model, "config", None)
    for key in ("num_attention_heads", "num_key_value_heads"):
        count = getattr(config, key, None) or ranks
        if count % ranks:
            problems.append(f"{key} is {count}, not a multiple of {ranks}")

    for name, style, module in layers:
        if style in _MAY_STAY_WHOLE:
            continue
        reason = _layer_problem(model, style, module, ranks)
        if reason:
            problems.append(f"{name} {reason}")

    if not problems:
        return ""
    return f"{class_name} cannot be divided over {ranks} ranks: {listed(problems)}"


def refuse_without_transformers(plan: Plan) -> None:
    """Raise ``LaunchError`` where layers are to be divided and transformers is not installed."""
    if plan.tensor_parallel_size > 1 and find_spec("transformers") is None:
        raise LaunchError(
            "tensor parallelism goes by transformers' plans of models: pip install 'samecurve[llm]'"
        )


def problems_of(plan: Plan, model: nn.Module) -> list[Problem]:
    """Return what keeps a plan's tensor parallelism, where it has any, from dividing a model."""
    size = plan.tensor_parallel_size
    if size == 1:
        return []
    rule = problem_of(model, size)
    if not rule:
        return []
    return [Problem(origin=plan.origin("fsdp.tp_size"), value=size, rule=rule)]


def divide(model: nn.Module, mesh: DeviceMesh) -> list[str]:
    """Divide the layers of a model that is not prepared yet, in place; nothing is exchanged.

    The styles of transformers are applied one by one. Its own function for whole models changed
    between 5.17 and 5.23; the styles did not.

    Returns:
        A notice where layers of the plan stay whole.
    """
    from transformers.integrations.tensor_parallel import ALL_PARALLEL_STYLES

    whole = []
    for name, style, module in list(_planned(model)):
        reason = _layer_problem(model, style, module, mesh.size())
        if reason:
            whole.append(f"{name} ({reason})")
            continue

        for key in list(own_parameters(module)):
            ALL_PARALLEL_STYLES[style].shard_param(module, key, mesh)
        ALL_PARALLEL_STYLES[style].install_forward(module, mesh)

    if not whole:
        return []
    return [f"whole on each rank of a tensor-parallel group: {listed(whole)}"]
