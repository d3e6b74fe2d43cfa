"""A proof on the model itself, before the first step, that packed documents do not see each other.

Whether a model keeps the documents of a row apart depends on its class, the attention kernel, a
cache, a mask. If it does not, all losses are slightly wrong, and nothing else shows the error.

Take the outputs of a document, and compute their gradient in the embeddings of all tokens of the
batch. A token that influences these outputs has a gradient. Any other token has a gradient of
exactly zero, not of nearly zero. So the documents are separate if and only if the gradient is zero
at every token of the other documents. Random weights are enough, so a small copy is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .problems import setting_errors

# Positions of two rows with several documents, as packing makes them.
POSITIONS = ([*range(5), *range(6)], [*range(7), *range(3), 0])
SECOND = (0, slice(5, None))  # the second document of the first row


def small_batch(model: Any, given: Any = POSITIONS) -> dict[str, Tensor]:
    """Return a batch of unlike tokens at the given positions."""
    positions = torch.tensor(given, device=model.device)
    ids = torch.arange(positions.numel(), device=model.device).view_as(positions)
    ids %= model.get_input_embeddings().num_embeddings
    return {"input_ids": ids, "labels": ids.roll(-1), "position_ids": positions}


@contextmanager
def probing(model: Any) -> Iterator[None]:
    """Compute in bfloat16 on a GPU, and restore the random state after."""
    on_gpu = model.device.type == "cuda"
    # By default fork_rng takes all devices, which wakes each GPU of the machine.
    devices = [torch.cuda.current_device()] if on_gpu else []
    autocast = torch.autocast(model.device.type, torch.bfloat16, enabled=on_gpu)
    with torch.random.fork_rng(devices), autocast:
        yield


def check_separation(model: Any, inputs: Callable[[dict[str, Tensor]], dict[str, Any]]) -> None:
    """Refuse a model in which a token of one packed document influences another document.

    ``model`` is a small copy with values, on whose embedding a hook stays.

    Raises:
        ConfigError: documents are not separate, or the model cannot be called with such a batch.
    """
    rule = f"set packing: none for {type(model).__name__}"
    with setting_errors("packing", "best_fit", rule):  # models raise any error
        prove_separation(model, inputs)


def prove_separation(model: Any, inputs: Callable[[dict[str, Tensor]], dict[str, Any]]) -> None:
    """Raise any error unless documents are separate. The arguments are of ``check_separation``."""
    batch = small_batch(model)
    shape = batch["input_ids"].shape
    embeddings: list[Tensor] = []

    def keep_embedding(module: Any, arguments: Any, output: Tensor) -> Tensor:
        embeddings.append(output.detach().requires_grad_())
        return embeddings[-1]

    model.get_input_embeddings().register_forward_hook(keep_embedding)
    with probing(model):
        output = model(**inputs(batch), use_cache=False)
        logits = output.logits.reshape(*shape, -1)
        probed = logits[SECOND].float().square().sum()
        [gradient] = torch.autograd.grad(probed, embeddings)

    # All tokens of the document must have a gradient (or the gradient would prove nothing), and no
    # other token.
    reached = gradient.reshape(*shape, -1).any(-1)
    expected = torch.zeros_like(reached)
    expected[SECOND] = True
    if not torch.equal(reached, expected):
        raise ValueError("documents of one row reach each other")
