"""The chat template of a run: the tokenizer's, one by name, a Jinja file, or text in the config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .problems import setting_error

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# As of the Stanford Alpaca data. A system message replaces the preamble.
ALPACA_INPUT = "\n\n### Input:\n"
ALPACA = (
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{{ message.content + '\n\n' }}"
    "{% elif message.role == 'user' %}"
    "{% if loop.first %}{{ 'Below is an instruction that describes a task' }}"
    "{% if '### Input:' in message.content %}"
    "{{ ', paired with an input that provides further context' }}{% endif %}"
    "{{ '. Write a response that appropriately completes the request.\n\n' }}{% endif %}"
    "{{ '### Instruction:\n' + message.content + '\n\n' }}"
    "{% else %}{{ '### Response:\n' + message.content + eos_token + '\n\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '### Response:\n' }}{% endif %}"
)
SHIPPED = {"chatml": CHATML, "alpaca": ALPACA}


def read_template(tokenizer: Any, given: str | None) -> tuple[str, str]:
    """Return the text of the chat template of a run, and the name of the template for people.

    ``given`` is a name, the text of a template, or a Jinja file. None: the tokenizer's. Raises
    ``ConfigError`` if there is no such template.
    """
    own = tokenizer.chat_template
    named = {**SHIPPED, **(own if isinstance(own, dict) else {"default": own})}
    name = given or "default"
    if named.get(name):
        return named[name], given or "the tokenizer's"
    if "{%" in name or "{{" in name:
        return name, "the config's"

    try:
        return Path(name).expanduser().read_text(encoding="utf-8"), name
    except (OSError, UnicodeDecodeError):
        raise setting_error(
            "template",
            name,
            "there is no such template; give a Jinja file, its text, chatml, alpaca, or the name "
            "of a template of the tokenizer",
        ) from None
