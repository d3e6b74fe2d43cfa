"""The chat template of a run: the tokenizer's, one by name, a Jinja file, or text in the config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..text import did_you_mean
from .problems import setting_error

GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ALPACA = (
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{{ message.content + '\n\n' }}"
    "{% elif message.role == 'user' %}{{ '### Instruction:\n' + message.content + '\n\n' }}"
    "{% else %}{{ '### Response:\n' + message.content + eos_token + '\n\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '### Response:\n' }}{% endif %}"
)
SHIPPED = {"chatml": CHATML, "alpaca": ALPACA}


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """The Jinja text that writes conversations.

    Args:
        text: of the template.
        origin: where it comes from, for people.
        with_tools: the text for conversations with tools, where the tokenizer has another one for
            these.
    """

    text: str
    origin: str
    with_tools: str | None = None

    def __str__(self) -> str:
        if GENERATION.search(self.text) is not None:
            return f"{self.origin}; its {{% generation %}} marks say what the assistant writes"
        return f"{self.origin}; its loop over the messages shows what the assistant writes"

    def for_tools(self, tools: object) -> str:
        """Return the text for a conversation with these tools."""
        return self.with_tools if tools and self.with_tools is not None else self.text


def read_template(tokenizer: Any, given: str | None) -> ChatTemplate:
    """Return the chat template of a run.

    Args:
        given: ``task_settings.template``: a name, the text of a template, or a Jinja file; None:
            the tokenizer's.

    Raises:
        ConfigError: there is none.
    """
    own = tokenizer.chat_template
    named: Mapping[str, str] = own if isinstance(own, Mapping) else {}
    if given is None:
        return _default_template(own, named)
    if given in named:
        return ChatTemplate(text=named[given], origin=f"the tokenizer's, {given}")
    if given in SHIPPED:
        return ChatTemplate(text=SHIPPED[given], origin=given)
    if "{%" in given or "{{" in given:
        return ChatTemplate(text=given, origin="the config's")

    try:
        text = Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no UTF-8 text"
        rule = f"cannot be read: {reason}; as a name: {did_you_mean(given, [*named, *SHIPPED])}"
        raise setting_error("template", given, rule) from None
    return ChatTemplate(text=text, origin=given)


def _default_template(own: Any, named: Mapping[str, str]) -> ChatTemplate:
    """Return the tokenizer's template.

    Args:
        own: the only one of the tokenizer, if it is text.
        named: those of the tokenizer, by name, if it has several.
    """
    if isinstance(own, str):
        return ChatTemplate(text=own, origin="the tokenizer's")
    if "default" in named:
        return ChatTemplate(
            text=named["default"],
            origin="the tokenizer's, default",
            with_tools=named.get("tool_use"),
        )

    names = ", ".join([*named, *SHIPPED])
    rule = f"the tokenizer has no default chat template; give {names}, a Jinja file or its text"
    raise setting_error("template", None, rule)
