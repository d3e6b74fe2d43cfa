"""The task of a causal language model, by settings: fine-tuned or from scratch, texts or chats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ..task import Data
from .columns import IDS, USUAL, Columns, Usual, usual_columns
from .decoder import DecoderTask, LossMemory
from .packing import Rows, row_of, tokenize
from .problems import setting_error
from .sources import Row, hub_stream
from .templates import ALPACA_INPUT
from .tokens import Encoder

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class CausalLM(DecoderTask):
    """Predict the next token of texts, or the assistant's words in conversations.

    docs/fine_tuning.md describes the settings. Columns that are not named are found by their usual
    names (``columns.py``).
    """

    card: ClassVar[tuple[str, str]] = ("text-generation", "Causal language model")
    has_documents: ClassVar[bool] = True

    text_column: str = "text"
    messages_column: str | None = None
    prompt_column: str | None = None
    completion_column: str | None = None
    learn: Literal["answers", "all"] = "answers"
    packing: Literal["best_fit", "none"] = "best_fit"
    long_documents: Literal["split", "cut", "refuse"] = "split"
    stream: bool = False
    loss: LossMemory = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stream and (self.is_mixed or isinstance(self.evaluation, float)):
            raise ValueError("stream: takes files as data, and other files as evaluation")

    # -- data -------------------------------------------------------------------------------------

    def build_data(self) -> Data:
        settings: dict[str, Any] = {
            "length": self.sequence_length,
            "packing": self.packing,
            "long_documents": self.long_documents,
        }
        batch = partial(self.collate_rows, length=self.sequence_length if self.packs else None)
        if self.stream:
            return self._streamed(settings, batch)
        rows = partial(Rows, cache=self.cache_dir, **settings)
        return self.data_of(self.tokenized, rows, batch)

    def _streamed(self, settings: dict[str, Any], batch: Callable[..., Any]) -> Data:
        """Return the rows of files or of the Hub, which are tokenized while they are read."""
        from ..data.block_files import blocks
        from ..data.lane_stream import LaneStream

        def read(names: Any) -> Any:
            is_name = str(names).startswith("hf:")
            return blocks(hub_stream(names) if is_name else names, cache_dir=self.cache_dir)

        train = read(self.data)
        tokenized = partial(tokenize, encoder=self.encoder(iter(train)), settings=settings)
        # Each row of the data is a row of a batch, so that their number is known.
        is_counted = self.packing == "none" and self.long_documents != "split"

        def formed(rows: Any) -> Any:
            return rows if is_counted else LaneStream(rows.own_order, tokenized)

        if is_counted:
            batch = partial(tokenized_batch, tokenized=tokenized, batch=batch)
        return Data(
            train=formed(train),
            evaluation=self.evaluated(lambda names: formed(read(names))),
            collate=batch,
        )

    def encoder(self, rows: Iterator[Row]) -> Encoder:
        row = next(rows, {})
        usual: list[Usual] = [("text", (self.text_column,)), *USUAL, IDS]
        if self.messages_column:
            usual = [("messages", (self.messages_column,))]
        elif self.prompt_column or self.completion_column:
            usual = [("prompt", (str(self.prompt_column), str(self.completion_column)))]
        elif "rejected" in row or isinstance(row.get("label"), bool):
            raise setting_error(
                "data",
                ", ".join(row),
                "are preferences, and CausalLM learns every answer; use trainer.language:DPO, or "
                "name prompt_column and completion_column, or messages_column",
            )
        columns = Columns(
            *usual_columns(row, usual),
            self.chat_template_kwargs or {},
            ALPACA_INPUT if self.template == "alpaca" else "\n\n",
            self.learn,
        )

        return self.encoder_of(columns, row)

    # -- model ------------------------------------------------------------------------------------

    def build_model(self) -> nn.Module:
        return self.build_decoder(self.loss)  # type: ignore[no-any-return]

    @property
    def packs(self) -> bool:
        return self.packing == "best_fit"


def tokenized_batch(
    rows: Sequence[Row], *, tokenized: Callable[..., Any], batch: Callable[..., Any]
) -> dict[str, Tensor]:
    """Return a batch of rows that are tokenized now."""
    # Two tokens without a target stand for rows that are left out.
    stand_in = row_of(np.zeros(2, np.uint32), np.array([[0, 1]]))
    return batch(tokenized(rows) or [stand_in])  # type: ignore[no-any-return]
