"""The chat template of a run: the tokenizer's, one by name, a Jinja file, or text in the config."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    """A chat template.

    Args:
        text: Jinja.
        origin: where the text is from, for people.
    """

    text: str
    origin: str

    def __str__(self) -> str:
        return self.origin


def read_template(tokenizer: Any, given: str | None) -> ChatTemplate:
    """Return the chat template of a run.

    Args:
        given: ``task_settings.template``: a name, the text of a template, or a Jinja file. None:
            the tokenizer's.

    Raises:
        ConfigError: there is none.
    """
    own = tokenizer.chat_template
    named = {**SHIPPED, **(own if isinstance(own, dict) else {"default": own})}
    name = given or "default"
    if named.get(name):
        return ChatTemplate(text=named[name], origin=name if given else "the tokenizer's")
    if "{%" in name or "{{" in name:
        return ChatTemplate(text=name, origin="the config's")

    try:
        return ChatTemplate(text=Path(name).expanduser().read_text(encoding="utf-8"), origin=name)
    except (OSError, UnicodeDecodeError):
        names = ", ".join(filter(named.get, named))
        rule = f"there is no such template; give a Jinja file, its text, or one of {names}"
        raise setting_error("template", name, rule) from None
