"""Messages of conversations, from the forms of data sets to the form that a template takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from .problems import setting_error

# Keys by which data sets of other tools say whether a message is learnt, and whether not.
LEARNT = re.compile(r"weight|train(ing|able)?(_detail)?|learn|loss(_\w+)?").fullmatch
HIDDEN = re.compile("mask(ed)?|ignored?").fullmatch
ROLES = {  # of ShareGPT and its relatives
    "human": "user",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "observation": "tool",
    "function_response": "tool",
}


class Message(dict[str, Any]):
    """A message as a template takes messages. ``is_learnt`` says whether its words are targets."""

    is_learnt = False


class Chat(NamedTuple):
    """A conversation to train on, and arguments of the template."""

    messages: list[Message]
    settings: Mapping[str, Any]


class Words(str):
    """The content of a message, for templates that take text, or a list of {type, text}."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        yield {"type": "text", "text": str(self)}


def thoughts_and_words(message: Mapping[str, Any]) -> tuple[str, str]:
    """Return the thoughts of a message, from ``reasoning_content`` or the content, and the rest."""
    before, _, words = message["content"].rpartition("</think>")
    thoughts = message.get("reasoning_content") or before.replace("<think>", "")
    return str(thoughts).strip(), words.strip()


def read_messages(origin: str, key: str, given: Any, role: str = "assistant") -> list[Message]:
    """Read the messages of a row, of which those of the assistant are learnt.

    A text is said by ``role``. Raises ``ConfigError`` with the setting ``key`` if the messages have
    another form.
    """
    if isinstance(given, str):
        given = {"role": role, "content": given}
    if not isinstance(given, list):
        given = [given]
    messages = []
    for number, message in enumerate(given or [None], 1):  # an empty list lacks a message
        try:
            messages.append(_read_message(message))
        except (AttributeError, KeyError, TypeError, ValueError):
            raise setting_error(
                key,
                f"{origin} message {number}",
                "must be {role: ..., content: ...}, content text or a list of parts that are text, "
                "a call of a tool in tool_calls, weight (train, loss, ...) 0 or 1 of a whole "
                "message",
            ) from None
    return messages


def _is_learnt(given: dict[str, Any]) -> bool:
    """Return whether a message or a part is learnt, and remove the keys that say so."""
    said = {given.pop(key) for key in filter(LEARNT, [*given])}
    said |= {1 - given.pop(key) for key in filter(HIDDEN, [*given])}
    if not said <= {0, 1}:
        raise ValueError
    return 0 not in said


def _read_message(given: Any) -> Message:
    """Return a message with a role, and with content as text. Raise if the form is another."""
    message = Message({key: value for key, value in given.items() if value is not None})
    is_learnt = _is_learnt(message)
    if "role" not in message:
        role = message.pop("from")
        message |= {"role": ROLES.get(role, role), "content": message.pop("value")}
    if message.get("tool_calls"):
        message.setdefault("content", "")
    if isinstance(message["content"], list):
        parts = [{"text": p} if isinstance(p, str) else {**p} for p in message["content"]]
        if not all(map(_is_learnt, parts)):
            raise ValueError
        message["content"] = "".join(part["text"] for part in parts)

    if not isinstance(message["content"], str) or message["role"] == "function_call":
        raise ValueError
    message.is_learnt = is_learnt and message["role"] == "assistant"
    return message


def in_form(
    messages: Sequence[Mapping[str, Any]], *, arguments_as_text: bool
) -> list[dict[str, Any]]:
    """Return messages as a template takes them, the arguments of calls as JSON or as a mapping."""

    def formed(call: Any) -> Any:
        """Return a call of a tool, {type: function, function: {name, arguments}} or flat."""
        if "function" in call:
            return {**call, "function": formed(call["function"])}

        arguments = call.get("arguments")
        if arguments_as_text and not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        elif not arguments_as_text:
            with suppress(TypeError, ValueError):  # a mapping already, or text that is no JSON
                arguments = json.loads(arguments)
        return {**call, "arguments": arguments}

    written = [{**message, "content": Words(message["content"])} for message in messages]
    for message in written:
        if message.get("tool_calls"):
            message["tool_calls"] = [*map(formed, message["tool_calls"])]
    return written
