"""Packed documents must not see each other: tried out on the model itself, before the first step.

Whether a model's attention tells documents apart by their positions depends on its class, the
attention's kernel, a cache, a mask; where it does not, losses are wrong and nothing else shows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .packing import Collate
from .problems import first_line, setting_error

MIXERS = re.compile("(Attention|Mixer|DeltaNet|SSM|Recurrent)$")  # classes by which tokens meet
LENGTHS = ((5, 6), (7, 3))  # positions of the documents in each row of the batch that is tried


def small_batch(model: Any) -> dict[str, Tensor]:
    """Make a batch of two rows, each with two documents, in the form of those that are learnt from."""
    generator = torch.Generator().manual_seed(0)
    vocabulary, rows = model.get_input_embeddings().num_embeddings, []
    for lengths in LENGTHS:
        ids = torch.randint(vocabulary, (sum(lengths),), generator=generator)
        positions = torch.cat([torch.arange(length) for length in lengths])
        rows.append({"input_ids": ids, "labels": ids.roll(-1), "position_ids": positions})
    return {name: tensor.to(model.device) for name, tensor in Collate(length=None)(rows).items()}


@contextmanager
def trial(model: Any) -> Iterator[None]:
    """Let a model compute in training mode, in 16 bits on a GPU; mode and random numbers are as
    before afterwards.
    """
    mode, on_gpu = model.training, model.device.type == "cuda"
    devices = (
        [torch.cuda.current_device()] if on_gpu else []
    )  # by default all, which wakes each GPU of the machine
    model.train()
    with (
        torch.random.fork_rng(devices),
        torch.autocast(model.device.type, torch.bfloat16, enabled=on_gpu),
    ):
        yield
    model.train(mode)


def check_separation(model: Any, inputs: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Refuse a model in which one packed document reaches another.

    The gradient of the second document's outputs in the embeddings of all other tokens must be
    exactly zero.

    Args:
        inputs: what the model is called with, from a batch.

    Raises:
        ConfigError: it is not, or the model cannot be called so.
    """
    embedded: list[Tensor] = []

    def keep(module: Any, args: Any, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    batch, hook = small_batch(model), model.get_input_embeddings().register_forward_hook(keep)
    shape, second = batch["input_ids"].shape, slice(LENGTHS[0][0], sum(LENGTHS[0]))
    try:
        with trial(model):
            logits = model(**inputs(batch), use_cache=False).logits.reshape(*shape, -1)
            [gradient] = torch.autograd.grad(logits[0, second].float().square().sum(), embedded)
    except (TypeError, RuntimeError, NotImplementedError, ValueError, ImportError) as error:
        rule = f"{type(model).__name__} cannot be trained on packed rows: {first_line(error)}; set packing: none"
        raise setting_error("packing", "best_fit", rule) from None
    finally:
        hook.remove()
    reached = gradient.reshape(*shape, -1).abs().sum(-1)
    own = torch.zeros_like(reached, dtype=torch.bool)
    own[0, second] = True
    if reached[~own].any() or not reached[own].all():
        layers = sorted(
            {
                type(module).__name__
                for module in model.modules()
                if MIXERS.search(type(module).__name__)
            }
        )
        through = f" (through one of {', '.join(layers)})" if layers else ""
        rule = f"documents of one row reach each other in {type(model).__name__}{through}; set packing: none"
        raise setting_error("packing", "best_fit", rule)
