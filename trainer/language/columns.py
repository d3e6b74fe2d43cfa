"""The columns of a row that are trained on, and the conversations in them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from .chat import TrainingText
from .messages import Chat, Message, read_chat
from .problems import setting_error
from .sources import Row

Kind = Literal["text", "messages", "prompt", "instruction", "pair", "ids"]
Learn = Literal["answers", "all"]
Usual = tuple[Kind, tuple[str, ...]]
USUAL: tuple[Usual, ...] = (  # names that data sets have
    ("messages", ("messages",)),
    ("messages", ("conversations",)),
    ("messages", ("conversation",)),
    ("prompt", ("prompt", "completion")),
    ("instruction", ("instruction", "output")),
)
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

    kind: Kind = "text"
    names: tuple[str, ...] = ("text",)
    settings: Mapping[str, Any] = field(default_factory=dict)
    before_input: str = "\n\n"
    learn: Learn = "answers"

    def are_chats(self, row: Row) -> bool:
        """Return whether a row is a conversation, which a chat template writes."""
        if self.kind == "prompt":
            return isinstance(row.get(self.names[0]), list)
        return self.kind in ("messages", "instruction")

    def read_chats(self, row: Row, origin: str) -> list[Chat]:
        """Return the conversations of a row. Raise ``ConfigError`` if the row has another form."""
        settings = self.settings_of(row, origin)
        prompt = system_of(row)
        key = "messages_column"
        if self.kind == "prompt":
            key = "completion_column"
            prompt = take(row, origin, self.names[0], "prompt_column")
        messages = take(row, origin, self.names[-1], key)
        if self.kind == "instruction":
            parts = take(row, origin, "instruction", "data", str), row.get("input")
            prompt.append({"role": "user", "content": self.before_input.join(filter(None, parts))})
            messages = [{"role": "assistant", "content": messages}]

        return [read_chat(origin, key, prompt, messages, settings)]

    def read_texts(self, row: Row, origin: str) -> list[TrainingText]:
        """Return the texts of a row. Raise ``ConfigError`` if the row has another form."""
        text: str = take(row, origin, self.names[0], f"{self.kind}_column", str)
        if self.kind == "text":
            return [(text, None)]
        whole = text + take(row, origin, self.names[1], "completion_column", str)
        return [(whole, [(len(text), len(whole))])]

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
    return [{"role": "system", "content": row["system"]}] if row.get("system") else []


def usual_columns(row: Row, usual: Sequence[Usual]) -> Usual:
    """Return the first kind and names of ``usual`` that a row has, or else the first of all."""
    fitting = (given for given in usual if None not in map(row.get, given[1]))
    return next(fitting, usual[0])
