"""Preferences: rows with a prompt, a chosen and a rejected answer, as pairs of documents.

A pair is two neighbouring documents of a corpus: the prompt with each of the answers. The targets
are the tokens of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, takewhile
from operator import eq
from os.path import commonprefix
from typing import Any, NamedTuple

import numpy as np

from .chat import TrainingText
from .columns import Columns, system_of, take
from .messages import Chat, read_chat
from .problems import setting_error
from .sources import Row
from .tokens import Corpus, Encoder, Int64Array, UInt32Array

# Columns of the prompt that data sets have. Without any, the prompt is the beginning of both sides.
PROMPTS = ("prompt", "messages", "conversations", "conversation", "question", "instruction")
SIDES = ("chosen_column", "rejected_column")  # the settings that name the columns of the answers


@dataclass(frozen=True)
class PairColumns(Columns):
    """The columns of a preference: ``names`` are those of prompt, chosen and rejected.

    Args:
        tokens: of a side, at most. Longer sides are cut off (``cuts``) or refused.
        as_chat: texts are turns of user and assistant, which the chat template writes.
        whole: texts repeat the prompt. Else they follow the prompt.
    """

    tokens: int = 0
    cuts: bool = True
    as_chat: bool = False
    whole: bool = False

    def are_chats(self, row: Row) -> bool:
        return self.as_chat or not isinstance(row.get(self.names[1], ""), str)

    def repeats_prompt(self, rows: Sequence[Row]) -> bool:
        """Return whether both texts of all rows with a prompt begin with the prompt.

        Of some rows that is chance: a prompt may be short.
        """
        given = [row for row in rows if self._prompt(row)]
        return bool(given) and all(
            str(row.get(side)).startswith(str(self._prompt(row)))
            for row in given
            for side in self.names[1:]
        )

    def read_chats(self, row: Row, origin: str) -> list[Chat]:
        """Return both sides as conversations, of which the messages that differ are trained on."""
        settings, system = self.settings_of(row, origin), system_of(row)
        prompt = _messages(self._prompt(row), "user")
        chats = []
        for key, column in zip(SIDES, self.names[1:], strict=True):
            answer = _messages(take(row, origin, column, key), "assistant")
            role = read_chat(origin, key, [], answer, {}).messages[0]["role"]
            # A side that begins with an answer follows the prompt. Others are whole conversations.
            follows = role in ("assistant", "tool")
            before = [*system, *prompt] if follows else system if role != "system" else []
            chats.append(read_chat(origin, key, before, answer, settings))

        both = zip(*(chat.messages for chat in chats), strict=False)
        shared = [chosen for chosen, _ in takewhile(lambda pair: eq(*pair), both)]
        given = read_chat(origin, "prompt_column", [], prompt, {}).messages if prompt else []
        begin = len(shared)
        answers = []
        for chat in chats:
            chat.trained[:begin] = [False] * begin
            own = compress(chat.messages, chat.trained)
            answers.append(any(m["content"].strip() or m.get("tool_calls") for m in own))
        _check_sides(origin, shared and all(message in shared for message in given), answers)
        return chats

    def read_texts(self, row: Row, origin: str) -> list[TrainingText]:
        """Return both sides as texts, each with the span of the answer.

        Without a prompt, the beginning of both sides up to a whole word is the prompt. All rows of
        a source either repeat the prompt or do not.
        """
        if row.get("system") or row.get("tools"):
            raise setting_error(
                "template",
                origin,
                "a row with system or tools is a conversation; set a template (default: the "
                "tokenizer's)",
            )
        columns = zip(SIDES, self.names[1:], strict=True)
        texts = [take(row, origin, column, key, str) for key, column in columns]
        prompt = self._prompt(row)
        if prompt is None:
            same = commonprefix(texts)  # noqa: RUF071
            prompt = same[: 1 + max(map(same.rfind, " \n"))].rstrip(" ")
        elif not self.whole:
            texts = [f"{prompt}{text}" for text in texts]
        begins = prompt and all(text.startswith(str(prompt)) for text in texts)
        _check_sides(origin, begins, (text[len(prompt) :].strip() for text in texts))
        return [(text, [(len(prompt), len(text))]) for text in texts]

    def _prompt(self, row: Row) -> Any:
        """Return the prompt of a row, with Alpaca's ``input``. None without a prompt."""
        column = self.names[0]
        prompt = row.get(column)
        if column == "instruction" and row.get("input"):
            return f"{prompt}{self.before_input}{row['input']}"
        return prompt


def _messages(value: Any, role: str) -> Any:
    """Return a prompt or an answer as messages: a list, a single message, or a text of ``role``."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return [value] if isinstance(value, Mapping) else value or []


def _check_sides(origin: str, begin_alike: object, answers: Iterable[object]) -> None:
    """Raise ``ConfigError`` unless both sides begin with the prompt, and both have an answer."""
    if not begin_alike:
        raise setting_error(
            "prompt_column",
            origin,
            "the prompt is not the beginning of both sides; chosen and rejected hold answers to "
            "the prompt, or whole conversations that begin alike",
        )
    for key, answer in zip(SIDES, answers, strict=True):
        if not answer:
            raise setting_error(
                key,
                origin,
                "the side has no answer of its own; the answer is empty, or the same on both sides",
            )


@dataclass(frozen=True)
class PairEncoder(Encoder):
    """A function from preferences to pairs of documents."""

    columns: PairColumns

    def encode(self, rows: Sequence[tuple[str, Row]]) -> Iterator[tuple[list[int], Any]]:
        for origin, row in rows:
            margin = row.get("margin") or 0.0
            pair = list(super().encode([(origin, row)]))
            problem = pair and self._problem(pair, margin)
            if problem:
                self.leave_out(setting_error("data", origin, problem))
            elif pair:
                self.numbers.append(margin)
                yield from pair

    def _problem(self, pair: list[tuple[list[int], Any]], margin: Any) -> str:
        """Return why a pair of documents cannot be learnt from. Empty if it can."""
        if not isinstance(margin, int | float) or not math.isfinite(margin):
            return f"margin: {margin!r} is no finite number"
        limit = self.columns.tokens
        longest = max(len(ids) for ids, _ in pair)
        if longest > limit and not self.columns.cuts:
            return f"a side has {longest} tokens, and sequence_length allows {limit}"
        if not all(np.any(targets[1:limit]) for _, targets in pair):
            return f"the prompt takes all {limit} tokens that sequence_length allows"
        (chosen, _), (rejected, _) = pair
        return "chosen and rejected are the same" if chosen[:limit] == rejected[:limit] else ""


class PairCorpus(Corpus):
    """Tokens of pairs, of which each is two documents. The length is the number of pairs."""

    def __len__(self) -> int:
        return len(self.ends) // 2


class Pair(NamedTuple):
    """The tokens of both sides of a pair, chosen first. Targets have the bit ``TARGET``."""

    sides: list[UInt32Array]
    number: int
    margin: float


class Pairs:
    """The pairs ``chosen`` of a corpus, each side cut off behind ``tokens`` tokens.

    ``first`` is the number of the first pair among those of all data sets of a task.
    """

    def __init__(self, corpus: PairCorpus, chosen: Int64Array, tokens: int, first: int) -> None:
        self.corpus = corpus
        self.chosen = chosen
        self.first = first
        ends = np.minimum(corpus.ends, corpus.starts + tokens)
        # (pairs, 2 sides, start and end)
        self.spans = np.stack([corpus.starts, ends], -1).reshape(-1, 2, 2)[chosen]
        self.token_count = int(np.diff(self.spans).sum())
        self.version = f"{corpus.version(chosen)}-{tokens}"

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> Pair:
        # IndexError behind the last pair
        sides = [self.corpus.tokens[start:end] for start, end in self.spans[index]]
        return Pair(sides, self.first + index, self.corpus.numbers[self.chosen[index]])
