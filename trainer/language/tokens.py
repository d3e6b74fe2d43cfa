"""From rows to tokens: what of a row is text, what of it is learnt, and the file that holds them all."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ..data.cache import prepare_once
from ..errors import DataError
from ..text import did_you_mean
from .chat import encode_chats
from .problems import first_line, setting_error
from .sources import Row, Source

FORMAT = 1  # raise it when the same rows become other files
LEARNT = np.uint32(1 << 31)  # the bit of a token that is to be predicted; no vocabulary is that large
ROWS = 512  # that are encoded at once, by as many threads as the tokenizer takes
Encoded = tuple[list[int], Sequence[int]]  # tokens, and which of them are learnt


def load_tokenizer(name: str, key: str) -> Any:
    """Load a tokenizer from a folder, a ``tokenizer.json`` or a name on the Hub.

    Raises:
        ConfigError: there is none.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    path = Path(name).expanduser()
    try:
        if path.is_file():
            if (path.parent / "tokenizer_config.json").is_file():
                return AutoTokenizer.from_pretrained(str(path.parent))
            return PreTrainedTokenizerFast(tokenizer_file=str(path))  # type: ignore[no-untyped-call]
        files = [*path.glob("*.gguf")] if path.is_dir() else []
        if files and not (path / "tokenizer.json").is_file():
            return AutoTokenizer.from_pretrained(str(path), gguf_file=files[0].name)
        return AutoTokenizer.from_pretrained(str(path) if path.is_dir() else name)
    except Exception as error:  # transformers, tokenizers and the Hub's client each raise their own
        rule = f"no tokenizer could be loaded from it: {first_line(error)}"
        raise setting_error(key, name, rule) from None


def take_column(row: Row, origin: str, column: str, key: str) -> Any:
    """Return a column of a row, empty text where it holds nothing; the text column of plain text is all of it.

    Args:
        key: of the setting that names the column.

    Raises:
        ConfigError: there is no such column.
    """
    if isinstance(row, str):
        if key == "text_column":
            return row
        raise setting_error(key, column, f"{origin} is plain text, without columns; give JSON lines")
    if column not in row:
        raise setting_error(key, column, f"no such column in {origin}; {did_you_mean(column, row)}")
    return "" if row[column] is None else row[column]


def take_texts(rows: Sequence[tuple[str, Row]], column: str, key: str) -> list[str]:
    """Return a column of rows; ``ConfigError`` where one of them has none, or holds no text there."""
    texts = [take_column(row, origin, column, key) for origin, row in rows]
    for (origin, _), text in zip(rows, texts, strict=True):
        if not isinstance(text, str):
            raise setting_error(key, column, f"must hold text, not a {type(text).__name__}, in {origin}")
    return texts


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of a row that are learnt from: a text, or a conversation, or a prompt and its completion."""

    text: str = "text"
    messages: str | None = None
    prompt: str | None = None
    completion: str | None = None

    def encode(self, tokenizer: Any, template: str | None, rows: Sequence[tuple[str, Row]]) -> list[Encoded]:
        """Return tokens of rows, and which of them are learnt."""
        if self.messages is not None:
            chats = [(origin, take_column(row, origin, self.messages, "messages_column")) for origin, row in rows]
            return encode_chats(tokenizer, template, chats)
        end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        if self.prompt is None or self.completion is None:
            texts = take_texts(rows, self.text, "text_column")
            encoded = tokenizer(texts, verbose=False)["input_ids"] if texts else []
            whole = [ids + (end if ids[-1:] != end else []) for ids in encoded]
            return [(ids, [1] * len(ids)) for ids in whole]
        # Each by itself, as the prompt is at generation; a token that spans both would never be generated.
        prompts = tokenizer(take_texts(rows, self.prompt, "prompt_column"), verbose=False)["input_ids"]
        answers = tokenizer(
            take_texts(rows, self.completion, "completion_column"), add_special_tokens=False, verbose=False
        )["input_ids"]
        return [
            (prompt + answer + end, [0] * len(prompt) + [1] * (len(answer) + len(end)))
            for prompt, answer in zip(prompts, answers, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Tokens of all documents, one after the other.

    Args:
        tokens: uint32; the bit ``LEARNT`` says which are to be predicted.
        ends: where each document ends.
        folder: of the files; its name changes with the content.
        left_out: rows without anything to learn.
    """

    tokens: np.ndarray[Any, np.dtype[np.uint32]]
    ends: np.ndarray[Any, np.dtype[np.int64]]
    folder: Path
    left_out: int

    @classmethod
    def prepare(
        cls, sources: Sequence[Source], columns: Columns, tokenizer: Any, template: str | None, cache: str, key: str
    ) -> Corpus:
        """Tokenise ``sources``, once on a node, or find what was made from the same content before.

        Raises:
            ConfigError: a column or a template does not fit.
            DataError: there is nothing to learn from.
        """
        content = [FORMAT, [source.digest for source in sources], vars(columns), template or "", _identity(tokenizer)]

        def make(folder: Path) -> None:
            rows = (row for source in sources for row in source.read())
            _write(folder, _encoded(rows, columns, tokenizer, template, sources[0].name), named=sources[0].name)

        folder = prepare_once(cache, content, make)
        left_out = json.loads((folder / "about.json").read_text(encoding="utf-8"))["left_out"]
        ends = np.load(folder / "ends.npy")
        if not len(ends):
            named = sources[0].name + (f" and {len(sources) - 1} more" if len(sources) > 1 else "")
            rows = f"{left_out} rows without a token to learn" if left_out else "no rows"
            raise DataError(f"task_settings.{key}: {named}: nothing to learn from: {rows}")
        tokens = np.memmap(folder / "tokens.bin", np.uint32, "r")
        return cls(tokens=tokens, ends=ends, folder=folder, left_out=left_out)

    @property
    def starts(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return where each document begins."""
        return np.concatenate([[0], self.ends[:-1]])


def _identity(tokenizer: Any) -> list[Any]:
    """Return all that decides what a tokenizer makes of a text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    inner = backend.to_str() if backend is not None else sorted(tokenizer.get_vocab().items())
    return [inner, tokenizer.chat_template, {name: str(token) for name, token in tokenizer.special_tokens_map.items()}]


def _encoded(
    rows: Iterator[tuple[str, Row]], columns: Columns, tokenizer: Any, template: str | None, name: str
) -> Iterator[Encoded]:
    from tqdm import tqdm

    with tqdm(desc=f"tokenising {name}", unit=" rows", disable=not sys.stderr.isatty()) as progress:
        while batch := list(islice(rows, ROWS)):
            yield from columns.encode(tokenizer, template, batch)
            progress.update(len(batch))


def _write(folder: Path, encoded: Iterator[Encoded], named: str) -> None:
    ends, end, left_out = [], 0, 0
    with open(folder / "tokens.bin", "wb") as file:
        for ids, learnt in encoded:
            if not any(learnt[1:]):  # the first token of a document is predicted from nothing
                left_out += 1
                continue
            file.write((np.array(ids, np.uint32) | np.array(learnt, np.uint32) * LEARNT).tobytes())
            end += len(ids)
            ends.append(end)
    np.save(folder / "ends.npy", np.array(ends, np.int64))
    (folder / "about.json").write_text(json.dumps({"left_out": left_out}))
