"""From rows to tokens: the text of a row, which tokens of it are targets, and the file of them all.

A target is a token that the model is trained to predict. In a text all tokens are targets, in a
conversation those that the assistant says.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash

from ..data.cache import prepare_once
from ..errors import ConfigError, DataError
from .chat import ChatWriter, TrainingText
from .columns import Columns, read_ids, take
from .problems import first_line, setting_error
from .sources import Row, Source
from .templates import ChatTemplate

FORMAT = 3  # raise it when the same rows become other files
TARGET = np.uint32(1 << 31)  # the bit of a token that is a target. No vocabulary is that large
ROWS = 512  # that are encoded at once, by as many threads as the tokenizer uses

Encoded = tuple[list[int], Any]  # tokens, and 1 for each that is a target, else 0
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
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    path = Path(name).expanduser()
    if path.is_file() and (path.parent / "tokenizer_config.json").is_file():
        path = path.parent  # the file alone does not say which token ends a text
    try:
        if path.is_file():
            return PreTrainedTokenizerFast(tokenizer_file=str(path))  # type: ignore[no-untyped-call]
        return AutoTokenizer.from_pretrained(str(path) if path.is_dir() else name)
    except Exception as error:  # transformers, tokenizers and the Hub's client each raise their own
        rule = f"no tokenizer could be loaded from it: {first_line(error)}"
        raise setting_error(key, name, rule) from None


class Encoder:
    """Turns rows into tokens.

    Args:
        columns: of a row that are trained on.
        template: that writes conversations. None: the rows are no conversations.
        bad_rows: whether rows that cannot be trained on are left out. ``bad`` counts them, and
            ``first_bad`` is the error of the first.
    """

    def __init__(
        self,
        tokenizer: Any,
        columns: Columns,
        template: ChatTemplate | None,
        bad_rows: BadRows = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.columns = columns
        self.writer = None if template is None else ChatWriter(tokenizer, template)
        self.vocabulary = 1 + int(max(tokenizer.get_vocab().values()))
        self.bad_rows = bad_rows
        self.bad = 0
        self.first_bad: ConfigError | None = None

    def encode(self, rows: Iterable[tuple[str, Row]]) -> Iterator[Encoded]:
        """Yield the tokens of each document of some rows, in order.

        Args:
            rows: each with its origin, for messages.

        Raises:
            ConfigError: a row cannot be trained on, and such rows are not left out.
        """
        texts: list[TrainingText] = []
        for origin, row in rows:
            try:
                if self.columns.kind == "ids":
                    yield read_ids(row, origin, self.columns.names[0], self.vocabulary)
                else:
                    texts += self._read(origin, row)
            except ConfigError as error:
                if self.bad_rows is None:
                    raise
                self.bad += 1
                self.first_bad = self.first_bad or error
        if not texts:
            return

        # All texts in one call: a fast tokenizer then uses several threads. A chat template writes
        # the special tokens itself.
        coded = self.tokenizer(
            [text.text for text in texts],
            add_special_tokens=self.writer is None,
            return_offsets_mapping=texts[0].spans is not None,
            verbose=False,
        )
        for number, ids in enumerate(coded["input_ids"]):
            targets = np.ones(len(ids), np.uint32)
            spans = texts[number].spans
            if spans is not None:
                targets = tokens_in_spans(coded["offset_mapping"][number], spans)
            yield self._with_ends(ids, targets) if self.writer is None else (ids, targets)

    def _read(self, origin: str, row: Row) -> list[TrainingText]:
        """Return the texts of a row."""
        columns = self.columns
        if self.writer is not None:
            return [self.writer.write(origin, chat) for chat in columns.read_chats(row, origin)]
        if columns.kind == "text":
            return [TrainingText(take(row, origin, columns.names[0], "text_column", str))]

        prompt = take(row, origin, columns.names[0], "prompt_column", str)
        text = prompt + take(row, origin, columns.names[1], "completion_column", str)
        return [TrainingText(text, [(len(prompt), len(text))])]

    def _with_ends(self, ids: list[int], targets: Any) -> Encoded:
        """Return a text with one token that ends it, which is a target, and not two that begin it.

        There would be two if the row's own text begins with the token that the tokenizer adds.
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


def tokens_in_spans(
    offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]
) -> UInt32Array:
    """Return 1 for each token with a character of a span, and for those between two such tokens.

    So a token across the border of a span is a target: its last characters are the assistant's.

    Args:
        offsets: of the tokens: (first character, the character behind the last).
        spans: of characters, in the same way.

    Returns:
        0 or 1 for each token.
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
        tokens: in uint32. The bit ``TARGET`` says which are targets.
        ends: where each document ends in ``tokens``.
        folder: of the files. Its name changes with the content, with the settings and with how rows
            are read.
        content: changes with the tokens and with which of them are targets, and with nothing else.
        notices: about rows that are left out, for the banner.
    """

    tokens: UInt32Array
    ends: Int64Array
    folder: Path
    content: str
    notices: Sequence[str]

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
        """Tokenise sources once per machine, or find the files made from the same content before.

        Args:
            sources: of the rows.
            columns, template: as of ``Encoder``.
            cache: parent of the folder with the tokens.
            key: of the setting that names the sources, for messages.
            bad_rows: what to do with rows that cannot be trained on.

        Raises:
            ConfigError: a row cannot be trained on.
            DataError: there is nothing to train on.
        """
        content = [
            FORMAT,
            [source.digest for source in sources],
            dataclasses.asdict(columns),
            None if template is None else template.text,
            bad_rows,
            _identity(tokenizer),
        ]

        def make(folder: Path) -> None:
            _write(folder, sources, Encoder(tokenizer, columns, template, bad_rows))

        folder = prepare_once(cache, content, make)
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        ends = np.load(folder / "ends.npy")
        if not len(ends):
            names = ", ".join(source.name for source in sources)
            raise DataError(f"task_settings.{key}: {names}: no row has a token to train on")

        tokens = np.memmap(folder / "tokens.bin", np.uint32, "r")
        return cls(tokens=tokens, ends=ends, folder=folder, **about)

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
    inner = sorted(tokenizer.get_vocab().items()) if backend is None else backend.to_str()
    return [inner, str(tokenizer.special_tokens_map)]


def _write(folder: Path, sources: Sequence[Source], encoder: Encoder) -> None:
    """Write the files of a corpus: tokens.bin, ends.npy, about.json.

    Raises:
        ConfigError: of the first row, if all rows are bad.
    """
    from tqdm import tqdm

    rows = chain.from_iterable(source.read() for source in sources)
    progress = iter(tqdm(rows, desc=f"tokenising {sources[0].name}", unit=" rows", disable=None))
    lengths = []
    left_out = 0
    content = xxhash.xxh3_128()
    with open(folder / "tokens.bin", "wb") as file:
        while batch := list(islice(progress, ROWS)):
            for ids, targets in encoder.encode(batch):
                if not np.any(targets[1:]):  # nothing predicts the first token of a document
                    left_out += 1
                    continue
                tokens = np.array(ids, np.uint32) | np.asarray(targets, np.uint32) * TARGET
                file.write(tokens.tobytes())
                content.update(tokens.tobytes())
                lengths.append(len(ids))

    notices = []
    if encoder.first_bad is not None:
        if not lengths:
            raise encoder.first_bad
        notices.append(f"{encoder.bad:,} bad rows are left out, the first: {encoder.first_bad}")
    if left_out:
        notices.append(f"{left_out:,} documents without a token to train on are left out")

    if encoder.writer is not None and encoder.writer.without_thoughts:
        notices.append(
            f"the template leaves out the thoughts of {encoder.writer.without_thoughts:,} turns; "
            "turns: each trains on each turn as the last of its conversation"
        )

    ends = np.cumsum(lengths, dtype=np.int64)
    content.update(ends.tobytes())
    np.save(folder / "ends.npy", ends)
    about = {"content": content.hexdigest(), "notices": notices}
    (folder / "about.json").write_text(json.dumps(about))
