"""The task of an encoder that fills in hidden words (Devlin et al. 2018, "BERT"), by settings
alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from ..data.seeds import generator_of
from ..task import Data
from .adapters import add_adapter
from .base import TokenTask
from .card import model_card
from .packing import IGNORED, Numbers
from .pretrained import check_sizes, from_configuration
from .problems import setting_error
from .tokens import LEARNT, Corpus

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

HIDDEN, REPLACED = (
    0.8,
    0.1,
)  # of the tokens that are to be predicted; the others are left as they are


@dataclass(frozen=True, kw_only=True)
class MaskedLM(TokenTask):
    """Predict tokens of a text of which some are hidden, with an encoder.

    Args:
        data, evaluation, model, config, tokenizer, text_column, adapter, attention, ignore_tensors,
            cache_dir: as of ``CausalLM``.
        sequence_length: tokens of a row, at most; longer texts are cut into several rows.
        mask_probability: share of a row's tokens that are to be predicted. Of these 80 % are
            hidden, 10 % are other tokens, 10 % are left; which, is drawn anew in each epoch, and
            once for evaluation.
    """

    sequence_length: Annotated[int, Field(ge=2)] = 512
    mask_probability: Annotated[float, Field(gt=0, lt=1)] = 0.15

    def build_data(self) -> Data:
        train, evaluation = self.documents()
        mask = self._mask()
        measured = (
            None if evaluation is None else Pieces(*evaluation[1:], self.sequence_length, mask)
        )
        pieces = Pieces(*train[1:], self.sequence_length)
        return Data(
            train=pieces,
            evaluation=measured,
            collate=mask.collate,
            augment=mask,
            version=pieces.version,
        )

    def _mask(self) -> Mask:
        tokenizer = self.load_tokenizer()
        if tokenizer.mask_token_id is None:
            named = self.tokenizer or self.model
            raise setting_error(
                "tokenizer", named, "has no token that hides another one; give an encoder's"
            )
        special, filler = tokenizer.all_special_ids, tokenizer.pad_token_id or 0
        return Mask(
            self.mask_probability, tokenizer.mask_token_id, self.vocabulary(), special, filler
        )

    def build_model(self) -> nn.Module:
        auto_class, vocabulary = "AutoModelForMaskedLM", self.vocabulary()
        if self.config is not None:
            defaults = {
                "vocab_size": vocabulary,
                "pad_token_id": self.load_tokenizer().pad_token_id,
            }
            model = from_configuration(self.config, self.attention, defaults, auto_class)
        else:
            model = self.build_pretrained(auto_class)
        check_sizes(model, vocabulary, self.tokenizer or self.model, self.sequence_length)
        model.config.architectures = [type(model).__name__]
        if self.adapter is not None:
            model = add_adapter(model, self.adapter, self.memory.get("stored"), None)
        return model  # type: ignore[no-any-return]

    def inputs(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: batch[name] for name in ("input_ids", "attention_mask")}

    def model_card(self, run: Mapping[str, Any]) -> str:
        return model_card(self, run, "fill-mask", "Masked language model")


class Pieces(Dataset[Any]):
    """Documents of a corpus as tokens, each cut into pieces of at most ``length``.

    Args:
        chosen: documents of the corpus by number.
        mask: for rows that are masked once; without one they are plain tokens.
    """

    def __init__(
        self, corpus: Corpus, chosen: Numbers, length: int, mask: Mask | None = None
    ) -> None:
        self.tokens, self.length, self.mask = corpus.tokens, length, mask
        self.ends = corpus.ends[chosen]
        starts = corpus.starts[chosen]
        counts = -(-(self.ends - starts) // length)
        self.document = np.repeat(np.arange(len(chosen)), counts)
        within = np.arange(len(self.document)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.starts = starts[self.document] + within * length
        self.version = corpus.version(chosen)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Any:
        start, end = int(self.starts[index]), int(self.ends[self.document[index]])
        found = self.tokens[start : min(start + self.length, end)]
        ids = torch.from_numpy((found & ~LEARNT).astype(np.int64))
        return ids if self.mask is None else self.mask(ids, generator_of(index))


@dataclass(frozen=True)
class Mask:
    """A function that hides some tokens of a row, by random numbers of its own; and what makes a
    batch of such rows.

    Args:
        probability: share of the tokens that are to be predicted, at least one of each row.
        token: stands for a hidden one.
        vocabulary: number of tokens.
        special: tokens that are not to be predicted, but where a row has no others.
        filler: token of positions that hold none.
    """

    probability: float
    token: int
    vocabulary: int
    special: Sequence[int]
    filler: int

    def __call__(self, ids: Tensor, generator: Generator) -> dict[str, Tensor]:
        eligible = (~torch.isin(ids, torch.tensor(self.special))).nonzero().flatten()
        eligible = eligible if len(eligible) else torch.arange(len(ids))
        count = max(1, round(self.probability * len(eligible)))
        chosen = eligible[torch.randperm(len(eligible), generator=generator)[:count]]
        what = torch.rand(count, generator=generator)
        others = torch.randint(self.vocabulary, (count,), generator=generator)
        labels, hidden = torch.full_like(ids, IGNORED), ids.clone()
        labels[chosen] = ids[chosen]
        hidden[chosen] = torch.where(what < HIDDEN + REPLACED, others, ids[chosen])
        hidden[chosen[what < HIDDEN]] = self.token
        return {"input_ids": hidden, "labels": labels}

    def collate(self, rows: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Make a batch of rows, which are filled up to the longest."""
        ids, labels = ([row[name] for row in rows] for name in ("input_ids", "labels"))
        return {
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=self.filler),
            "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
            "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
        }
