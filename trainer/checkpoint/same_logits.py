"""An exported model is loaded as users load it, and must have the logits of the trained model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn

from ..errors import CheckpointError
from ..strategies.tensors import unwrapped
from ..text import in_one_line

# The norm of the difference over the norm of the logits. TF32 and another order of sums change
# less than the first, rounding to 16 bits less than the second.
SAME_IN_32_BITS = 0.002
SAME_IN_16_BITS = 0.1


def logits_of(model: Any, product: Any) -> Tensor:
    """Return the logits of the batch that transformers has for ``product``, on the CPU."""
    device = next(model.parameters()).device
    rows = getattr(product.get_input_embeddings(), "num_embeddings", 8)  # tokens of 0 to 7
    inputs = {name: value.to(device) % rows for name, value in product.dummy_inputs.items()}
    with torch.no_grad():
        logits: Tensor = model(**inputs)[0]
    return logits.float().cpu()


def _gap(model: Any, product: Any, trained: Tensor) -> float:
    """Return the norm of the difference from the trained logits, over the norm of these."""
    return float((logits_of(model, product) - trained).norm() / trained.norm())


def check_of(
    model: nn.Module,
    load: Callable[[Path], Any],
    *,
    exported: str,
    parameters: int,
    rounded: bool,
    say: Callable[[str], object],
) -> Callable[[Path], object]:
    """Return a function that compares an exported folder with the trained model.

    Collective: call on every rank, in ``run.evaluating()``. The function is for the main process.
    It raises ``CheckpointError`` if the folder gives another model. A model that takes no tokens,
    that draws random numbers in evaluation mode, or that does not fit into the free memory, is not
    compared.
    """
    module = unwrapped(model)
    product = module.get_submodule(exported)
    if getattr(product, "main_input_name", "") != "input_ids":
        return bool
    try:
        trained = logits_of(module, product)
        reason = "it draws random numbers" * (_gap(module, product, trained) > SAME_IN_32_BITS)
    except Exception as error:  # the model takes more than tokens
        reason = str(error)
    if psutil.virtual_memory().available < 8 * parameters:
        reason = "too little memory to load the files"
    if reason:
        say(f"exports are not compared with the model: {reason}")
        return bool

    def check(folder: Path) -> None:
        with torch.random.fork_rng(devices=[]):
            try:
                loaded = load(folder).eval()
                gap = _gap(loaded, loaded, trained)
            except Exception as error:  # transformers, safetensors and further libraries
                raise CheckpointError(f"does not load: {in_one_line(error)}") from None

        is_rounded = rounded or loaded.dtype != torch.float32
        allowed = SAME_IN_16_BITS if is_rounded else SAME_IN_32_BITS
        if not gap <= allowed:
            raise CheckpointError(
                "the written files give a model with other logits than the trained model: they "
                f"differ by {gap:.2g} of their norm ({allowed} is allowed); the checkpoints hold "
                "the trained weights"
            )

    return check
