"""Conversations as tokens with the spans of their turns, for tasks of your own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .chat import ChatWriter
from .columns import USUAL, Columns, usual_columns
from .sources import Row
from .templates import read_template
from .tokens import token_parts


class Turn(NamedTuple):
    """The tokens of a message. ``trained``: of the assistant, and not of the prompt."""

    role: str
    start: int
    end: int
    trained: bool


class Tokenized(NamedTuple):
    """The tokens of a conversation, and the turns in them."""

    ids: list[int]
    turns: list[Turn]


def tokenize_rows(
    tokenizer: Any, rows: Iterable[Row], template: str | None = None
) -> Iterator[Tokenized]:
    """Yield the tokens of conversations, each with the spans of its turns.

    A conversation is written as a whole by the chat template. A turn of the assistant is without
    the text that makes the assistant speak, and with the token that ends the turn. Rows have the
    columns of conversations that ``CausalLM`` knows.

    Raises:
        ConfigError: a row is no conversation, or the template refuses a conversation.
    """
    writer = ChatWriter(tokenizer, read_template(tokenizer, template)[0])
    for place, row in enumerate(rows, 1):
        origin = f"row {place}"
        [chat] = Columns(*usual_columns(row, USUAL)).read(row, origin, as_chat=True)
        text, parts = writer.turns(origin, chat)
        coded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        turns = []
        for number, start, end in token_parts(coded["offset_mapping"], parts):
            message = chat.messages[number]
            turns.append(Turn(message["role"], start, end, message.is_learnt))
        yield Tokenized(coded["input_ids"], turns)
