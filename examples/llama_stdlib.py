"""A small Llama, trained from scratch on the source of Python's standard library, or on a text of
yours.

Needs the extra ``llm``. The standard library is always there, so nothing is downloaded. Its text
differs between Python versions: training on several nodes wants the same Python on all of them.
"""

from __future__ import annotations

import math
import os
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from trainer import Data, Task, prepare_once
from trainer.errors import ConfigError, DataError, Origin, Problem
from trainer.text import did_you_mean

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0
BYTES = 256  # the alphabet of a byte-level tokenizer: any text can be written with it
IGNORED = -100  # label of a position that is no target
PIECE = 8192  # characters of the pieces of a corpus with too few files to hold some out
NOT_SOURCE = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
CACHE_FORMAT = 1  # raise it when the same documents become other files


@dataclass(frozen=True, kw_only=True)
class LlamaStdlib(Task):
    """Predict the next token of a text.

    Args:
        corpus: ``stdlib``, or a file or folder of UTF-8 text, or ``hf:NAME`` for a Hugging Face
            data set.
        subset, split, column: which part of a Hugging Face data set, and its column of text.
        max_bytes: the corpus is cut off there; it is held in memory while it is prepared.
        held_out: one document (file, row) in this many is kept for evaluation.
        cache_dir: the prepared tokens and the tokenizer lie here, one folder for each corpus.
        vocab_size: tokens of the byte-level BPE tokenizer that is trained on the corpus.
        sequence_length: tokens of one example.
        hidden_size, intermediate_size, layers, heads, key_value_heads, tie_word_embeddings: as in
            LlamaConfig.
    """

    counts_tokens: ClassVar[bool] = True

    corpus: str = "stdlib"
    subset: str | None = None
    split: str = "train"
    column: str = "text"
    max_bytes: int = 2_000_000
    held_out: int = 10
    cache_dir: str = "~/.cache/samecurve"
    vocab_size: int = 2048
    sequence_length: int = 128
    hidden_size: int = 128
    intermediate_size: int = 344
    layers: int = 2
    heads: int = 4
    key_value_heads: int = 4
    tie_word_embeddings: bool = False

    def __post_init__(self) -> None:
        least = {
            "max_bytes": 1,
            "held_out": 2,
            "vocab_size": BYTES + 1,
            "sequence_length": 2,
            "intermediate_size": 1,
        }
        least |= dict.fromkeys(("layers", "heads", "key_value_heads"), 1)
        for key, minimum in least.items():
            if getattr(self, key) < minimum:
                raise ValueError(f"{key}: {getattr(self, key)}: must be at least {minimum}")
        if self.hidden_size < 1 or self.hidden_size % (2 * self.heads):
            rule = (
                "must be a multiple of 2 x heads: rotary positions turn pairs of a head's channels"
            )
            raise ValueError(f"hidden_size: {self.hidden_size}: {rule} (heads: {self.heads})")
        if self.heads % self.key_value_heads:
            raise ValueError(
                f"key_value_heads: {self.key_value_heads}: must divide heads ({self.heads})"
            )

    def build_data(self) -> Data:
        folder = self.prepare()
        return Data(
            train=Blocks(folder / "train.npy", self.sequence_length),
            evaluation=Blocks(folder / "evaluation.npy", self.sequence_length),
        )

    def build_model(self) -> nn.Module:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.key_value_heads,
            max_position_embeddings=self.sequence_length,
            tie_word_embeddings=self.tie_word_embeddings,
            bos_token_id=None,
            eos_token_id=END_OF_TEXT_ID,
            # nn.Embedding would never train the padding's row, and here it ends every text
            pad_token_id=None,
            use_cache=False,  # keys and values of past tokens serve generation only
        )
        return LlamaForCausalLM(config)

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(*_predictions(model, batch), ignore_index=IGNORED)

    def weight(self, batch: Any) -> Tensor:
        return (batch["labels"][:, 1:] != IGNORED).sum()

    def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, tuple[Tensor, Tensor]]:
        logits, targets = _predictions(model, batch)
        weight = self.weight(batch)
        return {
            "loss": (
                F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum"),
                weight,
            ),
            "accuracy": ((logits.argmax(-1) == targets).sum(), weight),
        }

    def summarize(self, metrics: dict[str, float]) -> dict[str, float]:
        # exp of the mean over all tokens; a mean of the batches' perplexities would depend on how
        # they are cut.
        return {
            **metrics,
            "perplexity": math.exp(min(metrics["loss"], 700.0)),
        }  # exp(710) is no float any more

    def save_extras(self, directory: Path) -> None:
        """The tokenizer, so that ``AutoTokenizer.from_pretrained`` finds it beside the model."""
        from transformers import PreTrainedTokenizerFast

        file = str(self.prepare() / "tokenizer.json")
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=file, eos_token=END_OF_TEXT, model_max_length=self.sequence_length
        )
        tokenizer.save_pretrained(directory)

    def prepare(self) -> Path:
        """The folder with ``train.npy``, ``evaluation.npy`` and ``tokenizer.json``, made on the
        first call.

        Of the processes of a node that call it at once, one makes it and the others wait.

        Raises:
            ConfigError: the corpus or its column does not exist.
            DataError: the corpus is too short to hold some of it out.
        """
        documents = list(_cut_off(self._sources(), self.max_bytes))
        if len(documents) < self.held_out:
            documents = [
                text[at : at + PIECE] for text in documents for at in range(0, len(text), PIECE)
            ]
        if len(documents) < self.held_out:
            few = f"{len(documents)} pieces of {PIECE} characters"
            raise DataError(
                f"corpus {self.corpus!r}: {few} are too few to hold one in {self.held_out} out"
            )
        made_of = [CACHE_FORMAT, self.vocab_size, self.held_out, documents]

        def make(folder: Path) -> None:
            _write(folder, documents, held_out=self.held_out, vocab_size=self.vocab_size)

        return prepare_once(self.cache_dir, made_of, make)

    def _sources(self) -> Iterable[bytes]:
        if self.corpus.startswith("hf:"):
            return self._rows(self.corpus.removeprefix("hf:"))
        if self.corpus == "stdlib":
            return _files(Path(sysconfig.get_path("stdlib")), ".py")
        path = Path(self.corpus).expanduser()
        if not path.exists():
            raise _wrong(
                "corpus",
                self.corpus,
                "does not exist; give a file, a folder, 'stdlib' or 'hf:NAME'",
            )
        return _files(path, "") if path.is_dir() else [path.read_bytes()]

    def _rows(self, name: str) -> Iterable[bytes]:
        from datasets import load_dataset

        try:
            rows = load_dataset(name, self.subset, split=self.split)
        except (OSError, ValueError) as error:  # no such data set, subset or split; no network
            raise _wrong("corpus", self.corpus, f"cannot be loaded: {error}") from error
        if self.column not in rows.column_names:
            raise _wrong(
                "column",
                self.column,
                f"no such column; {did_you_mean(self.column, rows.column_names)}",
            )
        return ((row[self.column] or "").encode() for row in rows)


class Blocks(Dataset[dict[str, Tensor]]):
    """Tokens on disk, in blocks of ``length`` int64; the last block is filled up and its labels
    there ignored.
    """

    def __init__(self, path: Path, length: int) -> None:
        self.tokens, self.length = np.load(path, mmap_mode="r"), length

    def __len__(self) -> int:
        # A last block of one token would have no target, hence no mean loss; that token is left
        # out.
        return -(-(len(self.tokens) - 1) // self.length)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        block = torch.from_numpy(
            self.tokens[index * self.length : (index + 1) * self.length].astype(np.int64)
        )
        missing = (0, self.length - len(block))
        return {
            "input_ids": F.pad(block, missing, value=END_OF_TEXT_ID),
            "labels": F.pad(block, missing, value=IGNORED),
        }


def _predictions(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """``(logits, targets)`` of all positions in a row: the logits of a position answer for the
    token after it.
    """
    logits = model(input_ids=batch["input_ids"]).logits[:, :-1]
    return logits.flatten(0, 1).float(), batch["labels"][:, 1:].flatten()


def _files(folder: Path, suffix: str) -> Iterator[bytes]:
    """Contents of the files below a folder, by name; of code, without its tests."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - NOT_SOURCE)
        for name in sorted(files):
            # _sysconfigdata*.py is generated where Python is built: it tells of that machine.
            if name.endswith(suffix) and not name.startswith("_sysconfigdata"):
                yield Path(place, name).read_bytes()


def _cut_off(sources: Iterable[bytes], max_bytes: int) -> Iterator[str]:
    """The texts up to ``max_bytes`` bytes in all, without empty ones. What is not UTF-8 is left
    out.
    """
    for data in sources:
        if text := data[:max_bytes].decode("utf-8", errors="ignore"):
            yield text
        max_bytes -= len(data)
        if max_bytes <= 0:
            return


def _write(folder: Path, documents: Sequence[str], *, held_out: int, vocab_size: int) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    train = [text for number, text in enumerate(documents, 1) if number % held_out]
    tokenizer.train_from_iterator(train, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, texts in (("train", train), ("evaluation", documents[held_out - 1 :: held_out])):
        tokens = [
            token
            for coded in tokenizer.encode_batch(texts)
            for token in (*coded.ids, END_OF_TEXT_ID)
        ]
        np.save(folder / f"{name}.npy", np.array(tokens, np.min_scalar_type(vocab_size)))


def _wrong(key: str, value: str, rule: str) -> ConfigError:
    return ConfigError(
        Problem(origin=Origin("LlamaStdlib", key=f"task_settings.{key}"), value=value, rule=rule)
    )
