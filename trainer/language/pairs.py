"""Preferences: rows with a prompt, a chosen and a rejected answer, as pairs of documents.

A pair is two neighbouring documents of a corpus: the prompt with each of the answers. The targets
are the tokens of the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from operator import eq
from os.path import commonprefix
from typing import Any

import numpy as np

from .columns import Columns, system_of, take
from .messages import Chat, Message, read_messages
from .problems import setting_error
from .sources import Row
from .tokens import Corpus, Encoder, Int64Array, UInt32Array, has_target, words_of

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
        starts = [
            str(row.get(side)).startswith(str(prompt))
            for row in rows
            if (prompt := self.prompt_of(row))
            for side in self.names[1:]
        ]
        return bool(starts) and all(starts)

    def read(self, row: Row, origin: str, *, as_chat: bool) -> list[Chat]:
        """Return both sides as conversations, of which the messages that differ are trained on.

        Texts without a prompt begin with the prompt, up to a whole word. All rows of a source
        either repeat the prompt or do not.
        """
        form = object if as_chat else str
        keys = zip(SIDES, self.names[1:], strict=True)
        sides = [take(row, origin, column, key, form) for key, column in keys]
        prompt, system, settings = self.prompt_of(row), system_of(row), {}
        if as_chat:
            settings = self.settings_of(row, origin)
        elif system or row.get("tools"):
            raise setting_error(
                "template",
                origin,
                "a row with system or tools is a conversation; set a template (default: the "
                "tokenizer's)",
            )
        elif prompt is None or self.whole:
            prompt, *sides = _divided(prompt, sides)

        given = []
        if prompt:
            given = read_messages(origin, "prompt_column", prompt, "user")
        chats = []
        for key, value in zip(SIDES, sides, strict=True):
            messages = read_messages(origin, key, value)
            role = messages[0]["role"]
            # A side that begins with an answer follows the prompt. Others are whole conversations.
            if role in ("assistant", "tool"):
                messages[:0] = given
            if role != "system":
                messages[:0] = system
            chats.append(messages)

        _learn_answers(origin, chats, given)
        return [Chat(messages, settings) for messages in chats]


def _learn_answers(origin: str, chats: list[list[Message]], prompt: list[Message]) -> None:
    """Learn messages in which the sides differ. ``ConfigError`` unless the sides begin alike."""
    both = takewhile(lambda pair: eq(*pair), zip(*chats, strict=False))
    shared = [chosen for chosen, _ in both]
    if not shared or not all(message in shared for message in prompt):
        raise setting_error(
            "prompt_column",
            origin,
            "the prompt is not the beginning of both sides; chosen and rejected hold answers to "
            "the prompt, or whole conversations that begin alike",
        )
    for key, messages in zip(SIDES, chats, strict=True):
        for message in messages[: len(shared)]:
            message.is_learnt = False
        own = [message for message in messages if message.is_learnt]
        if not any(message["content"].strip() or message.get("tool_calls") for message in own):
            raise setting_error(
                key,
                origin,
                "the side has no answer of its own; the answer is empty, or the same on both sides",
            )


def _divided(prompt: Any, texts: list[str]) -> list[str]:
    """Return the prompt of texts that begin with the prompt, and their rests. Empty: no prompt."""
    same = commonprefix(texts)  # noqa: RUF071
    if prompt is None:
        prompt = same[: 1 + max(map(same.rfind, " \n"))].rstrip(" ")
    if not same.startswith(prompt):
        prompt = ""
    return [prompt, *(text[len(prompt) :] for text in texts)]


@dataclass(frozen=True)
class PairEncoder(Encoder):
    """A function from preferences to pairs of documents."""

    columns: PairColumns

    def encode(self, rows: Sequence[tuple[str, Row]]) -> Iterator[UInt32Array]:
        limit = self.columns.tokens
        for origin, row in rows:
            pair = [*super().encode([(origin, row)])]
            if not pair:
                continue
            fits = self.columns.cuts or all(len(side) <= limit for side in pair)
            cut = [side[:limit] for side in pair]
            differ = not np.array_equal(*map(words_of, cut))  # type: ignore[arg-type]
            if fits and differ and all(map(has_target, cut)):
                self.numbers.append(float(row.get("margin") or 0.0))
                yield from cut
                continue
            rule = (
                f"sequence_length allows {limit} tokens: both answers must begin and differ within "
                "these tokens, and end there unless long_documents is cut"
            )
            self.leave_out(setting_error("data", origin, rule))


class Pairs:
    """The pairs ``chosen`` of a corpus, whose sides have at most ``tokens`` tokens.

    ``first`` is the number of the first pair among those of all data sets of a task.
    """

    def __init__(self, corpus: Corpus, chosen: Int64Array, tokens: int, first: int) -> None:
        self.corpus = corpus
        self.chosen = chosen
        self.first = first
        # (pairs, 2 sides, start and end)
        self.spans = corpus.spans.reshape(-1, 2, 2)[chosen]
        self.token_count = int(np.diff(self.spans).sum())
        self.version = f"{corpus.version(chosen)}-{tokens}"

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> tuple[list[UInt32Array], int, float]:
        """Return the tokens of both sides, chosen first, the number of the pair, and the margin."""
        # IndexError behind the last pair
        sides = [self.corpus.tokens[start:end] for start, end in self.spans[index]]
        return sides, self.first + index, self.corpus.numbers[self.chosen[index]]
