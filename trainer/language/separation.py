"""Packed documents must not see each other: tried out on the model itself, before the first step.

Whether a model's attention tells documents apart by their positions depends on its class, the attention's kernel,
a cache, a mask; where it does not, losses are wrong and nothing else shows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .packing import Collate
from .problems import first_line, setting_error

MIXERS = re.compile("(Attention|Mixer|DeltaNet|SSM|Recurrent)$")  # classes by which tokens meet
LENGTHS = ((5, 6), (7, 3))  # positions of the documents in each row of the batch that is tried


def small_batch(vocabulary: int) -> dict[str, Tensor]:
    """Make a batch of two rows, each with two documents, in the form of those that are learnt from."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for lengths in LENGTHS:
        ids = torch.randint(vocabulary, (sum(lengths),), generator=generator)
        positions = torch.cat([torch.arange(length) for length in lengths])
        rows.append({"input_ids": ids, "labels": ids.roll(-1), "position_ids": positions})
    return Collate(length=None)(rows)


def check_separation(model: Any, inputs: Callable[[dict[str, Tensor]], dict[str, Tensor]], *, needs_gpu: bool) -> None:
    """Refuse a model in which one packed document reaches another.

    The gradient of the second document's outputs in the embeddings of all other tokens must be exactly zero.

    Args:
        inputs: what the model is called with, from a batch.
        needs_gpu: the attention runs there only, and in 16 bits.

    Raises:
        ConfigError: it is not, or the model cannot be called so.
    """
    embedded: list[Tensor] = []

    def keep(module: Any, args: Any, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    embedding = model.get_input_embeddings()
    device = torch.device("cuda" if needs_gpu else "cpu")
    batch = {name: tensor.to(device) for name, tensor in small_batch(embedding.num_embeddings).items()}
    mode, hook = model.training, embedding.register_forward_hook(keep)
    model.train()
    try:
        model.to(device)
        with torch.random.fork_rng(), torch.autocast(device.type, torch.bfloat16, enabled=needs_gpu):  # dropout draws
            logits = model(**inputs(batch), use_cache=False).logits
            logits = logits.reshape(*batch["input_ids"].shape, -1)
            [gradient] = torch.autograd.grad(
                logits[0, LENGTHS[0][0] : sum(LENGTHS[0])].float().square().sum(), embedded
            )
    except (TypeError, RuntimeError, NotImplementedError, ValueError, ImportError) as error:
        rule = f"{type(model).__name__} cannot be trained on packed rows: {first_line(error)}; set packing: none"
        raise setting_error("packing", "best_fit", rule) from None
    finally:
        hook.remove()
        model.train(mode).to("cpu")
    reached = gradient.reshape(*batch["input_ids"].shape, -1).abs().sum(-1)
    own = torch.zeros_like(reached, dtype=torch.bool)
    own[0, LENGTHS[0][0] : sum(LENGTHS[0])] = True
    if reached[~own].any() or not reached[own].all():
        layers = sorted({type(module).__name__ for module in model.modules() if MIXERS.search(type(module).__name__)})
        through = f" (through one of {', '.join(layers)})" if layers else ""
        rule = f"documents of one row reach each other in {type(model).__name__}{through}; set packing: none"
        raise setting_error("packing", "best_fit", rule)
