"""The model of a run, built as every strategy can take it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from accelerate.utils import set_seed
from torch import nn

from ..checkpoint.export import set_config_dtype
from ..checkpoint.safetensors_io import dtype_name
from ..errors import LaunchError
from ..strategies.base import compute_in
from ..task import Task
from .normalize import make_contiguous, refuse_compiled
from .returned import returned

if TYPE_CHECKING:
    from ..config.train_config import TrainConfig
    from ..plan import Plan


def build_model(task: Task, config: TrainConfig, plan: Plan) -> tuple[nn.Module, list[str]]:
    """Build the task's model: trainable weights in full precision, each contiguous.

    Returns:
        The model, and a notice of each change.

    Raises:
        LaunchError: the task built no model, or a model in which nothing is trainable.
    """
    set_seed(config.seed)  # the weights do not depend on random numbers of build_data
    model = returned(task.build_model(), nn.Module, task, "build_model")
    refuse_compiled(model)
    if config.sync_batchnorm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]

    notices = [*_widen(model, plan), *make_contiguous(model)]
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise LaunchError("the model has no trainable parameters")
    return model, notices


def _widen(model: nn.Module, plan: Plan) -> list[str]:
    """Cast trainable parameters to float32, and return a notice.

    Updates smaller than a 16-bit weight's last digit would be lost. Frozen weights keep their dtype
    if layers compute in mixed precision anyway.
    """
    computes_in_float32 = plan.mixed_precision == "no"
    narrow = []
    for parameter in model.parameters():
        is_narrow = parameter.is_floating_point() and parameter.dtype != torch.float32
        if is_narrow and (parameter.requires_grad or computes_in_float32):
            narrow.append(parameter)
    if not narrow:
        return []

    dtypes = sorted({dtype_name(parameter.dtype) for parameter in narrow})
    buffers = [b for b in model.buffers() if b.dtype in (torch.bfloat16, torch.float16)]
    for tensor in (*narrow, *buffers):
        tensor.data = tensor.data.float()
    set_config_dtype(getattr(model, "config", None), torch.float32)
    if computes_in_float32:
        compute_in(model, torch.float32)  # inputs that were meant for the narrow weights
    return [f"{len(narrow)} parameters of {', '.join(dtypes)} are kept in float32"]


def count_parameters(model: nn.Module) -> int:
    """Count the elements of all parameters. Of quantized parameters, the elements before that."""
    return sum(_elements(parameter) for parameter in model.parameters())


def _elements(parameter: nn.Parameter) -> int:
    count: int = getattr(parameter, "quant_state", parameter).shape.numel()
    return count


def operations_per_token(model: nn.Module) -> int:
    """Count the floating-point operations of a token with the parameters, forward and backward.

    An embedding looks rows up and multiplies nothing, unless the head shares the weight. All
    experts of a mixture count.
    """
    multiplied: set[nn.Parameter] = set()
    for module in model.modules():
        if not isinstance(module, nn.Embedding):
            multiplied.update(module.parameters(recurse=False))

    # For each parameter two operations forward, as many for the gradients of the activations, and
    # as many again for the gradients of the weights.
    return sum(_elements(p) * (6 if p.requires_grad else 4) for p in multiplied)


def held_in_evaluation(model: nn.Module) -> list[nn.Module]:
    """List the parts that build_model put into evaluation mode (a frozen BatchNorm), to stay there.

    A model that is in evaluation mode as a whole, as ``from_pretrained`` leaves it, is trained as a
    whole.
    """
    if not model.training:
        return []
    return [module for module in model.modules() if not module.training]
