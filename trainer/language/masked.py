"""The task of an encoder that fills in hidden words (Devlin et al. 2018, "BERT"), by settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from ..data.seeds import generator_of
from ..task import Data
from .base import TokenTask
from .columns import IDS, Columns, Usual, usual_columns
from .packing import collate
from .sources import Row
from .tokens import Corpus, Encoder, Int64Array, words_of

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn


@dataclass(frozen=True, kw_only=True)
class MaskedLM(TokenTask):
    """Predict tokens of a text of which some are hidden, with an encoder.

    The tokens to predict are drawn anew in each epoch, and once for evaluation.
    docs/fine_tuning.md describes the settings.
    """

    card: ClassVar[tuple[str, str]] = ("fill-mask", "Masked language model")

    text_column: str = "text"
    sequence_length: Annotated[int, Field(ge=2)] = 512
    mask_probability: Annotated[float, Field(gt=0, lt=1)] = 0.15

    def build_data(self) -> Data:
        from transformers import DataCollatorForLanguageModeling

        tokenizer = self.load_tokenizer()
        collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=self.mask_probability)
        mask = partial(hide_tokens, collator=collator)
        pieces = partial(Pieces, length=self.sequence_length, mask=mask)
        batch = partial(collate, padding=tokenizer.pad_token_id or 0)
        data = self.data_of(self.tokenized, pieces, batch, augment=mask)
        for of_source in data.train.sets if self.is_mixed else [data.train]:
            of_source.mask = None  # drawn anew in each epoch, by ``augment``
        return data

    def encoder(self, rows: Iterator[Row]) -> Encoder:
        usual: list[Usual] = [("text", (self.text_column,)), IDS]
        columns = Columns(*usual_columns(next(rows), usual))
        return Encoder(self.load_tokenizer(), columns, bad_rows=self.bad_rows)

    def build_model(self) -> nn.Module:
        model = self.build("AutoModelForMaskedLM", pad_token_id=self.load_tokenizer().pad_token_id)
        return self.adapted(model, None)  # type: ignore[no-any-return]

    def inputs(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}


class Pieces:
    """Documents as tokens, cut into pieces of at most ``length``.

    ``mask`` masks each piece in the same way every time, for evaluation. None: plain tokens.
    """

    def __init__(
        self,
        corpus: Corpus,
        chosen: Int64Array,
        length: int,
        mask: Callable[[Tensor, Generator], dict[str, Tensor]] | None,
    ) -> None:
        self.tokens = corpus.tokens
        self.mask = mask
        self.version = corpus.version(chosen)
        self.spans = [
            (first, min(first + length, end))
            for start, end in corpus.spans[chosen]
            for first in range(start, end, length)
        ]

    @property
    def token_count(self) -> int:
        """Return the tokens of all pieces."""
        return int(np.diff(self.spans).sum())

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, index: int) -> Any:
        start, end = self.spans[index]
        ids = torch.from_numpy(words_of(self.tokens[start:end]))
        return self.mask(ids, generator_of(index)) if self.mask else ids


def hide_tokens(ids: Tensor, generator: Generator, *, collator: Any) -> dict[str, Tensor]:
    """Return input_ids with hidden tokens, labels, and an attention_mask of 1, each (tokens,).

    The collator of transformers draws, and does not hide special tokens.
    """
    collator.generator = generator
    [hidden], [labels] = collator([ids]).values()
    return {"input_ids": hidden, "labels": labels, "attention_mask": torch.ones_like(ids)}
