"""The task of preference training without a reward model (Rafailov et al. 2023, "DPO")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather, send_to_device
from pydantic import Field
from torch import nn
from torch.nn.functional import logsigmoid
from torch.utils.data import ConcatDataset, DataLoader, Subset

from ..config.paths import LocalPath
from ..data.now import now
from ..errors import DataError
from ..private.peft import without_adapter
from ..reporting.say import say
from ..task import Pretrained
from .adapters import REFERENCE, add_reference
from .base import LanguageTask
from .decoder import LossMemory
from .packing import IGNORED, row_of
from .preference import PreferenceTask, without_dropout
from .problems import setting_error
from .quantized import training_device

if TYPE_CHECKING:
    from torch import Tensor

# Objectives with log-probabilities a token. The last two have no reference.
BY_TOKEN = ("ipo", "orpo", "simpo")
BLOCK = 4  # pairs whose log-probabilities are computed at once


class PolicyAndReference(nn.Module):
    """A policy and its frozen reference.

    Without a reference: the policy with its frozen second adapter, or without its adapter.
    """

    def __init__(self, policy: nn.Module, reference: nn.Module | None, second: str | None) -> None:
        super().__init__()
        self.policy = policy
        self.reference = reference
        self.second = second

    def forward(self, *, from_reference: bool = False, **inputs: Any) -> Any:
        if from_reference and self.reference is not None:
            return self.reference(**inputs)
        with without_adapter(self.policy, self.second) if from_reference else nullcontext():
            return self.policy(**inputs)


@dataclass(frozen=True, kw_only=True)
class DPO(PreferenceTask):
    """Train a policy on preferences, with a reference that the policy stays near.

    docs/fine_tuning.md describes the settings. The objective ``robust`` is of Chowdhury et al.
    2024, and those with log-probabilities a token are ``ipo`` of Azar et al. 2023, ``orpo`` of Hong
    et al. 2024 and ``simpo`` of Meng et al. 2024.
    """

    card: ClassVar[tuple[str, str]] = ("text-generation", "Language model trained on preferences")
    exported: ClassVar[str] = "policy"
    rates: ClassVar[tuple[float, float]] = (1e-6, 1e-5)
    has_documents: ClassVar[bool] = True

    reference: Literal["without_adapter", "start", "frozen", "computed_once"] | None = None
    reference_model: LocalPath | None = None
    beta: Annotated[float, Field(gt=0)] = 0.1
    objective: Literal["sigmoid", "robust", "ipo", "orpo", "simpo"] = "sigmoid"
    simpo_gamma: Annotated[float, Field(ge=0)] = 0.5
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    sft_weight: Annotated[float, Field(ge=0)] = 0.0
    loss: LossMemory = "auto"

    # State, which ``keep`` changes.
    of_reference: ClassVar[Any] = None  # finds the files of the reference
    table: ClassVar[Any] = None  # the log-probabilities of the reference, computed once

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reference in ("without_adapter", "start") and not self.adapter:
            raise ValueError("reference: without_adapter and start need an adapter")
        if self.reference_model and self.kind != "frozen":
            raise ValueError("reference_model: has no use without reference: frozen")
        if self.kind == "frozen" and self.quantize:
            raise ValueError("reference: a model in 4 bits has the reference without_adapter")
        has_smoothing = self.label_smoothing and self.objective in ("ipo", "orpo")
        if has_smoothing or (self.reference and not self.kind):
            raise ValueError(
                "objective: has no such reference, or no label_smoothing; leave the key out"
            )

    @property
    def kind(self) -> Literal["without_adapter", "start", "frozen", "computed_once"] | None:
        """Return the kind of the reference. None for an objective without a reference."""
        if self.objective in BY_TOKEN[1:]:
            return None
        if self.reference or self.reference_model or not self.adapter:
            return self.reference or "frozen"
        return "start" if self.adapter.start else "without_adapter"

    @property
    def most_tokens(self) -> int:
        return self.sequence_length + 1  # the last position predicts a token

    def rows(self, sides: Sequence[Any]) -> dict[str, Tensor]:
        rows = [row_of(side, np.array([[0, len(side) - 1]])) for side in sides]
        return self.collate_rows(rows)

    # -- model ------------------------------------------------------------------------------------

    def build_model(self) -> nn.Module:
        if self.kind == "computed_once" and self.processes.size > 1:
            rule = "gives each process other pairs; set context_parallel: 1, or reference: frozen"
            raise setting_error("reference", self.kind, rule)
        policy = self.build_decoder(self.loss)
        reference = None
        if self.kind == "frozen":
            other = self._task_of_reference()
            reference = other.build_decoder(self.loss)
            reference.requires_grad_(False)
            self.keep(of_reference=other.stored)
        second = REFERENCE if self.kind == "start" else None
        if second:
            add_reference(policy)
        return PolicyAndReference(policy, reference, second)

    def _task_of_reference(self) -> DPO:
        """Return the task of the reference. Raise ``ConfigError`` if its tokens are others."""
        other = replace(self, model=self.reference_model or self.model, adapter=None)
        # A copy has no state, and would attend in its part of the tokens alone.
        other.keep(plan=self.plan, processes=self.processes)
        if other.load_tokenizer().get_vocab() != self.load_tokenizer().get_vocab():
            raise setting_error(
                "reference_model", self.reference_model, "has another vocabulary than the model"
            )
        return other

    def load_model(self) -> Any:
        return without_dropout(super().load_model())

    def pretrained(self, model: Any) -> list[Pretrained]:
        parts = [replace(stored, part="policy") for stored in super().pretrained(model.policy)]
        if self.of_reference:
            stored_parts = self.of_reference(model.reference)
            parts += [replace(stored, part="reference") for stored in stored_parts]
        return parts

    def held_in_evaluation(self, model: Any) -> list[nn.Module]:
        return [*super().held_in_evaluation(model), *filter(None, [model.reference])]

    def for_model(self, folder: Path) -> LanguageTask | None:
        """Return the task with the policy of a folder, and the reference of this task."""
        if self.kind is None:
            return super().for_model(folder)
        first = self.reference_model or self.model
        frozen = replace(self, adapter=None, reference="frozen", reference_model=first)
        return super(DPO, frozen).for_model(folder)

    # -- training ---------------------------------------------------------------------------------

    def losses(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        reference = self.reference_log_probs(model, batch) if self.kind else 0.0
        policy = self.log_probs(model, batch)
        counts = (batch["labels"] != IGNORED).sum(-1).view(-1, 2)

        distances = policy - reference
        by_token = distances / counts
        losses = self.objective_of(by_token if self.objective in BY_TOKEN else distances)
        sft_weight = self.sft_weight or float(self.objective == "orpo")
        if sft_weight:
            losses = losses - sft_weight * (policy / counts)[:, 0]
        return losses, self.beta * (distances if self.kind else by_token)

    def objective_of(self, distances: Tensor) -> Tensor:
        """Return the loss of each pair.

        ``distances`` are (pairs, 2), the logarithms of policy over reference, chosen first. Those
        of ``BY_TOKEN`` are a token's.
        """
        if self.objective == "orpo":  # the odds
            distances = distances - torch.log(-torch.expm1(distances))
        gap = distances[:, 0] - distances[:, 1]
        if self.objective == "ipo":
            return (gap - 1 / (2 * self.beta)).square()
        if self.objective == "orpo":
            return -self.beta * logsigmoid(gap)
        share = self.label_smoothing
        if self.objective == "robust":
            share /= 2 * share - 1
        # (1 - share) times the loss of the gap, plus share times the loss of the flipped gap.
        gap = self.beta * gap - (self.simpo_gamma if self.objective == "simpo" else 0.0)
        return share * gap - logsigmoid(gap)

    def log_probs(self, model: nn.Module, batch: Any, **which: bool) -> Tensor:
        """Return the sum of the log-probabilities of each answer, (pairs, 2) in float64."""
        losses = self.token_losses(model, batch, **which)
        return -losses.double().sum(-1).view(-1, 2)

    @torch.no_grad()
    def reference_log_probs(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the log-probabilities of the reference, as of ``log_probs``."""
        if self.kind != "computed_once":
            return self.log_probs(model, batch, from_reference=True)

        if self.table is None:
            self.keep(table=self._compute_once(model))
        return self.table[batch["pair"]]  # type: ignore[no-any-return]

    # -- the reference, computed once -------------------------------------------------------------

    def _compute_once(self, model: nn.Module) -> Tensor:
        """Return the reference's log-probabilities of all pairs. Collective.

        Raises ``DataError`` if the model has been trained, so that the reference is lost.
        """
        moment = now()
        if not self.adapter and moment.step > (moment.evaluation_set is None):
            raise DataError(
                "the reference is the model before the first step, whose log-probabilities of "
                "these pairs no checkpoint holds; set reference: frozen"
            )
        pairs: Any = ConcatDataset(self.sets)
        device = training_device()
        table = torch.zeros(len(pairs), 2, dtype=torch.double, device=device)
        say("reference: the log-probabilities of all pairs are computed")
        numbers = [*range(len(pairs))]
        # Every rank calls the model as often: the last pair fills up the shares.
        with PartialState().split_between_processes(numbers, apply_padding=True) as share:
            for batch in DataLoader(Subset(pairs, share), BLOCK, collate_fn=self.collate):
                on_device = send_to_device(batch, device)
                values = self.log_probs(model, on_device, from_reference=True)
                table[gather(on_device["pair"])] = gather(values)
        return table

    def _version(self) -> str:
        """Return a hash of all pairs."""
        return " ".join(pairs.version for pairs in self.sets)

    def state_dict(self) -> dict[str, Any]:
        if self.table is None:
            return {}
        return {"pairs": self._version(), "log_probs": self.table.cpu()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("pairs") == self._version():
            self.keep(table=state["log_probs"].to(training_device()))
