"""From rows to tokens: the text of a row, which tokens of it are targets, and the file of them all.

A target is a token that the model is trained to predict. In a text all tokens are targets, in a
conversation those that the assistant says.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash

from ..data.cache import prepare_once
from ..errors import ConfigError, DataError
from .chat import ChatWriter, TrainingText
from .columns import Columns, read_ids, take_text
from .problems import first_line, setting_error
from .sources import Row, Source
from .templates import ChatTemplate

FORMAT = 2  # raise it when the same rows become other files
TARGET = np.uint32(1 << 31)  # the bit of a token that is a target; no vocabulary is that large
ROWS = 512  # that are encoded at once, by as many threads as the tokenizer uses

Encoded = tuple[list[int], Any]  # tokens, and 1 for each that is a target, else 0
Offsets = Sequence[tuple[int, int]]  # the characters that each token stands for
Int64Array = np.ndarray[Any, np.dtype[np.int64]]
UInt32Array = np.ndarray[Any, np.dtype[np.uint32]]
BadRows = Literal["leave_out"] | None


def load_tokenizer(name: str, key: str) -> Any:
    """Load a tokenizer from a folder, a ``tokenizer.json`` or a name on the Hub.

    Args:
        name: of the file or the folder, or on the Hub.
        key: of the setting, for messages.

    Raises:
        ConfigError: there is none.
    """
    try:
        return _load_tokenizer(name)
    except Exception as error:  # transformers, tokenizers and the Hub's client each raise their own
        rule = f"no tokenizer could be loaded from it: {first_line(error)}"
        raise setting_error(key, name, rule) from None


def _load_tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    path = Path(name).expanduser()
    if path.is_file():
        if (path.parent / "tokenizer_config.json").is_file():
            return AutoTokenizer.from_pretrained(str(path.parent))
        return PreTrainedTokenizerFast(tokenizer_file=str(path))  # type: ignore[no-untyped-call]

    if not path.is_dir():
        return AutoTokenizer.from_pretrained(name)

    gguf_files = list(path.glob("*.gguf"))
    if gguf_files and not (path / "tokenizer.json").is_file():
        return AutoTokenizer.from_pretrained(str(path), gguf_file=gguf_files[0].name)
    return AutoTokenizer.from_pretrained(str(path))


class Encoder:
    """Turns rows into tokens.

    Args:
        columns: of a row that are trained on.
        template: that writes conversations, where the rows hold some.
    """

    def __init__(self, tokenizer: Any, columns: Columns, template: ChatTemplate | None) -> None:
        self.tokenizer = tokenizer
        self.columns = columns
        self.writer = None if template is None else ChatWriter(tokenizer, template)
        self.vocabulary = 1 + int(max(tokenizer.get_vocab().values()))

    def encode(self, rows: Sequence[tuple[str, Row]]) -> Iterator[Encoded | ConfigError]:
        """Yield the tokens of each document of some rows, in order, or what is wrong with a row.

        Args:
            rows: each with its origin, for messages.
        """
        documents: list[TrainingText | Encoded | ConfigError] = []
        for origin, row in rows:
            try:
                documents += self._read(origin, row)
            except ConfigError as error:
                documents.append(error)

        # All texts in one call: a fast tokenizer then uses several threads.
        encoded = self._encode([text for text in documents if isinstance(text, TrainingText)])
        for document in documents:
            yield next(encoded) if isinstance(document, TrainingText) else document

    def _read(self, origin: str, row: Row) -> Sequence[TrainingText | Encoded]:
        """Return the documents of a row: texts, or tokens where the row holds these."""
        columns = self.columns
        if self.writer is not None:
            return [self.writer.write(origin, chat) for chat in columns.read_chats(row, origin)]
        if columns.ids is not None:
            return [read_ids(row, origin, columns.ids, self.vocabulary)]
        if columns.prompt is None or columns.completion is None:
            text = take_text(row, origin, columns.text, "text_column")
            return [TrainingText(text=text, spans=None)]

        prompt = take_text(row, origin, columns.prompt, "prompt_column")
        text = prompt + take_text(row, origin, columns.completion, "completion_column")
        return [TrainingText(text=text, spans=[(len(prompt), len(text))])]

    def _encode(self, texts: Sequence[TrainingText]) -> Iterator[Encoded]:
        """Yield the tokens of texts, which are all of one kind."""
        if not texts:
            return

        strings = [text.text for text in texts]
        if texts[0].spans is None:
            for ids in self.tokenizer(strings, verbose=False)["input_ids"]:
                yield self._with_ends(ids, np.ones(len(ids), np.uint32))
            return

        # A chat template writes the special tokens itself.
        is_chat = self.writer is not None
        coded = self.tokenizer(
            strings, add_special_tokens=not is_chat, return_offsets_mapping=True, verbose=False
        )
        ids_of_texts, offsets_of_texts = coded["input_ids"], coded["offset_mapping"]
        for text, ids, offsets in zip(texts, ids_of_texts, offsets_of_texts, strict=True):
            assert text.spans is not None
            targets = tokens_in_spans(offsets, text.spans)
            yield (ids, targets) if is_chat else self._with_ends(ids, targets)

    def _with_ends(self, ids: list[int], targets: Any) -> Encoded:
        """Return a text with one token that ends it, which is a target, and not two that begin it.

        There would be two where the row's own text begins with the token that the tokenizer adds.
        """
        begin, end = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        if begin is not None and begin != end and ids[:2] == [begin, begin]:
            ids, targets = ids[1:], targets[1:]

        if end is None:
            return ids, targets
        if ids[-1:] != [end]:
            return [*ids, end], np.append(targets, np.uint32(1))
        targets[-1] = 1
        return ids, targets


def tokens_in_spans(offsets: Offsets, spans: Sequence[tuple[int, int]]) -> Any:
    """Return 1 for each token with a character of a span, and for those between two such tokens.

    So a token across the border of a span is a target: its last characters are the assistant's.

    Args:
        offsets: of the tokens: (first character, one behind the last).
        spans: of characters, in the same way.

    Returns:
        0 or 1 for each token, in uint32.
    """
    borders = np.array(offsets, np.int64).reshape(-1, 2)
    begins, ends = borders[:, 0], borders[:, 1]
    targets = np.zeros(len(borders), np.uint32)
    for start, end in spans:
        [inside] = np.nonzero((begins < end) & (ends > start))
        if len(inside):
            targets[inside[0] : inside[-1] + 1] = 1
    return targets


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Tokens of all documents, one after the other.

    Args:
        tokens: in uint32; the bit ``TARGET`` says which are targets.
        ends: where each document ends in ``tokens``.
        folder: of the files; its name changes with the content, with the settings and with how rows
            are read.
        left_out: number of rows without a target.
        content: changes with the tokens and with which of them are targets, and with nothing else.
        notices: about the rows, for the banner.
    """

    tokens: UInt32Array
    ends: Int64Array
    folder: Path
    left_out: int
    content: str = ""
    notices: Sequence[str] = ()

    @classmethod
    def prepare(
        cls,
        sources: Sequence[Source],
        columns: Columns,
        tokenizer: Any,
        template: ChatTemplate | None,
        cache: str,
        key: str,
        bad_rows: BadRows = None,
    ) -> Corpus:
        """Tokenise sources once per machine, or find what was made from the same content before.

        Args:
            sources: of the rows.
            columns, template: as of ``Encoder``.
            cache: parent of the folder with the tokens.
            key: of the setting that names the sources, for messages.
            bad_rows: what to do with rows that cannot be trained on.

        Raises:
            ConfigError: a column or a template does not fit.
            DataError: there is nothing to train on.
        """
        content = [
            FORMAT,
            [source.digest for source in sources],
            dataclasses.asdict(columns),
            None if template is None else [template.text, template.with_tools],
            bad_rows,
            _identity(tokenizer),
        ]

        def make(folder: Path) -> None:
            encoder = Encoder(tokenizer, columns, template)
            _write(folder, _encoded(sources, encoder), encoder, bad_rows)

        folder = prepare_once(cache, content, make)
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        ends = np.load(folder / "ends.npy")
        if not len(ends):
            raise _nothing_to_train_on(sources, key, about["left_out"])

        return cls(
            tokens=np.memmap(folder / "tokens.bin", np.uint32, "r"),
            ends=ends,
            folder=folder,
            left_out=about["left_out"],
            content=about["content"],
            notices=about["notices"],
        )

    @property
    def starts(self) -> Int64Array:
        """Return where each document begins."""
        return np.concatenate([[0], self.ends[:-1]])

    def version(self, chosen: Int64Array) -> str:
        """Return text that changes with the tokens of some documents, or which of them are targets.

        Args:
            chosen: documents by number.
        """
        return xxhash.xxh3_128_hexdigest(self.content.encode() + chosen.astype(np.int64).tobytes())


def _identity(tokenizer: Any) -> list[Any]:
    """Return all that decides which tokens a tokenizer makes of a text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    inner = backend.to_str() if backend is not None else sorted(tokenizer.get_vocab().items())
    special_tokens = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return [inner, tokenizer.chat_template, special_tokens]


def _nothing_to_train_on(sources: Sequence[Source], key: str, left_out: int) -> DataError:
    names = sources[0].name
    if len(sources) > 1:
        names += f" and {len(sources) - 1} more"
    rows = f"{left_out} rows without a token to train on" if left_out else "no rows"
    return DataError(f"task_settings.{key}: {names}: nothing to train on: {rows}")


def _encoded(sources: Sequence[Source], encoder: Encoder) -> Iterator[Encoded | ConfigError]:
    """Yield the documents of all rows as tokens, with a progress bar on a terminal."""
    from tqdm import tqdm

    rows = (row for source in sources for row in source.read())
    title = f"tokenising {sources[0].name}"
    with tqdm(desc=title, unit=" rows", disable=not sys.stderr.isatty()) as progress:
        while batch := list(islice(rows, ROWS)):
            yield from encoder.encode(batch)
            progress.update(len(batch))


@dataclass(kw_only=True)
class _BadRowCount:
    """Rows that cannot be trained on: how many of how many, and what is wrong with the first."""

    bad_rows: BadRows
    seen: int = 0
    count: int = 0
    first: ConfigError | None = None

    def add(self, error: ConfigError) -> None:
        self.count += 1
        self.first = self.first or error
        # If not one of the first rows is good, the setting is wrong, not the rows.
        if self.bad_rows is None and self.count == self.seen == ROWS:
            self.check()

    def check(self) -> None:
        """Raise what is wrong with the first bad row, unless such rows are left out."""
        if self.first is None:
            return
        if self.count == self.seen:
            raise self.first
        if self.bad_rows is not None:
            return

        [problem] = self.first.problems
        rule = f"{problem.rule}; "
        if self.count > 1:
            rule += f"{self.count:,} of {self.seen:,} rows cannot be trained on; "
        rule += "bad_rows: leave_out continues without"
        raise ConfigError(dataclasses.replace(problem, rule=rule))

    @property
    def notices(self) -> list[str]:
        if self.first is None:
            return []
        count = f"{self.count:,} of {self.seen:,} rows"
        return [f"{count} are left out (bad_rows: leave_out), the first: {self.first}"]


def _write(
    folder: Path, documents: Iterable[Encoded | ConfigError], encoder: Encoder, bad_rows: BadRows
) -> None:
    """Write the files of a corpus: tokens.bin, ends.npy, about.json."""
    ends = []
    end = 0
    without_target = 0
    bad = _BadRowCount(bad_rows=bad_rows)
    content = xxhash.xxh3_128()

    with open(folder / "tokens.bin", "wb") as file:
        for document in documents:
            bad.seen += 1
            if isinstance(document, ConfigError):
                bad.add(document)
                continue

            ids, targets = document
            if not np.any(targets[1:]):  # nothing predicts the first token of a document
                without_target += 1
                continue

            tokens = np.array(ids, np.uint32) | np.asarray(targets, np.uint32) * TARGET
            file.write(tokens.tobytes())
            content.update(tokens.tobytes())
            end += len(ids)
            ends.append(end)
    bad.check()

    end_array = np.array(ends, np.int64)
    content.update(end_array.tobytes())
    np.save(folder / "ends.npy", end_array)

    notices = bad.notices
    if encoder.writer is not None:
        notices += encoder.writer.notices
    about = {"left_out": without_target, "content": content.hexdigest(), "notices": notices}
    (folder / "about.json").write_text(json.dumps(about))
