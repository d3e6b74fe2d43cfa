"""The task of a reward model, by settings: a score for each answer, learnt from preferences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch.nn.functional import logsigmoid

from ..task import Data
from .packing import collate
from .preference import PreferenceTask, without_dropout
from .pretrained import checkpoint_activations
from .problems import setting_error
from .tokens import words_of

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class RewardModel(PreferenceTask):
    """Learn a score of answers (Bradley and Terry 1952), the only output of a new last layer.

    The score of the chosen answer is to be larger by the ``margin`` of the row, which is 0 without
    such a column. The end of a text that is cut off is not scored. docs/fine_tuning.md describes
    the settings.
    """

    card: ClassVar[tuple[str, str]] = ("text-classification", "Reward model")
    scores_texts: ClassVar[bool] = True
    rates: ClassVar[tuple[float, float]] = (1e-4, 1e-4)
    long_documents: Literal["cut", "refuse"] = "refuse"

    def build_data(self) -> Data:
        data = super().build_data()
        tokenizer = self.load_tokenizer()
        for pairs in self.sets:
            last = pairs.corpus.tokens[pairs.spans[..., 1] - 1]
            if tokenizer.pad_token_id in words_of(last):
                raise setting_error(
                    "tokenizer",
                    tokenizer.pad_token,
                    "pads texts and ends a text, so that the end would not be scored; give a "
                    "tokenizer with another pad_token",
                )
        return data

    def rows(self, sides: Sequence[Any]) -> dict[str, Tensor]:
        ids = [torch.from_numpy(words_of(side)) for side in sides]
        rows = [{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in ids]
        return collate(rows, padding=self.load_tokenizer().pad_token_id)

    def build_model(self) -> nn.Module:
        model = without_dropout(self.build_classifier(num_labels=1))
        checkpoint_activations(model, self.activation_checkpointing)
        return self.adapted(model, "SEQ_CLS")  # type: ignore[no-any-return]

    def losses(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        output = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        rewards = output.logits.view(-1, 2).double()
        losses = -logsigmoid(rewards[:, 0] - rewards[:, 1] - batch["pair_margin"])
        return losses, rewards
