"""The task of a causal language model, by settings: fine-tuned or from scratch, texts or chats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..task import Data
from .columns import IDS, USUAL, Columns, Learn, Usual, usual_columns
from .decoder import DecoderTask, LossMemory
from .packing import LongDocuments, Packing, Rows, row_of
from .problems import setting_error
from .sources import Row
from .templates import ALPACA_INPUT
from .tokens import TARGET, Encoder

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
    learn: Learn = "answers"
    packing: Packing = "best_fit"
    long_documents: LongDocuments = "split"
    stream: bool = False
    loss: LossMemory = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stream and (self.packing != "none" or self.long_documents == "split"):
            raise ValueError("stream: needs packing: none and long_documents: cut or refuse")
        if self.stream and (self.is_mixed or isinstance(self.evaluation, float)):
            raise ValueError("stream: takes files as data, and other files as evaluation")

    # -- data -------------------------------------------------------------------------------------

    def build_data(self) -> Data:
        if self.stream:
            return self._streamed()
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
        batch = partial(self.collate_rows, length=self.sequence_length if self.packs else None)
        return Data(train=train, evaluation=evaluation, collate=batch, version=train.version)

    def _streamed(self) -> Data:
        """Return the rows of files, which are tokenized while they are read."""
        from ..data.block_files import blocks

        read = partial(blocks, cache_dir=self.cache_dir)
        rows = read(self.data)  # type: ignore[arg-type]
        form = partial(
            tokenized_batch,
            encoder=self.encoder(iter([rows[0]])),
            length=self.sequence_length,
            cuts=self.long_documents == "cut",
            form=partial(self.collate_rows, length=None),
        )
        evaluation: Any = self.evaluation
        if isinstance(evaluation, Mapping):
            evaluation = {name: read(files) for name, files in evaluation.items()}
        elif evaluation:
            evaluation = read(evaluation)
        return Data(train=rows, evaluation=evaluation, collate=form)

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

    # -- training ---------------------------------------------------------------------------------

    def inputs(self, batch: Mapping[str, Tensor]) -> dict[str, Any]:
        inputs = super().inputs(batch)
        # The positions tell transformers the documents of a row.
        return inputs if not self.packs else {"position_ids": batch["position_ids"], **inputs}


def tokenized_batch(
    rows: Sequence[Row], *, encoder: Encoder, length: int, cuts: bool, form: Callable[..., Any]
) -> dict[str, Tensor]:
    """Return a batch of rows, each tokenized and cut off behind ``length`` positions.

    Raises ``ConfigError`` if a row cannot be trained on, or is longer and rows are not ``cuts``.
    """
    documents = list(encoder.encode([("a row of data", row) for row in rows]))
    longest = max((len(ids) - 1 for ids, _ in documents), default=0)
    if longest > length and not cuts:
        rule = f"a document has {longest + 1} tokens; set a longer one, or long_documents: cut"
        raise setting_error("sequence_length", length, rule)
    # Two tokens without a target stand for rows that are left out.
    pairs = [pair for pair in documents if len(pair[0]) > 1] or [([0, 0], np.zeros(2, bool))]
    tokens = [np.array(ids, np.uint32) | targets * TARGET for ids, targets in pairs]
    batch = [row_of(of_row, np.array([[0, min(len(of_row) - 1, length)]])) for of_row in tokens]
    return form(batch)  # type: ignore[no-any-return]
