"""The model of a run, built in a form that every strategy can take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from accelerate.utils import set_seed
from torch import nn

from ..checkpoint.exported import ModelFile, check_storable, export_dtypes, set_config_dtype
from ..checkpoint.safetensors_io import dtype_name
from ..errors import CheckpointError, LaunchError
from ..private.torch import BatchNormBase, DropoutBase
from ..run import Built, Read
from ..strategies.base import compute_in
from ..strategies.tensors import is_on_meta
from ..task import Task, new_names, sources_of
from ..text import listed
from .normalize import make_contiguous, refuse_compiled, refuse_shared_memory
from .returned import returned

if TYPE_CHECKING:
    from ..config.train_config import TrainConfig
    from ..run_plan import Plan


def build_model(task: Task, config: TrainConfig, plan: Plan) -> tuple[nn.Module, list[str]]:
    """Build the task's model, with trainable weights in float32, and a notice of each change."""
    set_seed(config.seed)  # the weights do not depend on random numbers of build_data
    model = returned(task.build_model(), nn.Module, task, "build_model")
    refuse_compiled(model)
    for parameter in model.parameters():
        if not parameter.numel():
            parameter.requires_grad_(False)  # FSDP2 and ZeRO-3 fail on a gradient without elements
    if config.sync_batchnorm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]

    refuse_shared_memory(model)  # before each tensor may get a memory of its own
    notices = _widen(model, plan)
    make_contiguous(model)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise LaunchError("the model has no trainable parameters")
    return model, notices


def _widen(model: nn.Module, plan: Plan) -> list[str]:
    """Cast trainable parameters to float32, in which no small update is lost. Return a notice."""
    computes_in_float32 = plan.mixed_precision == "no"
    narrow = [  # frozen weights may stay if layers compute in mixed precision anyway
        p
        for p in model.parameters()
        if p.is_floating_point() and p.dtype != torch.float32
        if p.requires_grad or computes_in_float32
    ]
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
    return sum(map(_elements, model.parameters()))


def _elements(parameter: nn.Parameter) -> int:
    count: int = getattr(parameter, "quant_state", parameter).shape.numel()
    return count


def operations_per_token(model: nn.Module) -> int:
    """Count the floating-point operations of a token with the parameters, forward and backward."""
    # An embedding multiplies nothing, unless the head shares its weight. All experts count.
    multiplied = {
        parameter
        for module in model.modules()
        if not isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
    }

    # For each parameter two operations forward, as many for the gradients of the activations, and
    # as many again for the gradients of the weights.
    return sum(_elements(p) * (6 if p.requires_grad else 4) for p in multiplied)


def model_of(read: Read) -> Built:
    """Build the model of a run, not prepared yet. Each change is a notice."""
    task, config, trains = read.task, read.config, read.setup.trains
    resumes = read.folder.start.found is not None
    module, changes = build_model(task, config, read.plan)
    frozen_modes, modes = enter_training_mode(task, module) if trains else ([], [])
    sources = sources_of(task, module) if is_on_meta(module) else []
    dtypes = export_dtypes(module, config.export_dtype, sources)
    model_file = ModelFile.of(task, module, dtypes)
    if trains:
        check_storable(module)

    # Of a model whose part is saved, the files of the model hold the rest.
    is_read = resumes or config.weights is not None
    has_all = model_file.names is None and is_read
    new = sorted(new_names(sources))
    if new and not trains and not is_read:
        folders = ", ".join(str(source.folder) for source in sources)
        raise CheckpointError(f"{folders}: does not hold this model: it lacks {listed(new)}")
    fill = None
    if is_on_meta(module):
        from .meta_model import fill_buffers

        fill = fill_buffers(module, task, config.seed, resumes=has_all)
    read.note(*changes, *modes)
    return Built(
        setup=read.setup,
        folder=read.folder,
        length=read.length,
        sets=read.sets,
        module=module,
        fill=fill,
        model_file=model_file,
        frozen_modes=frozen_modes,
        reads_weights_later=has_all,
    )


def enter_training_mode(task: Task, model: nn.Module) -> tuple[list[nn.Module], list[str]]:
    """Put a model into training mode, except for modules that are held in evaluation mode.

    Returns the modules of ``Task.held_in_evaluation``, and a notice of modes that may surprise.
    """
    # from_pretrained leaves all modules in evaluation mode, to which peft adds layers. Here the
    # mode makes a difference.
    kinds = BatchNormBase | DropoutBase
    still = {name: m for name, m in model.named_modules() if not m.training}
    left = [name for name, module in still.items() if isinstance(module, kinds)]
    parts = [name for name in still if name.rpartition(".")[0] not in still] or left
    is_mixed = any(m.training for m in model.modules() if m is model or isinstance(m, kinds))

    held = list(task.held_in_evaluation(model))
    model.train()
    for module in held:
        module.eval()

    is_told = type(task).held_in_evaluation is not Task.held_in_evaluation
    if not left or is_told or hasattr(model, "peft_config"):
        return held, []
    if is_mixed:
        raise LaunchError(
            f"build_model leaves some layers in evaluation mode ({', '.join(parts)}): write a "
            "method held_in_evaluation(self, model) of the task, which returns a list of the "
            "modules that stay in evaluation mode while the model trains, or []"
        )
    return held, [
        f"build_model left {listed(left)} in evaluation mode: they train in training mode; "
        "Task.held_in_evaluation names modules that stay"
    ]
