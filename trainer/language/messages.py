"""Messages of conversations, from the forms of data sets to the one that templates take."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .problems import setting_error

Message = dict[str, Any]
FORM = "{role: ..., content: ...} or {from: ..., value: ...}"
ROLES = {  # of ShareGPT and its relatives
    "human": "user",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "observation": "tool",
    "function_response": "tool",
}
THOUGHT_KEYS = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True, kw_only=True)
class Chat:
    """A conversation to train on.

    Args:
        messages: each with a role, and content or tool_calls.
        trained: of each message, whether what it says is trained on.
        settings: what the template gets beside the messages: tools, and whatever the row says.
    """

    messages: list[Message]
    trained: list[bool]
    settings: dict[str, Any] = field(default_factory=dict)


def read_chat(
    origin: str,
    messages: Any,
    *,
    key: str,
    prompt: Sequence[Any] = (),
    tools: Any = None,
    settings: Any = None,
    defaults: Mapping[str, Any] | None = None,
) -> Chat:
    """Check a conversation of a row, and bring it to the form that templates take.

    Args:
        origin: of the row, for messages.
        messages: of the row.
        key: of the setting that names the column.
        prompt: messages before it, which are not trained on.
        tools: of the row: a list of JSON schemas, or its JSON text.
        settings: ``chat_template_kwargs`` of the row, or its JSON text.
        defaults: of settings that the row does not have.

    Raises:
        ConfigError: something has another form.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise setting_error(key, origin, f"must hold a list of {FORM}")

    read: list[Message] = []
    trained: list[bool] = []
    for number, given in enumerate([*prompt, *messages]):
        place = f"{origin} message {number + 1}"
        message = _read_message(place, given, key)
        weight = message.pop("weight", None)
        if weight not in (None, 0, 1):
            rule = f"weight {weight}: a message's weight is 0 (not trained on) or 1"
            raise setting_error(key, place, rule)

        in_prompt = number < len(prompt)
        read.append(message)
        trained.append(message["role"] == "assistant" and weight != 0 and not in_prompt)

    beside = dict(defaults or {})
    beside.update(_from_json(origin, settings, "chat_template_kwargs", Mapping) or {})
    tools = _from_json(origin, tools, "tools", Sequence)
    if tools:
        beside["tools"] = list(tools)
    return Chat(messages=read, trained=trained, settings=beside)


def _read_message(origin: str, given: Any, key: str) -> Message:
    """Return a message with a role, and with content as text or as a list of parts."""
    if not isinstance(given, Mapping):
        raise setting_error(key, origin, f"must be {FORM}, not a {type(given).__name__}")

    message = dict(given)
    if "role" not in message and "from" in message and "value" in message:
        role = str(message.pop("from"))
        message["role"] = ROLES.get(role, role)
        message["content"] = message.pop("value")

    if not isinstance(message.get("role"), str):
        names = ", ".join(map(str, given)) or "nothing"
        raise setting_error(key, origin, f"must be {FORM}; it has {names}")
    if message["role"] == "function_call":
        rule = "is a function call as text; write it as tool_calls of an assistant's message"
        raise setting_error(key, origin, rule)

    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise setting_error(key, origin, "has no content")
    if isinstance(content, list | tuple):
        message["content"] = [_read_part(origin, part, key) for part in content]
    elif content is not None and not isinstance(content, str):
        raise setting_error(key, origin, f"content must be text, not a {type(content).__name__}")
    return message


def _read_part(origin: str, part: Any, key: str) -> dict[str, str]:
    """Return a part of a message's content, which must be text."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}

    kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
    raise setting_error(key, origin, f"holds {kind!r}; only text is supported")


def _from_json(origin: str, value: Any, column: str, wanted: type) -> Any:
    """Return a column that some data sets keep as JSON text; empty text is None."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except ValueError as error:
            raise setting_error("data", origin, f"{column}: is no JSON: {error}") from None

    if value is not None and not isinstance(value, wanted):
        form = "a list" if wanted is Sequence else "a mapping"
        rule = f"{column}: must be {form}, not a {type(value).__name__}"
        raise setting_error("data", origin, rule)
    return value


def spoken_text(content: Any) -> str:
    """Return the text of a message's content, without the thoughts in it."""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content)
    _, _, spoken = (content or "").rpartition("</think>")
    return spoken.strip()


def thoughts_of(message: Mapping[str, Any]) -> str:
    """Return the thoughts of a message: under one of the usual keys, or in front of its content."""
    for key in THOUGHT_KEYS:
        if isinstance(message.get(key), str):
            return str(message[key]).strip()

    content = message.get("content")
    if not isinstance(content, str):
        return ""
    thoughts, _, _ = content.rpartition("</think>")
    return thoughts.replace("<think>", "").strip()


@dataclass(frozen=True, kw_only=True)
class Form:
    """The form in which a template takes messages.

    Args:
        takes_text: content may be text.
        takes_parts: content may be a list of {type: text, text: ...}.
        nothing: the content of a message that only calls tools; None: without that key.
        arguments_as_text: arguments of a call are JSON text instead of a mapping.
    """

    takes_text: bool = True
    takes_parts: bool = False
    nothing: str | None = None
    arguments_as_text: bool = False

    def apply(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages in this form."""
        return [self._apply_to_message(message) for message in messages]

    def _apply_to_message(self, given: Message) -> Message:
        message = dict(given)
        content = message.get("content")
        if isinstance(content, str) and not self.takes_text and self.takes_parts:
            message["content"] = [{"type": "text", "text": content}]
        elif isinstance(content, list) and not self.takes_parts:
            message["content"] = "".join(part["text"] for part in content)

        if message.get("tool_calls"):
            if not content:
                message["content"] = self.nothing
            message["tool_calls"] = [self._apply_to_call(call) for call in message["tool_calls"]]
        return message

    def _apply_to_call(self, call: Any) -> Any:
        """Return a call of a tool, {type: function, function: {name, arguments}} or flat."""
        if not isinstance(call, Mapping):
            return call
        if isinstance(call.get("function"), Mapping):
            return {**call, "function": self._with_arguments(call["function"])}
        return self._with_arguments(call)

    def _with_arguments(self, function: Mapping[str, Any]) -> dict[str, Any]:
        arguments = function.get("arguments")
        if isinstance(arguments, str) and not self.arguments_as_text:
            with contextlib.suppress(ValueError):
                arguments = json.loads(arguments)
        elif isinstance(arguments, Mapping) and self.arguments_as_text:
            arguments = json.dumps(arguments, ensure_ascii=False)
        return {**function, "arguments": arguments}
