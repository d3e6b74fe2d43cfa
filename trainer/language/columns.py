"""The columns of a row that are trained on, and the conversations in them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from .messages import Chat, Message, read_messages
from .problems import setting_error
from .sources import Row

Kind = Literal["text", "messages", "prompt", "instruction", "pair", "ids"]
Usual = tuple[Kind, tuple[str, ...]]
USUAL: tuple[Usual, ...] = (  # names that data sets have
    ("messages", ("messages",)),
    ("messages", ("conversations",)),
    ("messages", ("conversation",)),
    ("prompt", ("prompt", "completion")),
    ("instruction", ("instruction", "output")),
)
# The settings that name the columns of the words to learn.
KEYS = {"text": "text_column", "prompt": "completion_column"}
IDS: Usual = ("ids", ("input_ids",))
MEDIA = ("images", "image", "videos", "video", "audios", "audio")


def take(row: Row, origin: str, column: str, key: str, kind: type = object) -> Any:
    """Return the value of a column, which the setting ``key`` names.

    Raises ``ConfigError`` if the column is missing, or holds a value of another kind.
    """
    value = row.get(column)
    if value is None or not isinstance(value, kind):
        raise setting_error(
            key, column, f"is a {type(value).__name__} in {origin}, which has {', '.join(row)}"
        )
    return value


@dataclass(frozen=True)
class Columns:
    """The columns of a row to train on.

    Args:
        kind: ``messages`` is a conversation, ``prompt`` a question and the answer as text or as
            messages. ``instruction`` is Alpaca's: the user says ``instruction`` and ``input``, the
            answer is ``output``. ``pair`` is a preference (``pairs.py``). ``ids`` are tokens.
        settings: of the template. Those of a row override these.
        learn: ``all`` trains on the whole text, also on the words of users and the prompt.
        before_input: text between Alpaca's ``instruction`` and ``input``.
    """

    kind: Kind
    names: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    before_input: str = "\n\n"
    learn: Literal["answers", "all"] = "answers"

    def are_chats(self, row: Row) -> bool:
        """Return whether a row is a conversation, which a chat template writes."""
        if self.kind == "prompt":
            return isinstance(row.get(self.names[0]), list)
        return self.kind in ("messages", "instruction")

    def read(self, row: Row, origin: str, *, as_chat: bool) -> list[Chat]:
        """Return the conversations of a row, or texts as words of the user and the assistant.

        Raises ``ConfigError`` if the row has another form.
        """
        key = KEYS.get(self.kind, "messages_column")
        form = list if as_chat and self.kind != "instruction" else str
        messages = read_messages(origin, key, take(row, origin, self.names[-1], key, form))
        if self.kind in ("prompt", "instruction"):
            take(row, origin, self.names[0], "prompt_column", form)
            prompt = read_messages(origin, "prompt_column", self.prompt_of(row), "user")
            messages[:0] = map(Message, prompt)
        if not as_chat:
            return [Chat(messages, {})]
        return [Chat([*system_of(row), *messages], self.settings_of(row, origin))]

    def prompt_of(self, row: Row) -> Any:
        """Return the prompt of a row, with Alpaca's ``input``. None without a prompt."""
        column = self.names[0]
        prompt = row.get(column)
        if self.kind != "prompt" and column == "instruction" and row.get("input"):
            return f"{prompt}{self.before_input}{row['input']}"
        return prompt

    def settings_of(self, row: Row, origin: str) -> dict[str, Any]:
        """Return the arguments of the template for a row, tools included.

        Raises ``ConfigError`` if the row has tools of another form, or media.
        """
        if any(map(row.get, MEDIA)):
            raise setting_error("data", origin, "has images or other media; only text is supported")

        tools: Any = row.get("tools") or []
        with suppress(TypeError, ValueError):  # a list already, or text that is no JSON
            tools = json.loads(tools) or []
        if not isinstance(tools, list):
            raise setting_error("data", origin, "tools: must be a list, or the JSON text of a list")
        settings = {**self.settings, **(row.get("chat_template_kwargs") or {})}
        if tools:
            settings["tools"] = tools
        return settings


def system_of(row: Row) -> list[Message]:
    """Return the message of the system in a column of its own, if there is such a column."""
    return [Message(role="system", content=row["system"])] if row.get("system") else []


def usual_columns(row: Row, usual: Sequence[Usual]) -> Usual:
    """Return the first kind and names of ``usual`` that a row has, or else the first of all."""
    fitting = (given for given in usual if None not in map(row.get, given[1]))
    return next(fitting, usual[0])
