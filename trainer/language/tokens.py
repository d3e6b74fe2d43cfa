"""From rows to tokens: the texts of a row, the tokens that are targets, and the file of all tokens.

A target is a token that the model is trained to predict. In a text all tokens are targets, in a
conversation the tokens of the assistant.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..data.cache import prepare_once
from ..errors import ConfigError
from .chat import ChatWriter, TextWriter
from .columns import Columns
from .problems import setting_error, setting_errors
from .sources import Row, Source

FORMAT = 8  # raised when the same rows become other files
TARGET = np.uint32(1 << 31)  # the bit of a token that is a target. No vocabulary is that large
ROWS = 512  # rows that are encoded at once, by the threads of the tokenizer

Int64Array = NDArray[np.int64]
UInt32Array = NDArray[np.uint32]


def load_tokenizer(name: str, key: str, new: Sequence[str] = ()) -> Any:
    """Load a tokenizer from a folder or a name on the Hub, or raise ``ConfigError``.

    ``new`` are tokens to add, unless the tokenizer has them.
    """
    from transformers import AddedToken, AutoTokenizer

    with setting_errors(key, name, "holds no tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(str(Path(name).expanduser()))
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in new])
    return tokenizer


def padding_of(tokenizer: Any) -> Any:
    """Return the token that pads texts whose last token is scored, so not the end of a text.

    The end of a text, if the tokenizer has no other special token (GPT-2).
    """
    end = tokenizer.eos_token
    if tokenizer.pad_token not in (None, end):
        return tokenizer.pad_token
    special = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    return next((token for token in special if token not in (end, tokenizer.unk_token)), end)


def vocabulary_of(tokenizer: Any) -> int:
    """Return the largest token of a tokenizer plus 1."""
    largest: int = max(tokenizer.get_vocab().values())
    return largest + 1


@dataclass(frozen=True)
class Encoder:
    """A function from rows to tokens.

    ``bad`` are the errors of rows that were left out, ``numbers`` those of the other rows (a
    margin).
    """

    tokenizer: Any
    columns: Columns
    writer: ChatWriter | TextWriter = field(default_factory=TextWriter)
    bad_rows: Literal["leave_out"] | None = None
    bad: list[ConfigError] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)

    @cached_property
    def known(self) -> range:
        """Return the tokens that the tokenizer has."""
        return range(vocabulary_of(self.tokenizer))

    def encode(self, rows: Sequence[tuple[str, Row]]) -> Iterator[UInt32Array]:
        """Yield the tokens of each document of some rows. Targets have the bit ``TARGET``.

        Raises ``ConfigError`` if a row cannot be trained on, and such rows are not left out.
        """
        documents: list[Any] = []
        for origin, row in rows:
            try:
                documents += self._texts(origin, row)
            except ConfigError as error:
                self.leave_out(error)
        if not documents or self.columns.kind == "ids":
            yield from documents
            return

        # All texts in one call: a fast tokenizer then uses several threads. A chat template writes
        # the special tokens itself.
        texts, spans = zip(*documents, strict=True)
        has_spans = spans[0] is not None and self.columns.learn == "answers"
        coded = self.tokenizer(
            list(texts),
            add_special_tokens=not self.writer.text,
            return_offsets_mapping=has_spans,
            verbose=False,
        )
        for number, ids in enumerate(coded["input_ids"]):
            learnt: Iterable[Sequence[int]] = [(0, len(ids))]
            if has_spans:
                learnt = token_parts(coded["offset_mapping"][number], spans[number])
            tokens = np.array(ids, np.uint32)
            for start, end in learnt:
                tokens[start:end] |= TARGET
            yield tokens if self.writer.text else self._with_ends(ids, tokens)

    def leave_out(self, error: ConfigError) -> None:
        """Keep the error of a row. Raise the error if bad rows are not left out."""
        if not self.bad_rows:
            raise error
        self.bad.append(error)

    def _texts(self, origin: str, row: Row) -> list[Any]:
        """Return the texts of a row, each with the spans that are trained on, or its tokens."""
        if self.columns.kind == "ids":
            return [self._ids(origin, row)]
        chats = self.columns.read(row, origin, as_chat=bool(self.writer.text))
        return [self.writer.write(origin, chat) for chat in chats]

    def _ids(self, origin: str, row: Row) -> UInt32Array:
        """Return the tokens of a row, without padding."""
        ids = row.get("input_ids") or []
        labels = row.get("labels") or ids
        mask = row.get("attention_mask") or [True] * len(ids)
        is_right = len(ids) == len(labels) == len(mask) and all(
            token in self.known and label in (token, -100)
            for token, label in zip(ids, labels, strict=True)
        )
        if not is_right:
            raise setting_error(
                "data",
                origin,
                "input_ids, labels and attention_mask must be lists of equal length, of the "
                "tokenizer's tokens, and labels equal to input_ids or -100",
            )
        targets = np.equal(labels, ids) | (self.columns.learn == "all")
        return np.compress(mask, np.array(ids, np.uint32) | targets * TARGET)

    def _with_ends(self, ids: list[int], tokens: UInt32Array) -> UInt32Array:
        """Append the EOS token if missing, as a target, and drop a second BOS token."""
        begin, end = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        if begin != end and ids[:2] == [begin, begin]:
            tokens = tokens[1:]
        if end is None:
            return tokens
        if ids[-1:] == [end]:
            tokens = tokens[:-1]
        return np.append(tokens, TARGET | end)


def words_of(tokens: UInt32Array) -> Int64Array:
    """Return the tokens of a corpus without the bit ``TARGET``."""
    return (tokens & ~TARGET).astype(np.int64)


def has_target(tokens: UInt32Array) -> bool:
    """Return whether a document has a target. Nothing predicts the first token."""
    return bool((tokens[1:] & TARGET).any())


def token_parts(
    offsets: Sequence[tuple[int, int]], parts: Sequence[Sequence[int]]
) -> Iterator[Sequence[int]]:
    """Yield parts of a text, which end with their first character and that behind the last.

    These two become tokens, from the first to the last with a character of the part. Parts without
    a token are left out.
    """
    begins, ends = np.array(offsets, np.int64).reshape(-1, 2).T
    for *label, start, end in parts:
        inside = np.flatnonzero((begins < end) & (ends > start)).tolist()
        if inside:
            yield *label, inside[0], inside[-1] + 1


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Tokens of all documents, one after the other.

    The length is the number of documents, or of pairs of documents.

    Args:
        tokens: in uint32. Targets have the bit ``TARGET``.
        ends: of each document, in ``tokens``.
        content: a hash of the tokens and targets, and of nothing else.
        notices: about rows that are left out, for the banner.
        numbers: of each pair of documents, if these are pairs.
    """

    tokens: UInt32Array
    ends: Int64Array
    content: str
    notices: Sequence[str] = ()
    numbers: Sequence[float] = ()

    @classmethod
    def prepare(
        cls, sources: Sequence[Source], encoders: Sequence[Encoder], cache: str, key: str
    ) -> Corpus:
        """Tokenise sources once per machine, or find the files of the same content.

        Each source has an encoder, all with the same tokenizer. Raises ``ConfigError`` if a row
        cannot be trained on, or there is nothing to train on.
        """
        tokenizer = encoders[0].tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        content = [
            FORMAT,
            [source.digest for source in sources],
            [(str(e.columns), e.writer.text) for e in encoders],
            encoders[0].bad_rows,
            sorted(tokenizer.get_vocab().items()) if backend is None else backend.to_str(),
            str(tokenizer.special_tokens_map),
        ]

        folder = prepare_once(cache, content, lambda folder: _write(folder, sources, encoders))
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        ends = np.load(folder / "ends.npy")
        if not len(ends):
            rules = ["no row has a token to train on", *about["notices"]]
            raise setting_error(key, [source.name for source in sources], "; ".join(rules))
        return cls(tokens=np.memmap(folder / "tokens.bin", np.uint32, "r"), ends=ends, **about)

    @property
    def spans(self) -> Int64Array:
        """Return (first token, token behind the last) of each document, as (documents, 2)."""
        return np.stack([np.append(0, self.ends[:-1]), self.ends], -1)

    def __len__(self) -> int:
        return len(self.numbers or self.ends)

    def version(self, chosen: Int64Array) -> str:
        """Return a hash of the tokens and targets of some documents, given by number."""
        return xxhash.xxh3_128_hexdigest(self.content.encode() + chosen.tobytes())


def _write(folder: Path, sources: Sequence[Source], encoders: Sequence[Encoder]) -> None:
    """Write the files of a corpus: tokens.bin, ends.npy, about.json."""
    from tqdm import tqdm

    lengths = []
    left_out = 0
    content = xxhash.xxh3_128()
    with open(folder / "tokens.bin", "wb") as file:
        for source, encoder in zip(sources, encoders, strict=True):
            name = f"tokenising {source.name}"
            rows = iter(tqdm(source.read(), desc=name, unit=" rows", disable=None))
            while batch := list(islice(rows, ROWS)):
                for tokens in encoder.encode(batch):
                    if not has_target(tokens):
                        left_out += 1
                        continue
                    file.write(tokens.data)
                    content.update(tokens.data)
                    lengths.append(len(tokens))

    bad = [error for encoder in encoders for error in encoder.bad]
    silent = sum(encoder.writer.without_thoughts for encoder in encoders)
    told = {
        f"bad rows are left out, the first: {next(iter(bad), None)}": len(bad),
        "documents without a token to train on are left out": left_out,
        "turns are without their thoughts, which the template leaves out; write a row that ends "
        "with such a turn, and weight: 0 in the turns before": silent,
    }
    notices = [f"{count} {rule}" for rule, count in told.items() if count]

    ends = np.cumsum(lengths, dtype=np.int64)
    content.update(ends.data)
    np.save(folder / "ends.npy", ends)
    numbers = [number for encoder in encoders for number in encoder.numbers]
    content.update(np.array(numbers).data)
    about = json.dumps({"content": content.hexdigest(), "notices": notices, "numbers": numbers})
    (folder / "about.json").write_text(about)
