"""The refusal of checkpoints with values that are not finite: they would push out the good ones."""

from __future__ import annotations

import torch

from .parts import Parts


@torch.no_grad()
def not_finite(parts: Parts) -> str:
    """Return the name of a tensor of this rank's checkpoint, or a buffer, with such values.

    Buffers and frozen parameters may be infinite (a mask of -inf), and not NaN. A sum shows such a
    value at a fifteenth of the cost of a test of each, and may overflow: a tensor whose sum is not
    finite is looked at again.
    """
    # Each rank has its own buffers until they are averaged and written.
    for key, tensor in (*parts.pieces(), *parts.buffer_pieces()):
        if tensor.is_floating_point() and not tensor.sum(dtype=torch.float32).isfinite():
            may_be_infinite = key.kind in ("buffer", "frozen")
            values = tensor.float()
            good = ~values.isnan() if may_be_infinite else values.isfinite()
            if not good.all():
                return f"{key.kind} {key.name}"
    return ""
