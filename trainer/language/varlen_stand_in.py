"""A plain loop over documents, where torch has no ``varlen_attn``: on the CPU, in every dtype.

It is slow and exact, so that everything around the kernel of GPUs can be tried without one. As that
kernel it is an operation of its own, forward and backward: a compiler, autograd and activation
checkpointing see one node each, and the host reads the borders of documents inside of it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor


def attend(
    query: Tensor, key: Tensor, value: Tensor, borders: Tensor, before: int, scale: float
) -> Tensor:
    """Attend within each document.

    Args:
        query: (positions, heads, features).
        key, value: the same, with as many heads or fewer, each for a group of the query's.
        borders: where documents begin, and the end of the last; empty ones may follow.
        before: how many positions before its own each one sees; -1: all.
        scale: of the scores.
    """
    output: Tensor = _attend(query, key, value, borders, before, scale)
    return output


@torch.library.custom_op("samecurve::varlen_stand_in", mutates_args=())
def _attend(
    query: Tensor, key: Tensor, value: Tensor, borders: Tensor, before: int, scale: float
) -> Tensor:
    output = _empty_like(query)
    for begin, end in pairwise(borders.tolist()):
        if begin < end:
            q, k, v = _heads_first(query, key, value, begin, end)
            weights = _weights(q, k, before, scale)
            output[begin:end] = (weights @ v).transpose(0, 1)
    return output


@torch.library.custom_op("samecurve::varlen_stand_in_backward", mutates_args=())
def _attend_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    borders: Tensor,
    before: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value from that of the output."""
    query_gradient = _empty_like(query)
    key_gradient = _empty_like(key)
    value_gradient = _empty_like(value)
    for begin, end in pairwise(borders.tolist()):
        if begin == end:
            continue
        q, k, v = _heads_first(query, key, value, begin, end)
        weights = _weights(q, k, before, scale)
        output_gradient = gradient[begin:end].transpose(0, 1).to(q.dtype)

        # output = weights @ v
        v_gradient = weights.mT @ output_gradient
        weights_gradient = output_gradient @ v.mT

        # weights = softmax(scores), row by row
        row_sums = (weights * weights_gradient).sum(-1, keepdim=True)
        scores_gradient = weights * (weights_gradient - row_sums)

        # scores = q @ k.mT * scale
        product_gradient = scores_gradient * scale
        q_gradient = product_gradient @ k
        k_gradient = product_gradient.mT @ q

        query_gradient[begin:end] = q_gradient.transpose(0, 1)
        key_gradient[begin:end] = _of_groups(k_gradient, key.shape[1])
        value_gradient[begin:end] = _of_groups(v_gradient, value.shape[1])
    return query_gradient, key_gradient, value_gradient


def _empty_like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _heads_first(
    query: Tensor, key: Tensor, value: Tensor, begin: int, end: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key and value of a document, each (heads, positions, features).

    In float32 at least, as flash kernels add up, and with keys and values for each head.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    heads = query.shape[1]
    parts = []
    for tensor in (query, key, value):
        part = tensor[begin:end].transpose(0, 1).to(dtype)
        parts.append(part.repeat_interleave(heads // len(part), dim=0))
    return parts[0], parts[1], parts[2]


def _weights(query: Tensor, key: Tensor, before: int, scale: float) -> Tensor:
    """Return how much each position takes of each other, (heads, positions, positions)."""
    length = query.shape[1]
    sees = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
    if before >= 0:
        sees = sees.triu(-before)
    scores = (query @ key.mT * scale).masked_fill(~sees, float("-inf"))
    return scores.softmax(-1)


def _of_groups(gradient: Tensor, groups: int) -> Tensor:
    """Add up the gradients of the heads of each group; (positions, groups, features)."""
    of_groups = gradient.reshape(groups, -1, *gradient.shape[1:])
    return of_groups.sum(1).transpose(0, 1)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    query, key, value, borders, before, scale = inputs
    ctx.save_for_backward(query, key, value, borders)
    ctx.before, ctx.scale = before, scale


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    found = _attend_backward(gradient, *ctx.saved_tensors, ctx.before, ctx.scale)
    return (*found, None, None, None)


@_attend.register_fake
def _(query: Tensor, *others: Any) -> Tensor:
    return _empty_like(query)


@_attend_backward.register_fake
def _(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *others: Any) -> Any:
    return _empty_like(query), _empty_like(key), _empty_like(value)


_attend.register_autograd(_gradients, setup_context=_remember)
