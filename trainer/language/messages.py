"""Messages of conversations, as data sets write them, brought to the one form that chat templates
take.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .problems import setting_error

Message = dict[str, Any]
ROLES = {  # of ShareGPT and its relatives
    "human": "user",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "observation": "tool",
    "function_response": "tool",
}
FORM = "{role: ..., content: ...} or {from: ..., value: ...}"


@dataclass(frozen=True, kw_only=True)
class Chat:
    """A conversation to learn from.

    Args:
        learnt: of each message, whether what it says is to be learnt.
        settings: what the template gets beside the messages: tools, and whatever the row says.
    """

    messages: list[Message]
    learnt: list[bool]
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
    """Check a conversation of a row and bring it to the form that templates take.

    Args:
        origin: of the row, for messages.
        key: of the setting that names the column.
        prompt: messages before it, of which nothing is learnt.
        tools: of the row: a list of JSON schemas, or its JSON text.
        settings: ``chat_template_kwargs`` of the row, or its JSON text; over ``defaults``.

    Raises:
        ConfigError: something has another form.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise setting_error(key, origin, f"must hold a list of {FORM}")
    given = [*prompt, *messages]
    read = [
        _read_message(f"{origin} message {number}", one, key) for number, one in enumerate(given, 1)
    ]
    learnt = []
    for number, message in enumerate(read):
        weight = message.pop("weight", None)
        if weight not in (None, 0, 1):
            rule = "a message's weight is 0 (not learnt) or 1"
            raise setting_error(key, f"{origin} message {number + 1}", f"weight {weight}: {rule}")
        learnt.append(message["role"] == "assistant" and weight != 0 and number >= len(prompt))
    beside = dict(defaults or {})
    beside.update(_json(origin, settings, "chat_template_kwargs", Mapping) or {})
    tools = _json(origin, tools, "tools", Sequence)
    if tools:
        beside["tools"] = list(tools)
    return Chat(messages=read, learnt=learnt, settings=beside)


def _read_message(origin: str, given: Any, key: str) -> Message:
    if not isinstance(given, Mapping):
        raise setting_error(key, origin, f"must be {FORM}, not a {type(given).__name__}")
    message = dict(given)
    if "role" not in message and "from" in message and "value" in message:
        role = str(message.pop("from"))
        message["role"] = ROLES.get(role, role)
        message["content"] = message.pop("value")
    if not isinstance(message.get("role"), str):
        raise setting_error(
            key, origin, f"must be {FORM}; it has {', '.join(map(str, given)) or 'nothing'}"
        )
    if message["role"] == "function_call":
        rule = (
            "is a call of a function as text; write it as tool_calls of a message of the assistant"
        )
        raise setting_error(key, origin, rule)
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise setting_error(key, origin, "has no content")
    if isinstance(content, list | tuple):
        for part in content:
            kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
            is_text = isinstance(part, str) or (
                isinstance(part, Mapping) and isinstance(part.get("text"), str)
            )
            if not is_text:
                raise setting_error(key, origin, f"holds {kind!r}; only text is learnt here")
        texts = [part if isinstance(part, str) else part["text"] for part in content]
        message["content"] = [{"type": "text", "text": text} for text in texts]
    elif content is not None and not isinstance(content, str):
        raise setting_error(key, origin, f"content must be text, not a {type(content).__name__}")
    return message


def _json(origin: str, value: Any, column: str, wanted: type) -> Any:
    """Return a value that some data sets keep as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except ValueError as error:
            raise setting_error("data", origin, f"{column}: is no JSON: {error}") from None
    if value is not None and not isinstance(value, wanted):
        form = "a list" if wanted is Sequence else "a mapping"
        raise setting_error(
            "data", origin, f"{column}: must be {form}, not a {type(value).__name__}"
        )
    return value


def spoken_text(content: Any) -> str:
    """Return the text of a message's content, without thoughts in it."""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content)
    return (content or "").rpartition("</think>")[2].strip()


def thoughts_of(message: Mapping[str, Any]) -> str:
    """Return what the assistant thought before a message, as one of the usual keys or in front of
    its content.
    """
    for key in ("reasoning_content", "thinking", "reasoning"):
        if isinstance(message.get(key), str):
            return str(message[key]).strip()
    content = message.get("content")
    before, end, _ = content.rpartition("</think>") if isinstance(content, str) else ("", "", "")
    return before.replace("<think>", "").strip() if end else ""


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

    def bring(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages in this form."""
        return [self._bring(message) for message in messages]

    def _bring(self, given: Message) -> Message:
        message = dict(given)
        content = message.get("content")
        if isinstance(content, str) and not self.takes_text and self.takes_parts:
            message["content"] = [{"type": "text", "text": content}]
        elif isinstance(content, list) and not self.takes_parts:
            message["content"] = "".join(part["text"] for part in content)
        if message.get("tool_calls"):
            if not content:
                message["content"] = self.nothing
            message["tool_calls"] = [self._call(call) for call in message["tool_calls"]]
        return message

    def _call(self, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        call = dict(given)
        inner = "function" if isinstance(call.get("function"), Mapping) else None
        function = dict(call["function"]) if inner else call
        arguments = function.get("arguments")
        if isinstance(arguments, str) and not self.arguments_as_text:
            with contextlib.suppress(ValueError):
                arguments = json.loads(arguments)
        elif isinstance(arguments, Mapping) and self.arguments_as_text:
            arguments = json.dumps(arguments, ensure_ascii=False)
        function["arguments"] = arguments
        return {**call, "function": function} if inner else function
