"""Floating-point operations of a model's attention, which grow with the length of documents.

The products with the model's parameters are counted from these; attention multiplies activations
with each other. For each pair of positions of which one attends to the other, each head multiplies
a query by a key, and a weight by a value: as in MFU of PaLM (Chowdhery et al. 2022, appendix B),
but pairs of different documents, behind a position, or out of a layer's window do not count.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

FULL = "full_attention"
IN_WINDOW = ("sliding_attention", "chunked_attention")


class AttentionLayers(NamedTuple):
    """Layers of a model that attend alike.

    Args:
        number: of the layers.
        window: positions that each one attends to at most; None: all.
    """

    number: int
    window: int | None


class Attention(NamedTuple):
    """What a model's attention costs.

    Args:
        operations: of a layer for a pair of positions, forward and backward.
        layers: those that attend; other mixers (linear attention) are not among them.
    """

    operations: int
    layers: tuple[AttentionLayers, ...]

    @classmethod
    def of(cls, config: Any) -> Attention:
        """Read a transformers configuration; one without heads has no attention to count."""
        config = config.get_text_config()
        heads = getattr(config, "num_attention_heads", None)
        if not isinstance(heads, int) or heads < 1:
            return cls(operations=0, layers=())

        features = getattr(config, "head_dim", None) or config.hidden_size // heads
        of_key = getattr(config, "qk_head_dim", None) or features
        of_value = getattr(config, "v_head_dim", None) or features
        # A multiplication and an addition each, and twice as many for the gradients.
        operations = 3 * 2 * heads * (of_key + of_value)

        window = getattr(config, "sliding_window", None)
        kinds = getattr(config, "layer_types", None)
        if kinds is None:
            kinds = [IN_WINDOW[0] if window else FULL] * config.num_hidden_layers
        window = window or getattr(config, "attention_chunk_size", None)

        layers = []
        if FULL in kinds:
            layers.append(AttentionLayers(kinds.count(FULL), None))
        in_window = sum(kind in IN_WINDOW for kind in kinds)
        if in_window:
            layers.append(AttentionLayers(in_window, window))
        return cls(operations=operations, layers=tuple(layers))

    def of_positions(self, positions: Tensor) -> float:
        """Count the operations for tokens that attend to themselves and what is before them.

        Args:
            positions: of each token in its document, from 0.
        """
        total = 0
        for layers in self.layers:
            pairs = positions + 1
            if layers.window is not None:
                pairs = pairs.clamp(max=layers.window)
            total += layers.number * int(pairs.sum())
        return float(self.operations * total)

    def of_lengths(self, lengths: Tensor) -> float:
        """Count the operations for documents of which each token attends to all of it.

        Args:
            lengths: of the documents.
        """
        total = 0
        for layers in self.layers:
            seen = lengths if layers.window is None else lengths.clamp(max=layers.window)
            total += layers.number * int((lengths * seen).sum())
        return float(self.operations * total)
