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

from .packing import collate
from .quantized import dtype_of_products

NAME = "varlen"
# Arguments of transformers' models that do not change the attention. Any other value is refused.
_NO_CHANGE = {
    "cache_position", "cu_seq_lens_k", "is_causal", "max_length_k", "output_attentions",
    "output_hidden_states", "output_router_logits", "position_embeddings", "position_ids",
    "return_dict", "use_cache",
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

    def part(self, tokens: Tensor) -> Tensor:
        """Return the columns of this process, of all columns of a row."""
        return tokens.chunk(self.size, 1)[self.number]


# -- batches --------------------------------------------------------------------------------------


def boundaries(positions: Tensor) -> dict[str, Any]:
    """Return the boundaries of the documents of a batch on the host. Positions restart at 0."""
    [starts] = (positions.flatten() == 0).nonzero(as_tuple=True)
    ends = torch.cat([starts, starts.new_tensor([positions.numel()])]).int()
    return {"boundaries": ends, "longest": int(ends.diff().max())}


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
        leaves_out: name the ``places`` of the tokens to compute, which are not padding, but for
            fewer than ``parts``.
    """
    batch: dict[str, Any] = collate(rows, padding=padding, length=length, parts=parts)
    positions = batch["position_ids"]
    if leaves_out:
        columns = torch.arange(positions.shape[1])
        is_computed = torch.cat([columns < len(row["input_ids"]) for row in rows])
        [rest] = (~is_computed).nonzero(as_tuple=True)
        is_computed[rest[: -int(is_computed.sum()) % parts]] = True
        [batch["places"]] = is_computed.nonzero(as_tuple=True)
        positions = positions.flatten()[batch["places"]]
    return {**batch, **boundaries(positions)}


def computed(batch: Mapping[str, Any], name: str) -> Tensor:
    """Return the tokens to compute of a batch, as a single row."""
    row: Tensor = batch[name].reshape(1, -1)
    return row[:, batch["places"]] if "places" in batch else row


def inputs_of(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a model of transformers, whose names flash kernels know as well."""
    ends, longest = batch["boundaries"], batch["longest"]
    return {
        "input_ids": computed(batch, "input_ids"),
        "position_ids": computed(batch, "position_ids"),
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": longest,
        "max_length_k": longest,
    }


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
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int = 0,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend within documents: a function for transformers' registry of attentions.

    Raises:
        NotImplementedError: the model asks for something else.
    """
    asked = {name for name, given in others.items() if given is not None} - _NO_CHANGE
    directions = (getattr(module, "is_causal", True), others.get("is_causal"))
    facts = {
        "mask": mask is not None,
        "dropout": dropout > 0,
        "attention in both directions": False in directions,
        "heads of two sizes": query.shape[-1] != value.shape[-1],
        "cache": query.shape[2] != key.shape[2],
        "call without boundaries": cu_seq_lens_q is None,
        f"{query.shape[1]} heads for {processes.size} processes": query.shape[1] % processes.size,
    }
    asked.update(name for name, is_asked in facts.items() if is_asked)
    if asked or cu_seq_lens_q is None:
        raise NotImplementedError(f"attention {NAME} has no {', '.join(sorted(asked))}")

    copies = processes.size // math.gcd(processes.size, key.shape[1])
    if copies > 1:  # the fewest by which each process has as many heads
        key, value = (heads.repeat_interleave(copies, 1) for heads in (key, value))
    # A norm of queries and keys leaves float32, and autocast does not act on the kernel.
    dtype = dtype_of_products(query)
    heads = [processes.gather(each.to(dtype)) for each in (query, key, value)]
    if query.is_cuda and dtype != torch.float32:
        from torch.nn.attention.varlen import varlen_attn

        tokens = [each[0].transpose(0, 1).contiguous() for each in heads]
        found: Any = varlen_attn(
            tokens[0],
            tokens[1],
            tokens[2],
            cu_seq_lens_q,
            cu_seq_lens_q,
            max_length_q,
            max_length_q,
            scale=scaling,
            window_size=(-1 if sliding_window is None else sliding_window - 1, 0),
            enable_gqa=True,
        )
        found = found.transpose(0, 1)[None]
    else:
        sizes = cu_seq_lens_q.diff().tolist()
        alone = partial(_alone, window=sliding_window, scale=scaling)
        found = torch.cat([*map(alone, *(torch.split(each, sizes, 2) for each in heads))], 2)
    return processes.scatter(found).transpose(1, 2).contiguous(), None


def _alone(
    query: Tensor, key: Tensor, value: Tensor, *, window: int | None, scale: float | None
) -> Tensor:
    """Attend within a single document."""
    size, mask = query.shape[2], None
    if window is not None and size > window:
        pairs = torch.ones(size, size, dtype=torch.bool, device=query.device)
        mask = pairs.tril().triu(1 - window)
    return F.scaled_dot_product_attention(
        query, key, value, mask, is_causal=mask is None, scale=scale, enable_gqa=True
    )


def set_attention(model: Any, name: str) -> None:
    """Let a model compute attention by another function. ValueError if the model keeps its own."""
    model.set_attn_implementation(name)
    kept = model.config._attn_implementation
    if kept != name:
        raise ValueError(f"its attention stays {kept}")


def attend_by(model: Any, processes: Whole) -> None:
    """Let a model attend within documents. A call without boundaries computes as before.

    Such calls are those of ``generate``, which have a cache, and masks of padding.
    """
    before = model.config._attn_implementation
    name = register(processes)
    set_attention(model, name)

    def enter(inner: Any, arguments: Any, named: Mapping[str, Any]) -> None:
        if named.get("cu_seq_lens_q") is None:
            inner.set_attn_implementation(before)

    def leave(inner: Any, *call: Any) -> None:
        if inner.config._attn_implementation != name:
            inner.set_attn_implementation(name)

    # An adapter calls the ``forward`` of the whole model, and no hooks of the whole model.
    model.base_model.register_forward_pre_hook(enter, with_kwargs=True)
    model.base_model.register_forward_hook(leave, always_call=True)


def register(processes: Whole, kind: str = "") -> str:
    """Make an attention function known to transformers, and return its name.

    Without a function for masks of the same name, transformers makes no masks, and does not wait
    for the device to look for documents.
    """
    from transformers import AttentionInterface

    name = f"{NAME}{kind}_{processes.size}" if processes.size > 1 else f"{NAME}{kind}"
    AttentionInterface.register(name, partial(attend, processes))
    return name
