"""The task of a classifier of texts, by settings alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, compress
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

import torch
from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss, one_hot
from xxhash import xxh3_128_hexdigest

from ..config.paths import LocalPath
from ..task import Data
from .base import LanguageTask
from .columns import take
from .problems import setting_error
from .sources import Row, find_sources

if TYPE_CHECKING:
    from torch import Tensor, nn

SINGLE: Final = "single_label_classification"
MULTI, REGRESSION = "multi_label_classification", "regression"
LOSSES: dict[str, Callable[..., Tensor]] = {
    SINGLE: cross_entropy,
    MULTI: binary_cross_entropy_with_logits,
    REGRESSION: mse_loss,
}
# 1.0 is 1. True is no number of a class.
NAMES: TypeAdapter[list[Any]] = TypeAdapter(list[int | str | bool])
NUMBER: TypeAdapter[float] = TypeAdapter(FiniteFloat | bool)


class Examples(list[Any]):
    """Chosen texts, each with a label."""

    def __init__(self, examples: Sequence[Any], chosen: Iterable[int]) -> None:
        super().__init__(examples[number] for number in chosen)
        self.version = xxh3_128_hexdigest(json.dumps(self).encode())


@dataclass(frozen=True, kw_only=True)
class SequenceClassifier(LanguageTask):
    """Classify texts with a pretrained encoder or decoder and a new last layer.

    A label is a text or a whole number (1.0 is 1), with several labels a list of these, and in a
    regression a number. The labels of ``data`` are the classes, in the order of a model that is
    trained on these classes already. Texts are cut off behind ``sequence_length`` tokens.
    docs/fine_tuning.md describes the settings.
    """

    card: ClassVar[tuple[str, str]] = ("text-classification", "Classifier of texts")
    scores_texts: ClassVar[bool] = True

    model: str
    data: LocalPath | list[LocalPath]  # type: ignore[assignment]  # all labels are the classes
    text_column: str = "text"
    text_pair_column: str | None = None
    label_column: str = "label"
    problem_type: Literal[
        "single_label_classification", "multi_label_classification", "regression"
    ] = SINGLE
    sequence_length: Annotated[int, Field(ge=2)] = 512
    classes: ClassVar[Sequence[str]] = ()  # state, which ``keep`` changes

    # -- data -------------------------------------------------------------------------------------

    def build_data(self) -> Data:
        return self.data_of(self._examples, Examples, self._collate)

    def _examples(self, key: str, names: str | list[str]) -> list[tuple[list[str], Any]]:
        """Return the texts and the label of each row that the setting ``key`` names."""
        columns = {"text_column": self.text_column, "text_pair_column": self.text_pair_column}
        examples: list[tuple[list[str], Any]] = []
        for source in find_sources(names, key):
            for origin, row in source.read():
                texts = [take(row, origin, name, of, str) for of, name in columns.items() if name]
                examples.append((texts, self._label(row, origin)))
        if self.problem_type == REGRESSION:
            self.keep(classes=["LABEL_0"])  # as transformers calls a number
            return examples

        # The labels of the training data, which is read first. Shorter labels first: 2 before 10.
        labels = {label for _, labels in examples for label in labels}
        if not self.classes:
            self.keep(classes=self._as_the_model_has(sorted(sorted(labels), key=len)))
        if len(self.classes) < 2:
            raise setting_error(key, names, "has a single class; a classifier needs two")
        for label in labels.difference(self.classes):
            raise setting_error(key, names, f"has the label {label!r}, which data does not have")
        return examples

    def _label(self, row: Row, origin: str) -> Any:
        """Return the labels of a row as texts, or the number of a regression."""
        given = take(row, origin, self.label_column, "label_column")
        is_list = self.problem_type == MULTI and isinstance(given, list)
        try:
            if self.problem_type == REGRESSION:
                return NUMBER.validate_python(given, strict=True)
            labels = NAMES.validate_python(given if is_list else [given])
        except ValidationError:
            raise setting_error(
                "label_column",
                self.label_column,
                f"is {given!r} in {origin}; a label is a text or a whole number, with "
                "multi_label_classification a list of these, and with regression a number",
            ) from None
        return [*dict.fromkeys(map(str, labels))]

    def _as_the_model_has(self, labels: list[str]) -> list[str]:
        """Return labels in the order of the model's classes, if the model is trained on these."""
        from transformers import AutoConfig

        with suppress(OSError, ValueError):  # a missing model is told when its tokenizer is loaded
            numbers = AutoConfig.from_pretrained(self.model).label2id
            if numbers.keys() == {*labels}:
                return sorted(labels, key=numbers.__getitem__)
        return labels

    def _collate(self, examples: Sequence[tuple[list[str], Any]]) -> dict[str, Tensor]:
        """Return a batch of texts, padded to the longest, with (texts, classes) of labels."""
        texts, labels = zip(*examples, strict=True)
        coded = self.load_tokenizer()(
            *map(list, zip(*texts, strict=True)),
            truncation=True,
            max_length=self.sequence_length,
            padding=True,
            return_tensors="pt",
        )
        rows = [
            [label] if isinstance(label, int | float) else [*map(label.count, self.classes)]
            for label in labels
        ]
        return {**coded, "labels": torch.tensor(rows, dtype=torch.float32)}

    # -- model ------------------------------------------------------------------------------------

    def build_model(self) -> nn.Module:
        if not self.classes:
            self.build_data()
        names = dict(enumerate(self.classes))
        numbers = {label: number for number, label in names.items()}
        model = self.build_classifier(
            id2label=names, label2id=numbers, problem_type=self.problem_type
        )
        return self.adapted(model, "SEQ_CLS")  # type: ignore[no-any-return]

    # -- training ---------------------------------------------------------------------------------

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return self.evaluation_step(model, batch)["loss"].mean()

    def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        labels, logits = batch["labels"], _logits(model, batch)
        losses = LOSSES[self.problem_type](logits, labels, reduction="none")
        loss = losses.reshape(len(labels), -1).mean(-1)
        if self.problem_type == REGRESSION:
            return {"loss": loss, "absolute_error": (logits - labels).abs().flatten()}
        is_right = (self._predicted(logits) == labels).all(-1)
        return {"loss": loss, "accuracy": is_right.float()}

    def _predicted(self, logits: Tensor) -> Tensor:
        """Return which classes each text has, (texts, classes)."""
        if self.problem_type == MULTI:
            return logits > 0
        return one_hot(logits.argmax(-1), logits.shape[-1])

    def prediction_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        """Return the label of each text, the predicted label, and the logits of all classes."""
        labels, logits = batch["labels"], _logits(model, batch)
        if self.problem_type == REGRESSION:
            return {"label": labels.flatten(), "predicted": logits.flatten()}
        predicted = self._predicted(logits)
        return {"label": self._names(labels), "predicted": self._names(predicted), "logits": logits}

    def _names(self, rows: Tensor) -> list[Any]:
        """Return the labels of each text, or its label, from (texts, classes)."""
        names = [[*compress(self.classes, row)] for row in rows.tolist()]
        return names if self.problem_type == MULTI else [*chain(*names)]


def _logits(model: nn.Module, batch: Any) -> Tensor:
    """Return the logits of all classes for each text of a batch."""
    return model(**{**batch, "labels": None}).logits.float()  # type: ignore[no-any-return]
