"""Packed documents for the GPU benchmarks: samecurve's own ``CausalLM``, and the same by hand.

Rows of several documents, the loss in chunks, and one of two attentions: ``varlen``, torch's flash
kernel that is told the borders of documents, or ``sdpa`` beside a mask of all pairs of positions.
``varlen`` is registered here as a user registers an attention with transformers. On a CPU, which
has no such kernel, a mask of the same borders stands in for it.

Weights are those of ``gpu_speed.Llama``, so that losses can be compared. Only the model of 8 billion
parameters, of which adapters are trained, is built without values and gets them on the device.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.utils.data import Subset

from benchmarks.gpu_speed import MODELS, Llama, common_folder, operations, world_size
from trainer import Data
from trainer.language.causal import CausalLM
from trainer.language.tokens import TARGET, Corpus

VARLEN = "varlen"
# torch 2.11 takes groups of heads unasked, 2.13 where it is asked.
MUST_ASK = "enable_gqa" in inspect.signature(varlen_attn).parameters
SHORTEST = 64  # tokens of a document, or fewer if a row is shorter
END = "<end>"


def varlen_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    borders: Tensor | None = None,
    longest: int = 0,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend within each document, as a layer of transformers asks for it.

    Args:
        query: (rows, heads, positions, features).
        key, value: the same, with as many heads or fewer, each for a group of the query's.
        attention_mask: none is made for this attention.
        borders: (documents + 1,), where documents begin in all rows laid end to end, and the end.
            Documents behind the last are empty.
        longest: positions of a document at most.

    Returns:
        (rows, positions, heads, features), and None in the place of the weights.
    """
    assert borders is not None and attention_mask is None
    # Positions have turned queries and keys into float32, and the kernel knows no autocast.
    flat = [part.to(value.dtype).transpose(1, 2).flatten(0, 1) for part in (query, key, value)]
    output = documents_alone(flat, borders, longest, scaling)
    return output.view(len(query), -1, *output.shape[1:]), None


def documents_alone(
    flat: list[Tensor], borders: Tensor, longest: int, scale: float | None
) -> Tensor:
    """Return the attention of (positions, heads, features) within each document."""
    has_groups = flat[0].shape[1] != flat[1].shape[1]
    if flat[0].device.type != "cpu":
        # A window without anything ahead is causal attention.
        settings = {"scale": scale, "window_size": (-1, 0)}
        if MUST_ASK:
            settings["enable_gqa"] = has_groups
        return varlen_attn(*flat, borders, borders, longest, longest, **settings)  # type: ignore

    places = torch.arange(len(flat[0]), device=borders.device)
    document = torch.searchsorted(borders, places.to(borders.dtype), right=True)
    mask = (document[:, None] == document) & (places[:, None] >= places)
    heads = [part.transpose(0, 1)[None] for part in flat]
    output = F.scaled_dot_product_attention(
        *heads, attn_mask=mask, scale=scale, enable_gqa=has_groups
    )
    return output[0].transpose(0, 1)


def borders_of(positions: Tensor) -> Tensor:
    """Return where documents begin, for the kernel. The host does not wait for the device.

    Args:
        positions: (rows, positions), from 0 on in each document.

    Returns:
        As many as there may be: those that are missing begin at the end, and are empty.
    """
    flat = positions.flatten()
    places = torch.arange(len(flat), device=flat.device)
    starts = torch.where(flat == 0, places, len(flat)).sort().values
    most = len(flat) // SHORTEST + 16 + len(positions)  # the end of a row may be a document as well
    return F.pad(starts[:most], (0, 1), value=len(flat)).to(torch.int32)


@dataclass(frozen=True, kw_only=True)
class Packed(CausalLM):
    """Packed documents of random tokens.

    Args:
        name: a key of ``gpu_speed.MODELS``.
    """

    name: str = "tiny"

    @property
    def words(self) -> int:
        """Return the size of the vocabulary."""
        return MODELS[self.name].shape["vocab_size"]

    @property
    def shortest(self) -> int:
        """Return the tokens of a document at least."""
        return min(SHORTEST, self.sequence_length // 4)

    def lengths(self) -> Any:
        """Return the tokens of each document: most are short, and none is longer than a row."""
        tokens = 17 * MODELS[self.name].tokens
        draws = np.random.default_rng(0).lognormal(
            np.log(self.sequence_length / 4), 0.8, tokens // self.shortest
        )
        lengths = draws.astype(np.int64).clip(self.shortest, self.sequence_length) + 1
        return lengths[: int(np.searchsorted(lengths.cumsum(), tokens))]

    def tokenized(self, key: str, names: Any) -> Corpus:
        """Return random tokens: to tokenise texts is not what a GPU is asked about."""
        lengths = self.lengths()
        tokens = np.random.default_rng(0).integers(self.words, size=lengths.sum(), dtype=np.uint32)
        return Corpus(tokens=tokens | TARGET, ends=lengths.cumsum(), content="gpu_language")

    def build_data(self) -> Data:
        """Return whole micro-batches: a loop by hand has no padding batches."""
        data = super().build_data()
        rows = MODELS[self.name].examples * world_size()
        return replace(data, train=Subset(data.train, range(len(data.train) // rows * rows)))

    def load_tokenizer(self) -> Any:
        """Return a tokenizer of as many words as the model has."""
        if self.loaded is None:
            from tokenizers import Tokenizer
            from tokenizers.models import WordLevel
            from transformers import PreTrainedTokenizerFast

            words = [END, *(f"w{number}" for number in range(1, self.words))]
            inner = Tokenizer(WordLevel({word: at for at, word in enumerate(words)}, END))
            self.keep(loaded=PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=END))
        return self.loaded

    def load_model(self) -> Any:
        if self.adapter:
            return super().load_model()
        return Llama(name=self.name, attention=str(self.attention)).build_model()

    def inputs(self, batch: Any) -> dict[str, Any]:
        given = super().inputs(batch)
        if self.attention != VARLEN:
            return given
        borders = borders_of(batch["position_ids"])
        return {**given, "borders": borders, "longest": self.sequence_length}

    def operations(self) -> float:
        """Return the floating-point operations of a micro-batch."""
        lengths = self.lengths()
        seen = float((lengths**2).sum() / lengths.sum() / 2)
        return operations(MODELS[self.name], seen=seen, passes=2.0 if self.adapter else 3.0)


def packed(name: str, attention: str, **settings: Any) -> Packed:
    """Return the task of a model and an attention. The loss is computed in chunks."""
    from transformers import AttentionInterface

    AttentionInterface.register(VARLEN, varlen_attention)
    size = MODELS[name]
    config = {"model_type": "llama", **size.shape, "max_position_embeddings": size.length}
    del config["vocab_size"]
    return Packed(
        name=name,
        data="none",
        config=config,
        tokenizer="none",
        attention=attention,
        sequence_length=size.length,
        loss="fused",
        cache_dir=str(common_folder() / "cache"),
        **settings,
    )


# What the rows of the table train, by the name of the loop.
TASKS = {
    "lm-hand": partial(packed, attention=VARLEN),
    "lm": partial(packed, attention=VARLEN),
    "lm-mask": partial(packed, attention="sdpa"),
    # Without recomputing, a copy of all weights in bf16 would wait for the backward pass.
    "lora": partial(packed, attention=VARLEN, adapter={"r": 16}, activation_checkpointing=True),
}
