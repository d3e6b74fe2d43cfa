"""Tensor parallelism: the matrices of a layer divided over ranks, by the plan that transformers has
for the model.

Shoeybi et al. 2019, "Megatron-LM". Only the layers' inside is divided: what goes from one to the
next is whole on every rank of a group, which therefore all see the same batch and draw the same
random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from ..errors import LaunchError, Problem
from ..text import listed

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from ..plan import Plan

# The dimension of the weight that a style of transformers divides. The last two give and take whole
# tensors, so a layer that cannot be divided may stay whole; the others fit one another.
_DIVIDES = {
    "colwise": 0,
    "rowwise": 1,
    "colwise_gather_output": 0,
    "colwise_rep": 0,
    "embedding_rowwise": 0,
}
_MAY_STAY_WHOLE = ("colwise_gather_output", "colwise_rep", "embedding_rowwise")


class Columns(NamedTuple):
    """Some columns of a matrix, one row behind the other: each has ``width`` elements of a row of
    ``stride``.
    """

    width: int
    stride: int

    def within(self, flat: Tensor, count: int) -> Tensor:
        """View ``count`` elements of a flat matrix from its first one on, as ``(rows, width)``."""
        return flat[: self.span(count)].unfold(0, self.width, self.stride)

    def span(self, count: int) -> int:
        """Return how many elements of the matrix lie from the first to the last of ``count``."""
        return (count // self.width - 1) * self.stride + self.width

    def at(self, index: int) -> int:
        """Return where element ``index`` lies in the matrix, counted from the first one."""
        return index // self.width * self.stride + index % self.width


def _planned(model: nn.Module) -> Iterator[tuple[str, str, nn.Module]]:
    """Yield name, style and module of each layer of the plan."""
    from transformers.integrations.tensor_parallel import replace_layer_number_by_wildcard

    plan = getattr(model, "tp_plan", None) or {}
    for name, module in model.named_modules():
        if style := plan.get(replace_layer_number_by_wildcard(name)):
            yield name, style, module


def _problem(model: nn.Module, style: str, module: nn.Module, ranks: int) -> str:
    """Say why a layer cannot be divided; empty if it can."""
    if style not in _DIVIDES:
        return f"is to be {style!r}, which is not supported here"
    if type(module) not in (
        nn.Linear,
        nn.Embedding,
    ):  # another class may do more with its weight than multiply
        return f"is a {type(module).__name__}, which is not divided here"
    elsewhere = (other for other in model.modules() if other is not module)
    if any(module.weight is value for other in elsewhere for value in other._parameters.values()):
        return "shares its weight with another layer"
    size = module.get_parameter("weight").shape[_DIVIDES[style]]
    return f"has {size}, not a multiple of {ranks}" if size % ranks else ""


def problem_of(model: nn.Module, ranks: int) -> str:
    """Say why a model cannot be divided over so many ranks; empty if it can."""
    class_name, layers = type(model).__name__, list(_planned(model))
    if not layers:
        return (
            f"{class_name} has no plan by which its layers are divided; those of transformers have, whose "
            "configuration has a base_model_tp_plan (Llama, Mistral, Qwen2, ...), and models with adapters have not"
        )
    config: Any = getattr(model, "config", None)
    counts = {
        key: getattr(config, key, None) or ranks
        for key in ("num_attention_heads", "num_key_value_heads")
    }
    wrong = [
        f"{key} is {count}, not a multiple of {ranks}"
        for key, count in counts.items()
        if count % ranks
    ]
    for name, style, module in layers:
        if style not in _MAY_STAY_WHOLE and (why := _problem(model, style, module, ranks)):
            wrong.append(f"{name} {why}")
    return f"{class_name} cannot be divided over {ranks} ranks: {listed(wrong)}" if wrong else ""


def refuse_without_transformers(plan: Plan) -> None:
    """Raise ``LaunchError`` where layers are to be divided and the library is not there that has
    the plan for it.
    """
    if plan.tensor_parallel_size > 1 and find_spec("transformers") is None:
        raise LaunchError(
            "tensor parallelism goes by transformers' plans of models: pip install 'samecurve[llm]'"
        )


def problems_of(plan: Plan, model: nn.Module) -> list[Problem]:
    """Hold a plan's tensor parallelism, where it has any, against a model."""
    size = plan.tensor_parallel_size
    if size == 1:
        return []
    rule = problem_of(model, size)
    return [Problem(origin=plan.origin("fsdp.tp_size"), value=size, rule=rule)] if rule else []


def divide(model: nn.Module, mesh: DeviceMesh) -> list[str]:
    """Divide the layers of an unprepared model in place, of which each rank keeps its part; nothing
    is exchanged.

    transformers' own way to do it has changed from 5.17 to 5.23; its styles have not.

    Returns:
        A notice where layers of the plan stay whole.
    """
    from transformers.integrations.tensor_parallel import ALL_PARALLEL_STYLES

    whole = []
    for name, style, module in list(_planned(model)):
        if why := _problem(model, style, module, mesh.size()):
            whole.append(f"{name} ({why})")
            continue
        for key in list(module._parameters):
            ALL_PARALLEL_STYLES[style].shard_param(module, key, mesh)
        ALL_PARALLEL_STYLES[style].install_forward(module, mesh)
    return [f"whole on each rank of a tensor-parallel group: {listed(whole)}"] if whole else []
