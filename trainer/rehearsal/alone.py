"""The functions of torch, the engine and the trainer that need values of other ranks or of files.

A rank that is alone answers them itself. Each replacement is for the rest of the process.
"""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import distributed as torch_ddp
from torch.utils._pytree import tree_leaves

from ..building import meta_model
from ..checkpoint import saver
from ..checks import edited
from ..strategies import optimizer_probe
from .cuda import replace_in


def answer_alone() -> None:
    """Answer for the other ranks, and read and write no files. Call before the job is launched."""
    replace_in(dist, all_gather_object=_gather, broadcast_object_list=_do_nothing)

    # No file of weights is read, and no checkpoint is written.
    replace_in(meta_model, of_pretrained=_do_nothing, fill=lambda *of_model: [])
    replace_in(saver, check_shared=_do_nothing)

    # No copy of a parameter has a value to compare.
    replace_in(edited.EditedParameters, _match=_do_nothing)

    # The trial of an optimizer compares values, which the host has.
    of_device = optimizer_probe.divided_step_problem
    replace_in(
        optimizer_probe,
        divided_step_problem=lambda optimizer, device: of_device(optimizer, torch.device("cpu")),
    )


def use_fakes() -> None:
    """Let DDP and transformers work with a fake group and fake tensors."""
    replace_in(torch_ddp, _verify_param_shape_across_processes=_do_nothing)

    if importlib.util.find_spec("transformers"):
        from transformers.integrations import moe
        from transformers.utils import import_utils

        # A tensor without values would be taken for tracing, which takes other kernels.
        replace_in(import_utils, is_fake_tensor=lambda tensor: False)
        # Experts in 32 bits run on a GPU, and torch's kernel for fake tensors refuses them.
        replace_in(
            moe, _can_use_grouped_mm=lambda rows, weight, offs: weight.dtype == torch.bfloat16
        )


def compare_alone() -> None:
    """Let ZeRO-3 compare this rank's order of layers with itself: a fake group sends none."""
    from deepspeed.runtime.zero import utils

    replace_in(utils, dist=SimpleNamespace(**{**vars(utils.dist), "get_rank": lambda: 0}))


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _gather(objects: list[Any], own: Any, group: Any = None) -> None:
    objects[:] = [own] * len(objects)


def buckets_of(model: Any) -> list[Any]:
    """Return the memory in which an engine collects gradients, with numbers and names among it."""
    buckets = getattr(getattr(model, "optimizer", None), "ipg_buckets", None) or {}
    return tree_leaves([vars(bucket) for bucket in buckets.values()])
