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

from .problems import first_line, setting_error

# Positions of two rows with several documents, as packing makes them.
POSITIONS = ([*range(5), *range(6)], [*range(7), *range(3), 0])
SECOND = (0, slice(5, None))  # the second document of the first row


def small_batch(model: Any) -> dict[str, Tensor]:
    """Return a batch of random tokens: two packed rows, with several documents each."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = model.get_input_embeddings().num_embeddings
    positions = torch.tensor(POSITIONS)
    ids = torch.randint(vocabulary, positions.shape, generator=generator)
    batch = {"input_ids": ids, "labels": ids.roll(-1), "position_ids": positions}
    return {name: tensor.to(model.device) for name, tensor in batch.items()}


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
    problem = why_not_separate(model, inputs)
    if problem:
        raise setting_error("packing", "best_fit", f"{problem}; set packing: none")


def why_not_separate(model: Any, inputs: Callable[[dict[str, Tensor]], dict[str, Any]]) -> str:
    """Return why packed documents are not separate. The arguments are of ``check_separation``."""
    name = type(model).__name__
    try:
        reached = _tokens_that_reach_second_document(model, inputs)
    except Exception as error:  # models raise any error
        return f"{name} cannot be trained on packed rows: {first_line(error)}"
    # All tokens of the document must have a gradient (or the gradient would prove nothing), and no
    # other token.
    expected = torch.zeros_like(reached)
    expected[SECOND] = True
    if torch.equal(reached, expected):
        return ""
    return f"documents of one row reach each other in {name}"


def _tokens_that_reach_second_document(
    model: Any, inputs: Callable[[dict[str, Tensor]], dict[str, Any]]
) -> Tensor:
    """Return which tokens influence the second document of the first row, (rows, positions)."""
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
    return gradient.reshape(*shape, -1).any(-1)
