"""The columns of a row that are trained on: named by settings, else found by their usual names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .messages import Chat, read_chat, read_json
from .problems import setting_error
from .sources import Row

INSTRUCTION = ("instruction", "input", "output")  # the input may be missing
FOUND: dict[tuple[str, ...], dict[str, Any]] = {  # the columns of a row, and how they are taken
    ("messages",): {"messages": "messages"},
    ("conversations",): {"messages": "conversations"},
    ("conversation",): {"messages": "conversation"},
    ("prompt", "completion"): {"prompt": "prompt", "completion": "completion"},
    ("instruction", "output"): {"instruction": True},
    ("input_ids",): {"ids": "input_ids"},
}
MEDIA = ("images", "image", "videos", "video", "audios", "audio")


def take_column(row: Row, origin: str, column: str, key: str) -> Any:
    """Return a column of a row.

    Args:
        origin: of the row, for messages.
        key: of the setting that names the column.

    Raises:
        ConfigError: there is no such column, or it holds nothing.
    """
    if row.get(column) is None:
        rule = f"holds nothing in {origin}, which has {', '.join(row)}"
        raise setting_error(key, column, rule)
    return row[column]


def take_text(row: Row, origin: str, column: str, key: str) -> str:
    """Return a column of a row as ``take_column``. ConfigError if it is not text."""
    text = take_column(row, origin, column, key)
    if not isinstance(text, str):
        rule = f"must hold text, not a {type(text).__name__}, in {origin}"
        raise setting_error(key, column, rule)
    return text


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of a row to train on: a text, a conversation, a prompt and its answer, or tokens.

    Args:
        text: with plain text, if no other column is given.
        messages: with a conversation.
        prompt, completion: with a question and its answer, as text or as messages.
        instruction: a row is Alpaca's: ``instruction`` and ``input`` are what the user says,
            ``output`` is the answer.
        ids: with tokens. ``labels`` beside them if the row has them.
        each_turn: a conversation is trained on turn by turn: each as the template writes it while
            it is the last one.
        settings: what each conversation's template gets, beside what its row says.
    """

    text: str = "text"
    messages: str | None = None
    prompt: str | None = None
    completion: str | None = None
    instruction: bool = False
    ids: str | None = None
    each_turn: bool = False
    settings: Mapping[str, Any] | None = None

    def found_in(self, row: Row | None) -> Columns:
        """Return the columns to take, found by their names in a row.

        A column that a setting names and the column of text go before all others.
        """
        columns = {name for name, value in (row or {}).items() if value is not None}
        if self.messages or self.prompt or self.text in columns:
            return self

        for names, found in FOUND.items():
            if columns.issuperset(names):
                return replace(self, **found)
        return self

    def are_chats(self, row: Row | None) -> bool:
        """Return whether a row is a conversation, which a chat template writes."""
        if self.prompt is not None:
            return isinstance((row or {}).get(self.prompt), list)
        return self.messages is not None or self.instruction

    def __str__(self) -> str:
        named = (self.messages, self.prompt, self.completion, self.ids)
        names = INSTRUCTION if self.instruction else [name for name in named if name]
        return f"columns {', '.join(names)}"

    def read_chats(self, row: Row, origin: str) -> list[Chat]:
        """Return the conversations of a row to train on: one, or one for each turn.

        Raises:
            ConfigError: the row has another form.
        """
        if any(row.get(name) for name in MEDIA):
            raise setting_error("data", origin, "has images or other media; only text is supported")

        given = read_json(origin, "chat_template_kwargs", row.get("chat_template_kwargs"), dict)
        settings = {**(self.settings or {}), **given}
        if row.get("tools"):
            settings["tools"] = read_json(origin, "tools", row["tools"], list)

        prompt = [{"role": "system", "content": row["system"]}] if row.get("system") else []
        key = "data"
        if self.instruction:
            question = take_text(row, origin, "instruction", key)
            if row.get("input"):
                question += "\n\n" + take_text(row, origin, "input", key)
            prompt.append({"role": "user", "content": question})
            messages = [{"role": "assistant", "content": take_text(row, origin, "output", key)}]
        elif self.prompt is not None:
            prompt = take_column(row, origin, self.prompt, "prompt_column")
            key = "completion_column"
            messages = take_column(row, origin, str(self.completion), key)
        else:
            key = "messages_column"
            messages = take_column(row, origin, str(self.messages), key)

        chat = read_chat(origin, key, prompt, messages, settings)
        if not self.each_turn:
            return [chat]
        turns = []
        for number, trained in enumerate(chat.trained):
            if trained:
                only = [False] * number + [True]
                turns.append(replace(chat, messages=chat.messages[: number + 1], trained=only))
        return turns


def read_ids(row: Row, origin: str, column: str, vocabulary: int) -> tuple[list[int], list[int]]:
    """Return the tokens of a row that holds some, and which of them are targets.

    All are, or those whose label is not -100.

    Raises:
        ConfigError: a label is another token than the token at its place, or a token is no number
            below ``vocabulary``.
    """
    ids = take_column(row, origin, column, "data")
    if not all(isinstance(id, int) and 0 <= id < vocabulary for id in ids):
        rule = f"{column}: must be tokens from 0 to {vocabulary - 1:,}"
        raise setting_error("data", origin, rule)
    labels = ids if row.get("labels") is None else row["labels"]
    if len(labels) != len(ids) or any(
        label not in (-100, id) for label, id in zip(labels, ids, strict=True)
    ):
        rule = f"labels: each must be -100 or the token of {column} at its place"
        raise setting_error("data", origin, rule)
    return ids, [int(label != -100) for label in labels]
