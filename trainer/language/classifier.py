"""The task of a classifier of texts, by settings alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch.nn.functional import cross_entropy
from xxhash import xxh3_128_hexdigest

from ..config.paths import LocalPath
from ..task import Data
from .base import LanguageTask
from .columns import take
from .model_files import CLASSIFIER
from .pretrained import configure
from .problems import setting_error
from .sources import find_sources

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class SequenceClassifier(LanguageTask):
    """Classify texts with a pretrained encoder or decoder and a new last layer.

    A label is a text or a whole number (1.0 is 1). The labels of ``data`` are the classes, in the
    order of a model that is trained on these classes already. Texts are cut off behind
    ``sequence_length`` tokens. docs/fine_tuning.md describes the settings.
    """

    card: ClassVar[tuple[str, str]] = ("text-classification", "Classifier of texts")
    scores_texts: ClassVar[bool] = True

    model: str
    data: LocalPath | list[LocalPath]  # type: ignore[assignment]  # all labels are the classes
    text_column: str = "text"
    label_column: str = "label"
    sequence_length: Annotated[int, Field(ge=2)] = 512

    # -- data -------------------------------------------------------------------------------------

    def build_data(self) -> Data:
        train, evaluation = self.parts(
            self._examples, lambda examples, chosen: [examples[number] for number in chosen]
        )
        version = xxh3_128_hexdigest(json.dumps(train).encode())
        return Data(train=train, evaluation=evaluation, collate=self._collate, version=version)

    def _examples(self, key: str, names: str | list[str]) -> list[tuple[str, str]]:
        """Return the text and the label of each row that the setting ``key`` names."""
        examples = []
        for source in find_sources(names, key):
            for origin, row in source.read():
                text = take(row, origin, self.text_column, "text_column", str)
                label = take(row, origin, self.label_column, "label_column")
                if isinstance(label, float) and label.is_integer():
                    label = int(label)
                if not isinstance(label, str | int):
                    raise setting_error(
                        "label_column",
                        self.label_column,
                        f"is {label!r} in {origin}; a label is a text or a whole number",
                    )
                examples.append((text, str(label)))

        # The labels of the training data, which is read first. Shorter labels first: 2 before 10.
        if "labels" not in self.memory:
            labels = sorted(sorted({label for _, label in examples}), key=len)
            self.memory["labels"] = self._as_the_model_has(labels)
        if len(self.memory["labels"]) < 2:
            raise setting_error(key, names, "has a single class; a classifier needs two")
        return examples

    def _as_the_model_has(self, labels: list[str]) -> list[str]:
        """Return labels in the order of the model's classes, if the model is trained on these."""
        from transformers import AutoConfig

        numbers: Mapping[str, int] = {}
        with suppress(OSError, ValueError):  # a missing model is told when its tokenizer is loaded
            numbers = AutoConfig.from_pretrained(self.model).label2id
        is_same = set(numbers) == set(labels)
        return sorted(labels, key=numbers.__getitem__) if is_same else labels

    def _collate(self, examples: Sequence[tuple[str, str]]) -> dict[str, Tensor]:
        """Return a batch of texts, padded to the longest text, with the number of each label."""
        coded = self.load_tokenizer()(
            [text for text, _ in examples],
            truncation=True,
            max_length=self.sequence_length,
            padding=True,
            return_tensors="pt",
        )
        numbers = [self.memory["labels"].index(label) for _, label in examples]
        return {**coded, "labels": torch.tensor(numbers)}

    # -- model ------------------------------------------------------------------------------------

    def build_model(self) -> nn.Module:
        if "labels" not in self.memory:
            self.build_data()
        names = dict(enumerate(self.memory["labels"]))
        numbers = {label: number for number, label in names.items()}
        model = self.build_pretrained(CLASSIFIER, id2label=names, label2id=numbers)
        configure(model, pad_token_id=self.load_tokenizer().pad_token_id)
        return self.adapted(model, "SEQ_CLS")  # type: ignore[no-any-return]

    # -- training ---------------------------------------------------------------------------------

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return self.evaluation_step(model, batch)["loss"].mean()

    def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        labels, logits = batch["labels"], _logits(model, batch)
        loss = cross_entropy(logits, labels, reduction="none")
        return {"loss": loss, "accuracy": (logits.argmax(-1) == labels).float()}

    def prediction_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        """Return the label of each text, the predicted label, and the logits of all classes."""
        logits = _logits(model, batch)
        classes = self.memory["labels"]
        return {
            "label": [classes[number] for number in batch["labels"]],
            "predicted": [classes[number] for number in logits.argmax(-1)],
            "logits": logits,
        }


def _logits(model: nn.Module, batch: Any) -> Tensor:
    """Return the logits of all classes for each text of a batch."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    return model(**inputs).logits.float()  # type: ignore[no-any-return]
