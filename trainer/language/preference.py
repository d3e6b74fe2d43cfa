"""The base of the tasks that learn from preferences: pairs, batches of pairs, metrics."""

from __future__ import annotations

import copy
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from inspect import unwrap
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from ..task import Data, Task
from .columns import usual_columns
from .decoder import DecoderTask
from .pairs import PROMPTS, PairColumns, PairEncoder, Pairs
from .sources import Row
from .tokens import ROWS, Encoder, Int64Array

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class PreferenceTask(DecoderTask):
    """A task that learns from pairs of a chosen and a rejected answer.

    A batch has both sides of each pair, as neighbouring rows, chosen first. The prompt is by
    default the first of ``PROMPTS`` that a row has. A row without a prompt has whole conversations
    or texts, which begin alike. Sides that are longer than ``sequence_length`` are ``cut`` off, or
    ``refuse``d.
    """

    counts_tokens: ClassVar[bool] = False

    prompt_column: str | None = None
    chosen_column: str = "chosen"
    rejected_column: str = "rejected"
    long_documents: Literal["cut", "refuse"] = "cut"
    sets: ClassVar[Sequence[Any]] = ()  # state, which ``keep`` changes

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.config:
            raise ValueError("config: preferences need a trained model; give model instead")

    @property
    def most_tokens(self) -> int:
        """Return the most tokens of a side."""
        return self.sequence_length

    # -- data -------------------------------------------------------------------------------------

    def encoder(self, rows: Iterator[Row]) -> Encoder:
        first = list(islice(rows, ROWS))
        row = first[0]
        sides = (self.chosen_column, self.rejected_column)
        prompts = [self.prompt_column] if self.prompt_column else PROMPTS
        columns = PairColumns(
            *usual_columns(row, [("pair", (prompt, *sides)) for prompt in prompts]),
            settings=self.chat_template_kwargs or {},
            tokens=self.most_tokens,
            cuts=self.long_documents == "cut",
            as_chat=self.template is not None,
        )
        if not columns.are_chats(row) and columns.repeats_prompt(first):
            columns = replace(columns, whole=True)
            self.note(f"data: {' and '.join(sides)} repeat the prompt, which is not added again")
        return self.encoder_of(columns, row, PairEncoder)

    def build_data(self) -> Data:
        sets: list[Pairs] = []
        self.keep(sets=sets)

        def pairs(corpus: Any, chosen: Int64Array) -> Pairs:
            sets.append(Pairs(corpus, chosen, self.most_tokens, sum(map(len, sets))))
            return sets[-1]

        return self.data_of(self.tokenized, pairs, self.collate)

    @abstractmethod
    def rows(self, sides: Sequence[Any]) -> dict[str, Tensor]:
        """Return the inputs of a batch, each (sides, tokens). Targets have the bit ``TARGET``."""

    def collate(self, pairs: Sequence[Any]) -> dict[str, Tensor]:
        """Return a batch of pairs: the inputs, and number and margin of each pair."""
        sides, numbers, margins = zip(*pairs, strict=True)
        return {
            **self.rows([*chain(*sides)]),
            "pair": torch.tensor(numbers),
            "pair_margin": torch.tensor(margins),
        }

    # -- training ---------------------------------------------------------------------------------

    def held_in_evaluation(self, model: nn.Module) -> list[nn.Module]:
        """Return the routers that draw random numbers in training mode (phimoe samples experts)."""
        return [
            module
            for module in model.modules()
            if re.search(r"(?i)(router|gate|moe|moeblock)$", type(module).__name__)
            and "training" in unwrap(type(module).forward).__code__.co_names
        ]

    @abstractmethod
    def losses(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        """Return the loss of each pair, and the rewards of the sides, (pairs,) and (pairs, 2)."""

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        losses, rewards = self.losses(model, batch)
        return losses.mean().float(), measured(rewards)

    def weight(self, batch: Any) -> int:
        return len(batch["pair"])

    evaluation_step = Task.evaluation_step

    def prediction_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        """Return the loss and the rewards of each pair."""
        losses, rewards = self.losses(model, batch)
        return {"loss": losses, **measured(rewards)}

    def summarize(self, metrics: dict[str, float]) -> dict[str, float]:
        return metrics


def without_dropout(model: Any) -> Any:
    """Switch dropout off, which would part a policy from its reference before the first step.

    Most models keep the dropout of attention as a number, and some layers read their
    configuration. The whole model, whose configuration is exported, gets a copy of before.
    """
    before = copy.deepcopy(model.config)
    for module in model.modules():
        for owner in (module, vars(module).get("config", module)):
            for name, value in vars(owner).items():
                is_dropout = re.search("(?i)drop", f"{type(owner).__name__}.{name}")
                if is_dropout and isinstance(value, float):
                    setattr(owner, name, 0.0)
    model.config = before
    return model


def measured(rewards: Tensor) -> dict[str, Tensor]:
    """Return the metrics of each pair. The rewards are (pairs, 2), chosen first."""
    chosen, rejected = rewards.detach().unbind(1)
    return {
        "chosen_reward": chosen,
        "rejected_reward": rejected,
        "margin": chosen - rejected,
        "accuracy": (chosen > rejected).float(),
    }
