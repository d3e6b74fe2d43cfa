r"""A BERT that tells from which Python library the first paragraph of a docstring is.

The libraries are five that are installed.

Small and from scratch, or fine-tuned from a pretrained folder or a name on the Hugging Face Hub:

    torchrun --nproc_per_node 2 examples/train.py --accel_config accel_configs/zero2.yaml \
        --config examples/configs/bert_classifier.yaml \
        --task_settings.pretrained bert-base-uncased --lr 5e-5

Needs the extras ``examples`` and ``llm``; without ``pretrained`` nothing is downloaded. The texts
differ between versions of the libraries: training on several nodes wants the same ones on all of
them.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from trainer import Data, DataError, Task, prepare_once

LIBRARIES = {
    "numpy": "numpy",
    "pandas": "pandas",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "torch": "torch",
}
NAMES = list(
    LIBRARIES
)  # of the classes; the values are the distributions that they are installed by
NOT_SOURCE = {"test", "tests", "testing", "_vendor"}
SHORTEST = 20  # characters of a text that says something
CACHE_FORMAT = 1  # raise it when the same settings become other files


@dataclass(frozen=True, kw_only=True)
class BertClassifier(Task):
    """Tell the library of a text.

    Args:
        pretrained: a folder or a name on the Hub that ``from_pretrained`` takes, its tokenizer
            included; the settings below ``dropout`` describe the model without it.
        texts: of each library, at most.
        held_out: the texts of one source file in this many are kept for evaluation.
        cache_dir: the texts and the tokenizer lie here, one folder for each choice of them.
        sequence_length: tokens of a text, at most; longer ones are cut.
        dropout: it draws other numbers on every layout, so with it curves are only alike.
        vocab_size: tokens of the byte-level BPE tokenizer that is trained on the texts.
        hidden_size, intermediate_size, layers, heads: as in BertConfig.
    """

    pretrained: str | None = None
    texts: int = 2000
    held_out: int = 5
    cache_dir: str = "~/.cache/samecurve"
    sequence_length: int = 48
    dropout: float = 0.0
    vocab_size: int = 4096
    hidden_size: int = 128
    intermediate_size: int = 256
    layers: int = 2
    heads: int = 4

    def __post_init__(self) -> None:
        if self.held_out < 2:
            raise ValueError(f"held_out: {self.held_out}: must be at least 2")
        if self.heads < 1 or self.hidden_size % self.heads:
            raise ValueError(
                f"hidden_size: {self.hidden_size}: must be a multiple of heads ({self.heads})"
            )

    def build_data(self) -> Data:
        tokenizer = self.tokenizer()
        parts = json.loads((self.prepare() / "texts.json").read_text())

        def coded(part: str) -> list[dict[str, Tensor]]:
            texts = [text for text, _ in parts[part]]
            rows = tokenizer(texts, truncation=True, max_length=self.sequence_length)["input_ids"]
            labels = (label for _, label in parts[part])
            return [
                {"ids": torch.tensor(r), "label": torch.tensor(c)}
                for r, c in zip(rows, labels, strict=True)
            ]

        def collate(items: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
            lengths = torch.tensor([len(item["ids"]) for item in items])
            ids = pad_sequence([item["ids"] for item in items], True, tokenizer.pad_token_id)
            mask = torch.arange(ids.shape[1]) < lengths[:, None]
            return {
                "input_ids": ids,
                "attention_mask": mask.long(),
                "labels": torch.stack([item["label"] for item in items]),
            }

        return Data(train=coded("train"), evaluation=coded("evaluation"), collate=collate)

    def build_model(self) -> nn.Module:
        from transformers import BertConfig, BertForSequenceClassification

        settings: dict[str, Any] = {
            "id2label": dict(enumerate(NAMES)),
            "label2id": {name: label for label, name in enumerate(NAMES)},
            "hidden_dropout_prob": self.dropout,
            "attention_probs_dropout_prob": self.dropout,
        }
        if self.pretrained is not None:
            return BertForSequenceClassification.from_pretrained(self.pretrained, **settings)
        config = BertConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            max_position_embeddings=self.sequence_length,
            **settings,
        )
        return BertForSequenceClassification(config)

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(_scores(model, batch), batch["labels"])

    def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        scores, labels = _scores(model, batch), batch["labels"]
        loss = F.cross_entropy(scores, labels, reduction="none")
        return {
            "loss": loss,
            "accuracy": (scores, labels),
            "f1": (scores, labels),
            "recall": (scores, labels),
        }

    def build_metrics(self) -> dict[str, Any]:
        from torchmetrics.classification import (
            MulticlassAccuracy,
            MulticlassF1Score,
            MulticlassRecall,
        )

        count = len(NAMES)
        return {
            "accuracy": MulticlassAccuracy(count, average="micro"),
            "f1": MulticlassF1Score(count, average="macro"),
            "recall": MulticlassRecall(
                count, average="none"
            ),  # eval/recall/0 ..., in the order of NAMES
        }

    def save_extras(self, directory: Path) -> None:
        """The tokenizer, so that ``pipeline("text-classification", directory)`` takes the exported
        folder.
        """
        self.tokenizer().save_pretrained(directory)

    def tokenizer(self) -> Any:
        """That of the pretrained model, or the one that was trained on the texts."""
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        if self.pretrained is not None:
            return AutoTokenizer.from_pretrained(self.pretrained)
        file = str(self.prepare() / "tokenizer.json")
        special = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
        return PreTrainedTokenizerFast(
            tokenizer_file=file, model_max_length=self.sequence_length, **special
        )

    def prepare(self) -> Path:
        """The folder with ``texts.json`` and ``tokenizer.json``, made on the first call of a node's
        processes.

        Raises:
            DataError: a library is not installed.
        """
        for name in NAMES:
            if importlib.util.find_spec(name) is None:
                raise DataError(
                    f"{name} is not installed; its docstrings are data here: "
                    f"pip install {LIBRARIES[name]}"
                )
        versions = {name: version(distribution) for name, distribution in LIBRARIES.items()}
        made_of = [
            "bert_classifier",
            CACHE_FORMAT,
            versions,
            self.texts,
            self.held_out,
            self.vocab_size,
        ]
        return prepare_once(self.cache_dir, made_of, self._write)

    def _write(self, folder: Path) -> None:
        parts: dict[str, list[tuple[str, int]]] = {"train": [], "evaluation": []}
        seen: set[str] = set()
        for label, name in enumerate(NAMES):
            wanted = len(seen) + self.texts
            for number, text in _paragraphs(name):
                if text not in seen:  # the same words of two functions would stand in both parts
                    seen.add(text)
                    parts["train" if number % self.held_out else "evaluation"].append((text, label))
                if len(seen) == wanted:
                    break
        (folder / "texts.json").write_text(json.dumps(parts))
        _train_tokenizer([text for text, _ in parts["train"]], self.vocab_size).save(
            str(folder / "tokenizer.json")
        )


def _scores(model: nn.Module, batch: Any) -> Tensor:
    scores: Tensor = model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
    ).logits
    return scores.float()


def _paragraphs(name: str) -> Iterator[tuple[int, str]]:
    """First paragraphs of a library's docstrings, each with the number of its source file, in a
    fixed mixed order.
    """
    folder = Path(importlib.util.find_spec(name).origin).parent  # type: ignore[union-attr, arg-type]
    paths = {path.relative_to(folder): path for path in folder.rglob("*.py")}
    source = [path for path in sorted(paths) if not NOT_SOURCE & set(path.parts)]
    # By a hash of the path: the first files of an alphabetical order would be of a few subpackages
    # only.
    for number, path in enumerate(
        sorted(source, key=lambda path: zlib.crc32(path.as_posix().encode()))
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in the source
            tree = ast.parse(paths[path].read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
                if len(text) >= SHORTEST:
                    yield number, text


def _train_tokenizer(texts: Sequence[str], vocab_size: int) -> Any:
    from tokenizers import (
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    # BERT's own WordPiece has a trainer that gives other tokens on every call; this one gives the
    # same.
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    special = ["[PAD]", "[CLS]", "[SEP]"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    ends = [(token, tokenizer.token_to_id(token)) for token in special[1:]]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=ends
    )
    return tokenizer
