"""A trial before the first step: whether a model can compute documents alone, and tokens in parts.

A small copy with random values computes two documents each alone, then in a single row that is cut
into parts. The parts are rows of a batch here, which the attention joins. Whatever else looks at
other tokens, or at its place in the row, shows: a recurrence, a convolution, a bias of distances.
At last ``separation.py`` proves that documents are separate on the training's device.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from ..private.accelerate import is_connected
from ..private.transformers import attention_of
from .problems import first_line
from .quantized import training_device
from .separation import prove_separation, small_batch
from .varlen import NAME, Whole, set_attention, with_documents

_SIZES = [19, 29]  # of the documents, in tokens. Their sum has many divisors.


class _Rows(Whole):
    """The processes of a group as the rows of a batch, in a single process."""

    def __init__(self, size: int) -> None:
        self.size = size

    def gather(self, heads: Tensor) -> Tensor:
        return torch.cat(heads.chunk(self.size), 2)

    def scatter(self, heads: Tensor) -> Tensor:
        return torch.cat(heads.chunk(self.size, 2))


def inputs_of_trial(batch: dict[str, Tensor]) -> dict[str, Any]:
    """Return the arguments of a model for a batch of rows, as of a process with whole rows."""
    return Whole().inputs(with_documents(batch))


def why_not(model: Any, parts: int) -> str:
    """Return why a model cannot compute documents, in so many parts. Collective.

    Empty if the model can on all processes. Then the model computes documents.

    Args:
        model: a small copy, with values, in training mode.
    """
    own = attention_of(model)
    reason = ""
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            _compare(model, parts)
        set_attention(model.train(), Whole(), f"{NAME}_alone")
        prove_separation(model.to(training_device()), inputs_of_trial)
    except Exception as error:  # models raise any error
        reason = first_line(error)
    if is_connected():  # otherwise a state of Accelerate would be made
        reason = max(gather_object([reason]))
    if reason:
        model.set_attn_implementation(own)
    return reason


def _compare(model: Any, parts: int) -> None:
    """Compute the documents alone, and in the parts of a row. Raise if the outputs are others."""
    # Parts end within documents.
    sizes = _SIZES * (math.lcm(sum(_SIZES), parts) // sum(_SIZES))
    inputs = inputs_of_trial(small_batch(model, [[*chain(*map(range, sizes))]]))
    ids = inputs["input_ids"]
    for name in ("input_ids", "position_ids"):
        inputs[name] = inputs[name].view(parts, -1)

    def logits(**named: Tensor) -> Tensor:
        return model(**named, use_cache=False).logits.flatten(0, 1)  # type: ignore[no-any-return]

    set_attention(model, _Rows(parts), f"{NAME}_rows")
    logits(**inputs)  # in training mode the dropout of attention is an argument
    model.eval()
    in_parts = logits(**inputs)

    model.set_attn_implementation("eager")
    alone = torch.cat([logits(input_ids=document) for document in torch.split(ids, sizes, 1)])
    if (in_parts - alone).abs().max() > 1e-5 * alone.abs().max():
        raise ValueError("documents in a row, or in its parts, have other outputs than each alone")
