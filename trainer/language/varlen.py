"""Attention within documents that lie one behind another in a single row, without a mask.

On a GPU in 16 bits torch's ``varlen_attn`` computes the attention. Elsewhere each document is
computed alone: the same function, by which tests without a GPU walk the same path around the
kernel. The boundaries of the documents are found once a batch, on the host, so that no layer waits
for the device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..private.transformers import attention_of
from .packing import collate
from .quantized import dtype_of_products

NAME = "varlen"
# Arguments of transformers' models that do not change the attention. Any other value is refused.
_NO_CHANGE = {
    "cache_position", "cu_seq_lens_k", "max_length_k", "output_attentions",
    "output_router_logits", "position_embeddings", "position_ids", "use_cache",
}  # fmt: skip


class Whole:
    """A process that computes all tokens of its rows. Subclassed for a process among several."""

    size = 1
    number = 0

    def gather(self, heads: Tensor) -> Tensor:
        """Turn (1, heads, tokens of this process, d) into (1, heads of this process, tokens, d)."""
        return heads

    def scatter(self, heads: Tensor) -> Tensor:
        """Turn heads back, the inverse of ``gather``."""
        return heads

    def sum(self, values: Tensor) -> Tensor:
        """Add up the values of all processes."""
        return values

    def places(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the places of the tokens that this process computes."""
        return batch["places"].chunk(self.size)[self.number]  # type: ignore[no-any-return]

    def tokens(self, batch: Mapping[str, Any], name: str) -> Tensor:
        """Return the tokens that this process computes, as a single row."""
        return batch[name].flatten()[None, self.places(batch)]  # type: ignore[no-any-return]

    def inputs(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a model of transformers, under names of the flash kernels."""
        ends, longest = batch["boundaries"], batch["longest"]
        return {
            "input_ids": self.tokens(batch, "input_ids"),
            "position_ids": self.tokens(batch, "position_ids"),
            "cu_seq_lens_q": ends,
            "cu_seq_lens_k": ends,
            "max_length_q": longest,
            "max_length_k": longest,
        }


# -- batches --------------------------------------------------------------------------------------


def with_documents(batch: Mapping[str, Any], places: Tensor | None = None) -> dict[str, Any]:
    """Add the boundaries of the documents to a batch of rows. Positions restart at 0.

    ``places`` are those of the tokens to compute, in all rows behind one another. By default all.
    """
    positions = batch["position_ids"].flatten()
    if places is None:
        places = torch.arange(len(positions), device=positions.device)
    [starts] = (positions[places] == 0).nonzero(as_tuple=True)
    ends = F.pad(starts, (0, 1), value=len(places)).int()
    longest = int(ends.diff().max())
    return {**batch, "places": places, "boundaries": ends, "longest": longest}


def collate_documents(
    rows: Sequence[dict[str, Tensor]],
    *,
    padding: int,
    length: int | None = None,
    parts: int = 1,
    leaves_out: bool = False,
) -> dict[str, Any]:
    """Return a batch of rows, padded as by ``collate``, with the boundaries of the documents.

    Args:
        parts: divides the number of tokens to compute. For that, rows may be longer.
        leaves_out: padding is not computed, but for fewer tokens than ``parts``.
    """
    marked = [{**row, "attention_mask": torch.ones_like(row["labels"])} for row in rows]
    batch = collate(marked, padding=padding, length=length, parts=parts)
    mask = batch.pop("attention_mask").flatten()
    count = int(mask.sum()) if leaves_out else len(mask)
    texts_first = mask.argsort(descending=True, stable=True)
    return with_documents(batch, texts_first[: count + -count % parts].sort().values)


# -- attention ------------------------------------------------------------------------------------


def attend(
    processes: Whole,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    cu_seq_lens_q: Any = None,
    max_length_q: int = 0,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend within documents: a function for transformers' registry of attentions.

    Raises:
        NotImplementedError: the model asks for something else.
    """
    size = processes.size
    asked = {
        **others,
        "call without boundaries": cu_seq_lens_q is None or None,
        "dropout": dropout or None,
        "attention in both directions": getattr(module, "is_causal", True) is False or None,
        f"{query.shape[1]} heads for {size} processes": query.shape[1] % size or None,
    }
    unknown = {name for name, given in asked.items() if given is not None} - _NO_CHANGE
    if unknown:
        raise NotImplementedError(f"attention {NAME} has no {min(unknown)}")

    copies = size // math.gcd(size, key.shape[1])
    if copies > 1:  # the fewest by which each process has as many heads
        key, value = (heads.repeat_interleave(copies, 1) for heads in (key, value))
    # A norm of queries and keys leaves float32, and autocast does not act on the kernel.
    dtype = dtype_of_products(query)
    heads = [processes.gather(each.to(dtype)) for each in (query, key, value)]
    if query.is_cuda and dtype != torch.float32:
        from torch.nn.attention.varlen import varlen_attn

        row: list[Any] = [each[0].transpose(0, 1).contiguous() for each in heads]
        row += [cu_seq_lens_q, cu_seq_lens_q, max_length_q, max_length_q]
        window = ((sliding_window or 0) - 1, 0)  # -1: none
        tokens: Any = varlen_attn(*row, scale=scaling, window_size=window, enable_gqa=True)
        found = tokens.transpose(0, 1)[None]
    else:
        sizes = cu_seq_lens_q.diff().tolist()
        alone = partial(_alone, window=sliding_window, scale=scaling)
        found = torch.cat([*map(alone, *(torch.split(each, sizes, 2) for each in heads))], 2)
    return processes.scatter(found).transpose(1, 2).contiguous(), None


def _alone(
    query: Tensor, key: Tensor, value: Tensor, *, window: int | None, scale: float | None
) -> Tensor:
    """Attend within a single document."""
    mask = None
    if window is not None:
        pairs = query.new_ones(query.shape[2], query.shape[2], dtype=torch.bool)
        mask = pairs.tril().triu(1 - window)
    return F.scaled_dot_product_attention(
        query, key, value, mask, is_causal=mask is None, scale=scale, enable_gqa=True
    )


def set_attention(model: Any, processes: Whole, name: str = NAME) -> None:
    """Let a model compute attention by ``attend``, under a name for transformers.

    Without a function for masks of the same name, transformers makes no masks, and does not wait
    for the device to look for documents. ValueError if the model keeps its attention.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(name, partial(attend, processes))
    model.set_attn_implementation(name)
    if attention_of(model) != name:
        raise ValueError("its attention cannot be replaced")


def attend_by(model: Any, processes: Whole) -> None:
    """Let a model attend within documents. A call without boundaries computes as before.

    Such calls are those of ``generate``, which have a cache, and masks of padding.
    """
    before = attention_of(model)
    set_attention(model, processes)

    def choose(inner: Any, arguments: Any, named: Mapping[str, Any]) -> None:
        wanted = before if named.get("cu_seq_lens_q") is None else NAME
        if attention_of(inner) != wanted:
            inner.set_attn_implementation(wanted)

    # An adapter calls the ``forward`` of the whole model, and no hooks of the whole model.
    model.base_model.register_forward_pre_hook(choose, with_kwargs=True)
