"""A trial before the first step: whether a model can compute documents alone, and tokens in parts.

A small copy with random values computes two documents each alone, then in a single row, then the
same row cut into parts. The parts are rows of a batch here, which the attention joins. Whatever
else looks at other tokens, or at its place in the row, shows: a recurrence, a convolution, a bias
of distances.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from ..private.accelerate import is_connected
from .documents import Whole, boundaries, inputs_of, register, set_attention
from .problems import first_line

_SIZES = [19, 29]  # of the documents, in tokens. Their sum has many divisors.


class _Rows(Whole):
    """The processes of a group as the rows of a batch, in a single process."""

    def __init__(self, size: int) -> None:
        self.size = size

    def gather(self, heads: Tensor) -> Tensor:
        return torch.cat(list(heads[:, None]), 2)

    def scatter(self, heads: Tensor) -> Tensor:
        return torch.cat(heads.chunk(self.size, 2))


def of_any(reason: str) -> str:
    """Return a reason that some process has. Collective. Empty if no process has a reason."""
    reasons = gather_object([reason]) if is_connected() else [reason]
    return next(filter(None, reasons), "")


def why_not(model: Any, parts: int) -> str:
    """Return why a model cannot compute documents, in so many parts. Empty if the model can.

    Args:
        model: a small copy, with values, in training mode.
    """
    own = model.config._attn_implementation
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            return _difference(model, parts)
    except Exception as error:  # models raise any error
        return first_line(error)
    finally:
        model.set_attn_implementation(own)
        model.train()


def _difference(model: Any, parts: int) -> str:
    """Compute the documents alone, in a row and in parts. Return a difference."""
    copies = math.lcm(sum(_SIZES), parts) // sum(_SIZES)
    positions = torch.cat([torch.arange(size) for size in _SIZES * copies])[None]
    words = model.get_input_embeddings().num_embeddings
    ids = torch.randint(words, positions.shape, generator=torch.Generator().manual_seed(0))
    inputs = inputs_of({"input_ids": ids, "position_ids": positions, **boundaries(positions)})

    def logits(named: dict[str, Any]) -> Tensor:
        return model(**named, use_cache=False).logits.reshape(*positions.shape, -1)  # type: ignore[no-any-return]

    set_attention(model, register(Whole(), "_whole"))
    logits(inputs)  # dropout of attention is an argument in training only
    model.eval()
    whole = logits(inputs)
    set_attention(model, register(_Rows(parts), "_parts"))
    cut = {name: inputs[name].view(parts, -1) for name in ("input_ids", "position_ids")}
    in_parts = logits(inputs | cut)

    set_attention(model, "eager")
    documents = torch.split(ids, _SIZES * copies, 1)
    alone = torch.cat([model(input_ids=each, use_cache=False).logits for each in documents], 1)
    limit = 1e-4 * alone.abs().max()
    if (whole - alone).abs().max() > limit:
        return "documents in a row have other outputs than each alone"
    if (in_parts - whole).abs().max() > limit:
        return "a token needs other tokens outside of attention, or its place in the row"
    return ""
