"""Tensor parallelism: the matrices of a layer divided over ranks, by the plan that transformers has for the model.

Shoeybi et al. 2019, "Megatron-LM". Only the layers' inside is divided: what goes from one to the next is whole on every
rank of a group, which therefore all see the same batch and draw the same random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import nn

from ..text import listed

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# The dimension of the weight that a style of transformers divides. The last two give and take whole tensors, so a layer
# that cannot be divided may stay whole; the others fit one another.
_DIVIDES = {"colwise": 0, "rowwise": 1, "colwise_gather_output": 0, "colwise_rep": 0, "embedding_rowwise": 0}
_MAY_STAY_WHOLE = ("colwise_gather_output", "colwise_rep", "embedding_rowwise")


class _Layer:
    """A layer of the plan, with the rule that transformers has for it."""

    def __init__(self, model: nn.Module, name: str, style: str) -> None:
        self.name, self.style, self.module = name, style, model.get_submodule(name)
        weight = getattr(self.module, "weight", None)
        self.size = weight.shape[_DIVIDES[style]] if style in _DIVIDES and weight is not None else 0
        elsewhere = (other for other in model.modules() if other is not self.module)
        tied = any(weight is value for other in elsewhere for value in other._parameters.values())
        # A layer of another class may do more with its weight than multiply.
        self.is_plain = type(self.module) in (nn.Linear, nn.Embedding) and not tied

    def problem(self, ranks: int) -> str:
        """Say why it cannot be divided; empty if it can."""
        if self.style not in _DIVIDES:
            return f"{self.name} is to be {self.style!r}, which is not supported here"
        if not self.is_plain:
            return f"{self.name} is a {type(self.module).__name__}, which is not divided here"
        return f"{self.name} has {self.size}, not a multiple of {ranks}" if self.size % ranks else ""


def _planned(model: nn.Module) -> Iterator[_Layer]:
    from transformers.integrations.tensor_parallel import replace_layer_number_by_wildcard

    plan = getattr(model, "tp_plan", None) or {}
    for name, _ in model.named_modules():
        if style := plan.get(replace_layer_number_by_wildcard(name)):
            yield _Layer(model, name, style)


def problem_of(model: nn.Module, ranks: int) -> str:
    """Say why a model cannot be divided over so many ranks; empty if it can."""
    name, layers = type(model).__name__, list(_planned(model))
    if not layers:
        return (
            f"{name} has no plan by which its layers are divided; those of transformers have, whose configuration has "
            "a base_model_tp_plan (Llama, Mistral, Qwen2, Gemma, ...), and models with adapters have not"
        )
    wrong = [text for one in layers if one.style not in _MAY_STAY_WHOLE and (text := one.problem(ranks))]
    config: Any = getattr(model, "config", None)
    for key in ("num_attention_heads", "num_key_value_heads"):
        if (heads := getattr(config, key, None) or ranks) % ranks:
            wrong.insert(0, f"{key} is {heads}, not a multiple of {ranks}")
    return f"{name} cannot be divided over {ranks} ranks: {listed(wrong)}" if wrong else ""


def divide(model: nn.Module, mesh: DeviceMesh) -> list[str]:
    """Divide the layers of an unprepared model in place, each rank keeps its part; nothing is exchanged.

    transformers' own way to do it has changed from 5.17 to 5.23; its styles have not.

    Returns:
        A notice where layers of the plan stay whole.
    """
    from transformers.integrations.tensor_parallel import ALL_PARALLEL_STYLES

    whole = []
    for layer in list(_planned(model)):
        if layer.problem(mesh.size()):
            whole.append(layer.name)
            continue
        style = ALL_PARALLEL_STYLES[layer.style]
        for key in list(layer.module._parameters):
            style.shard_param(layer.module, key, mesh)
        style.install_forward(layer.module, mesh)
    kept = f"whole in each tensor-parallel group: {listed(whole)} (tied, of a class of its own, or not a multiple of "
    return [f"{kept}{mesh.size()})"] if whole else []
