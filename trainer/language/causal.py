"""The task of a causal language model, by settings: fine-tuned or from scratch, texts or chats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from ..task import Data
from .base import DENSE
from .columns import USUAL, Columns, Learn, Usual, usual_columns
from .decoder import DecoderTask, LossMemory
from .packing import LongDocuments, Packing, Rows, collate
from .problems import setting_error
from .sources import Row
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

    text_column: str = "text"
    messages_column: str | None = None
    prompt_column: str | None = None
    completion_column: str | None = None
    learn: Learn = "answers"
    packing: Packing = "best_fit"
    long_documents: LongDocuments = "split"
    loss: LossMemory = "auto"

    # -- data -------------------------------------------------------------------------------------

    def build_data(self) -> Data:
        train, evaluation = self.parts(
            self.tokenized,
            partial(
                Rows,
                length=self.sequence_length,
                packing=self.packing,
                long_documents=self.long_documents,
                cache=self.cache_dir,
            ),
        )
        batch = partial(
            collate,
            length=None if self.packing == "none" else self.sequence_length,
            padding=self.padding,
        )
        return Data(train=train, evaluation=evaluation, collate=batch, version=train.version)

    def encoder(self, rows: Iterator[Row]) -> Encoder:
        row = next(rows, {})
        usual: list[Usual] = [("text", (self.text_column,)), *USUAL]
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
        model = self.build_decoder(self.loss, packed=self.packing == "best_fit")
        return model  # type: ignore[no-any-return]

    # -- training ---------------------------------------------------------------------------------

    def inputs(self, batch: Mapping[str, Tensor]) -> dict[str, Any]:
        if self.packing == "none":
            return super().inputs(batch)

        # For flash kernels transformers 5.23 finds the documents in the positions of a single row
        # only. All rows as a single long row have the same loss.
        rows = len(batch["input_ids"]) if self.attention in DENSE else 1
        return {name: batch[name].reshape(rows, -1) for name in ("input_ids", "position_ids")}
