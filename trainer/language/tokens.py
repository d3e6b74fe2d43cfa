"""From rows to tokens: what of a row is text, what of it is learnt, and the file that holds them
all.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash

from ..data.cache import prepare_once
from ..errors import ConfigError, DataError
from .chat import ChatWriter, LearntText
from .columns import Columns, read_ids, take_text
from .problems import first_line, setting_error
from .sources import Row, Source
from .templates import ChatTemplate

FORMAT = 2  # raise it when the same rows become other files
LEARNT = np.uint32(
    1 << 31
)  # the bit of a token that is to be predicted; no vocabulary is that large
ROWS = 512  # that are encoded at once, by as many threads as the tokenizer takes
Encoded = tuple[list[int], Any]  # tokens, and which of them are learnt, as 0 and 1
Places = Sequence[tuple[int, int]]  # the characters that each token stands for
BadRows = Literal["leave_out"] | None


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


class Encoder:
    """Makes tokens of rows.

    Args:
        columns: of a row that are learnt from.
        template: that writes conversations, where the rows hold some.
    """

    def __init__(self, tokenizer: Any, columns: Columns, template: ChatTemplate | None) -> None:
        self.tokenizer, self.columns = tokenizer, columns
        self.writer = None if template is None else ChatWriter(tokenizer, template)
        self.vocabulary = 1 + int(max(tokenizer.get_vocab().values()))

    def encode(self, rows: Sequence[tuple[str, Row]]) -> Iterator[Encoded | ConfigError]:
        """Yield the tokens of rows in order, and which of them are learnt; or what is wrong with a
        row.
        """
        read = [document for origin, row in rows for document in self._read(origin, row)]
        texts = [one for one in read if isinstance(one, LearntText)]
        # Each kind in one call: a fast tokenizer takes as many threads as there are.
        whole = iter(self._tokens([one.text for one in texts if one.spans is None]))
        pairs = iter(
            self._tokens_with_places(
                [one.text for one in texts if one.spans is not None and one.special], True
            )
        )
        chats = iter(
            self._tokens_with_places([one.text for one in texts if not one.special], False)
        )
        for one in read:
            if not isinstance(one, LearntText):
                yield one
            elif one.spans is None:
                ids = next(whole)
                yield self._with_ends(ids, np.ones(len(ids), np.uint32))
            elif one.special:
                ids, places = next(pairs)
                yield self._with_ends(ids, learnt_tokens(places, one.spans))
            else:
                ids, places = next(chats)
                yield ids, learnt_tokens(places, one.spans)

    def _read(self, origin: str, row: Row) -> Sequence[LearntText | Encoded | ConfigError]:
        columns = self.columns
        try:
            if self.writer is not None:
                return [self.writer.write(origin, chat) for chat in columns.read_chats(row, origin)]
            if columns.ids is not None:
                return [read_ids(row, origin, columns.ids, self.vocabulary)]
            if columns.prompt is None or columns.completion is None:
                text = take_text(row, origin, columns.text, "text_column")
                return [LearntText(text=text, spans=None, special=True)]
            prompt = take_text(row, origin, columns.prompt, "prompt_column")
            text = prompt + take_text(row, origin, columns.completion, "completion_column")
            return [LearntText(text=text, spans=[(len(prompt), len(text))], special=True)]
        except ConfigError as error:
            return [error]

    def _tokens(self, texts: list[str]) -> list[list[int]]:
        coded: list[list[int]] = self.tokenizer(texts, verbose=False)["input_ids"] if texts else []
        return coded

    def _tokens_with_places(
        self, texts: list[str], special: bool
    ) -> Iterator[tuple[list[int], Places]]:
        """Yield the tokens of texts, and the characters that each token stands for."""
        if not texts:
            return
        coded = self.tokenizer(
            texts, add_special_tokens=special, return_offsets_mapping=True, verbose=False
        )
        yield from zip(coded["input_ids"], coded["offset_mapping"], strict=True)

    def _with_ends(self, ids: list[int], learnt: Any) -> Encoded:
        """Give a text one token that ends it, which is learnt, and not two that begin it.

        Two there would be where the row's own text begins with the token that the tokenizer adds.
        """
        begin, end = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        if begin is not None and begin != end and ids[:2] == [begin, begin]:
            ids, learnt = ids[1:], learnt[1:]
        if end is None:
            return ids, learnt
        if ids[-1:] != [end]:
            return [*ids, end], np.append(learnt, np.uint32(1))
        learnt[-1] = 1
        return ids, learnt


def learnt_tokens(places: Places, spans: Sequence[tuple[int, int]]) -> Any:
    """Say of each token whether it is learnt: it stands for a character of a span, or lies between
    two that do.

    So a token over the border of a span is learnt: its last characters are said by the assistant.

    Args:
        places: of the tokens: (first character, one behind the last).
        spans: of characters, in the same way.
    """
    borders = np.array(places, np.int64).reshape(-1, 2)
    learnt = np.zeros(len(borders), np.uint32)
    for start, end in spans:
        [inside] = np.nonzero((borders[:, 0] < end) & (borders[:, 1] > start))
        if len(inside):
            learnt[inside[0] : inside[-1] + 1] = 1
    return learnt


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Tokens of all documents, one after the other.

    Args:
        tokens: uint32; the bit ``LEARNT`` says which are to be predicted.
        ends: where each document ends.
        folder: of the files; its name changes with the content, with the settings and with how rows
            are read.
        left_out: rows without anything to learn.
        content: changes with the tokens and with which of them are learnt, and with nothing else.
        notices: what to know of the rows.
    """

    tokens: np.ndarray[Any, np.dtype[np.uint32]]
    ends: np.ndarray[Any, np.dtype[np.int64]]
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
        """Tokenise ``sources``, once on a node, or find what was made from the same content before.

        Raises:
            ConfigError: a column or a template does not fit.
            DataError: there is nothing to learn from.
        """
        written_by = None if template is None else [template.text, template.with_tools]
        digests = [source.digest for source in sources]
        content = [
            FORMAT,
            digests,
            dataclasses.asdict(columns),
            written_by,
            bad_rows,
            _identity(tokenizer),
        ]

        def make(folder: Path) -> None:
            encoder = Encoder(tokenizer, columns, template)
            rows = (row for source in sources for row in source.read())
            _write(folder, _encoded(rows, encoder, sources[0].name), encoder, bad_rows)

        folder = prepare_once(cache, content, make)
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        left_out = about["left_out"]
        ends = np.load(folder / "ends.npy")
        if not len(ends):
            named = sources[0].name + (f" and {len(sources) - 1} more" if len(sources) > 1 else "")
            rows = f"{left_out} rows without a token to learn" if left_out else "no rows"
            raise DataError(f"task_settings.{key}: {named}: nothing to learn from: {rows}")
        tokens = np.memmap(folder / "tokens.bin", np.uint32, "r")
        return cls(
            tokens=tokens,
            ends=ends,
            folder=folder,
            left_out=left_out,
            content=about["content"],
            notices=about["notices"],
        )

    @property
    def starts(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return where each document begins."""
        return np.concatenate([[0], self.ends[:-1]])

    def version(self, chosen: np.ndarray[Any, np.dtype[np.int64]]) -> str:
        """Return what changes with the content of some documents: their tokens, and which of them
        are learnt.

        Args:
            chosen: documents by number.
        """
        return xxhash.xxh3_128_hexdigest(self.content.encode() + chosen.astype(np.int64).tobytes())


def _identity(tokenizer: Any) -> list[Any]:
    """Return all that decides what a tokenizer makes of a text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    inner = backend.to_str() if backend is not None else sorted(tokenizer.get_vocab().items())
    return [
        inner,
        tokenizer.chat_template,
        {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
    ]


def _encoded(
    rows: Iterator[tuple[str, Row]], encoder: Encoder, name: str
) -> Iterator[Encoded | ConfigError]:
    from tqdm import tqdm

    with tqdm(desc=f"tokenising {name}", unit=" rows", disable=not sys.stderr.isatty()) as progress:
        while batch := list(islice(rows, ROWS)):
            yield from encoder.encode(batch)
            progress.update(len(batch))


@dataclass(kw_only=True)
class _Faults:
    """Rows that cannot be learnt from: how many of how many, and what is wrong with the first."""

    bad_rows: BadRows
    seen: int = 0
    count: int = 0
    first: ConfigError | None = None

    def add(self, error: ConfigError) -> None:
        self.count += 1
        self.first = self.first or error
        if self.bad_rows is None and self.count == self.seen == ROWS:
            self.end()  # not one row has been good: the setting is wrong, not the rows

    def end(self) -> None:
        """Raise what is wrong, unless such rows are to be left out."""
        if self.first is None or (self.bad_rows is not None and self.count < self.seen):
            return
        [problem] = self.first.problems
        if self.count == 1 and self.seen > 1:
            raise ConfigError(
                dataclasses.replace(
                    problem, rule=f"{problem.rule}; bad_rows: leave_out goes on without"
                )
            )
        if 1 < self.count < self.seen:
            rule = f"{problem.rule}; so with {self.count:,} of {self.seen:,} rows: bad_rows: leave_out goes on without"
            raise ConfigError(dataclasses.replace(problem, rule=rule))
        raise self.first

    @property
    def notices(self) -> list[str]:
        if self.first is None:
            return []
        return [
            f"{self.count:,} of {self.seen:,} rows are left out (bad_rows: leave_out), the first: {self.first}"
        ]


def _write(
    folder: Path, encoded: Iterator[Encoded | ConfigError], encoder: Encoder, bad_rows: BadRows
) -> None:
    ends, end, left_out = [], 0, 0
    faults, content = _Faults(bad_rows=bad_rows), xxhash.xxh3_128()
    with open(folder / "tokens.bin", "wb") as file:
        for found in encoded:
            faults.seen += 1
            if isinstance(found, ConfigError):
                faults.add(found)
                continue
            ids, learnt = found
            if not np.any(learnt[1:]):  # the first token of a document is predicted from nothing
                left_out += 1
                continue
            document = (np.array(ids, np.uint32) | np.asarray(learnt, np.uint32) * LEARNT).tobytes()
            file.write(document)
            content.update(document)
            end += len(ids)
            ends.append(end)
    faults.end()
    places = np.array(ends, np.int64)
    content.update(places.tobytes())
    np.save(folder / "ends.npy", places)
    notices = [*faults.notices, *([] if encoder.writer is None else encoder.writer.notices)]
    about = {"left_out": left_out, "content": content.hexdigest(), "notices": notices}
    (folder / "about.json").write_text(json.dumps(about))
