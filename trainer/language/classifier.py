"""The task of a classifier of texts, by settings alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from xxhash import xxh3_128_hexdigest

from ..config.annotations import LocalPath
from ..errors import DataError
from ..task import Data
from .adapters import add_adapter
from .base import LanguageTask
from .card import model_card
from .columns import take_column, take_texts
from .problems import setting_error
from .sources import find_sources, held_out

if TYPE_CHECKING:
    from torch import Tensor, nn

Example = tuple[str, str]  # a text and its label


@dataclass(frozen=True, kw_only=True)
class SequenceClassifier(LanguageTask):
    """Tell the label of a text, with a pretrained encoder or decoder and a new last layer.

    Args:
        data, evaluation: as of ``CausalLM``; rows with columns.
        model: a folder of safetensors or a name on the Hub.
        tokenizer: a folder, a tokenizer.json, a name on the Hub; by default the model's.
        text_column, label_column: of a row. A label is text or a number; all that occur are told
            apart.
        sequence_length: tokens of a text, at most; longer ones are cut off.
        adapter: low-rank adapters, of which alone is learnt beside the last layer; {} for the
            defaults.
        attention: as transformers calls it: sdpa, eager; by default what the model's class takes.
        ignore_tensors: patterns of tensors in the model's files that the model is not to have, such
            as ``mtp.*``.
        cache_dir: for what a GGUF file is converted to.
    """

    data: LocalPath | list[LocalPath]
    evaluation: LocalPath | float | None = None
    model: str
    text_column: str = "text"
    label_column: str = "label"
    sequence_length: Annotated[int, Field(ge=2)] = 512

    def build_data(self) -> Data:
        examples, evaluation = self._examples("data", self.data), None
        self.memory["labels"] = sorted(
            {label for _, label in examples}, key=lambda label: (len(label), label)
        )  # 2 before 10
        if isinstance(self.evaluation, float):
            kept = held_out(len(examples), self.evaluation)
            evaluation = [example for example, keep in zip(examples, kept, strict=True) if keep]
            examples = [example for example, keep in zip(examples, kept, strict=True) if not keep]
        elif self.evaluation is not None:
            evaluation = self._examples("evaluation", self.evaluation)
            if unknown := sorted({label for _, label in evaluation} - set(self.memory["labels"])):
                raise setting_error(
                    "evaluation", self.evaluation, f"has a label that data lacks: {unknown[0]!r}"
                )
        tokenizer = self.load_tokenizer()
        collate = partial(
            _collate, tokenizer=tokenizer, labels=self.memory["labels"], length=self.sequence_length
        )
        version = xxh3_128_hexdigest(json.dumps(examples).encode())
        return Data(train=examples, evaluation=evaluation, collate=collate, version=version)

    def load_tokenizer(self) -> Any:
        tokenizer = super().load_tokenizer()
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        return tokenizer

    def _examples(self, key: str, names: str | list[str]) -> list[Example]:
        rows = [row for source in find_sources(names, key) for row in source.read()]
        if not rows:
            raise DataError(f"task_settings.{key}: no rows")
        texts = take_texts(rows, self.text_column, "text_column")
        labels = [
            str(take_column(row, origin, self.label_column, "label_column")) for origin, row in rows
        ]
        return list(zip(texts, labels, strict=True))

    def build_model(self) -> nn.Module:
        if "labels" not in self.memory:
            self.build_data()
        names = dict(enumerate(self.memory["labels"]))
        model = self.build_pretrained(
            "AutoModelForSequenceClassification",
            id2label=names,
            label2id={name: number for number, name in names.items()},
        )
        model.config.pad_token_id = (
            self.load_tokenizer().pad_token_id
        )  # by which decoders find the last token
        model.config.architectures = [type(model).__name__]
        if self.adapter is not None:
            model = add_adapter(model, self.adapter, self.memory["stored"], "SEQ_CLS")
        return model  # type: ignore[no-any-return]

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return self.evaluation_step(model, batch)["loss"].mean()

    def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        from torch.nn.functional import cross_entropy

        inputs = {name: value for name, value in batch.items() if name != "labels"}
        scores, labels = model(**inputs).logits.float(), batch["labels"]
        loss = cross_entropy(scores, labels, reduction="none")
        return {"loss": loss, "accuracy": (scores.argmax(-1) == labels).float()}

    def model_card(self, run: Mapping[str, Any]) -> str:
        return model_card(self, run, "text-classification", "Classifier of texts")


def _collate(
    examples: Sequence[Example], tokenizer: Any, labels: list[str], length: int
) -> dict[str, Tensor]:
    import torch

    texts = [text for text, _ in examples]
    coded = tokenizer(texts, truncation=True, max_length=length, padding=True, return_tensors="pt")
    return {**coded, "labels": torch.tensor([labels.index(label) for _, label in examples])}
