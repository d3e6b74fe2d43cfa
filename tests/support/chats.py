"""Chat templates of the shapes that models come with, conversations, and their trained spans."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from tiny_language import conversation, tokenizer

from trainer.language import CausalLM
from trainer.language.chat import ChatWriter
from trainer.language.columns import Columns
from trainer.language.packing import IGNORED
from trainer.language.templates import CHATML
from trainer.language.tokens import TARGET, Encoder

# Thoughts of earlier turns are dropped; the last one always has some, if empty (Qwen3).
DROPS_THOUGHTS = """{%- for m in messages %}
    {%- set thought, words = '', m.content %}
    {%- if m.role == 'assistant' and '</think>' in m.content %}
        {%- set thought = m.content.split('</think>')[0].replace('<think>', '').strip() %}
        {%- set words = m.content.split('</think>')[-1].strip() %}
    {%- endif %}
    {{- '<|im_start|>' + m.role + '\\n' }}
    {%- if m.role == 'assistant' and loop.last %}
        {{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}
    {%- endif %}
    {{- words + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

# The beginning of a thought is given at generation (Qwen3.5, DeepSeek-R1).
BEGINS_THOUGHTS = DROPS_THOUGHTS.replace(
    "'<|im_start|>assistant\\n' }}", "'<|im_start|>assistant\\n<think>\\n' }}"
)

# The whole text has an end of its own, unless the assistant is asked to speak (Phi-3).
ENDS_TEXT = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% else %}{{ eos_token }}{% endif %}"
)

# A turn ends otherwise once another follows, and a call of a tool is looked up in a loop in the
# loop (gpt-oss).
ENDS_TURNS = """{%- for m in messages %}
    {%- if m.role == 'tool' %}
        {%- for other in messages %}
            {%- if other.tool_calls %}{{- other.tool_calls[0].function.name }}{%- endif %}
        {%- endfor %}{{- ':' + m.content + '<|im_end|>' }}
    {%- elif m.tool_calls %}
        {%- set call = m.tool_calls[0].function %}
        {{- '<|im_start|>assistant to=' + call.name + call.arguments | tojson }}
        {{- '<|im_end|>' }}
    {%- else %}
        {{- '<|im_start|>' + m.role + '|' + m.content }}
        {{- '<|end|>' if loop.last else '<|im_end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant' }}{%- endif %}"""

# What tools answer is written into the turn that called them, by a loop over numbers (Gemma 4).
ANSWERS_IN_TURN = """{%- for m in messages %}{%- if m.role != 'tool' %}
    {%- set before = messages[loop.index0 - 1] %}
    {{- '<|im_start|>' + m.role + '|' + m.content }}
    {%- if m.tool_calls %}
        {{- m.tool_calls[0].function.name + m.tool_calls[0].function.arguments | tojson }}
        {%- for k in range(loop.index0 + 1, messages | length) %}{%- set follow = messages[k] %}
            {%- if follow.role == 'tool' %}{{- '[' + follow.content + ']' }}{%- endif %}
        {%- endfor %}
    {%- endif %}{{- '<|im_end|>' }}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant|' }}{%- endif %}"""

# Content is a list of parts, and text is written as nothing (SmolVLM).
PARTS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + ':' }}"
    "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
    "{{ '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant:' }}{% endif %}"
)

# What the messages wrote goes through a filter.
FILTERED = "{% set all %}" + CHATML + "{% endset %}{{ all }}{{ all | length }}"

THOUGHTFUL = conversation(
    "Hi", "<think>\nhm\n</think>\nHello", "And?", "<think>\nso\n</think>\nBye"
)

CALL = {"type": "function", "function": {"name": "get_time", "arguments": '{"zone": "CET"}'}}

CALLING = [
    {"role": "user", "content": "Time?"},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "name": "get_time", "content": "noon"},
    {"role": "assistant", "content": "Noon."},
]


CHATS = [
    conversation("Hello", "Good day", "How are you?", "Fine → thanks"),
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            *conversation("Why?", "Because.")["messages"],
        ]
    },
]


def encoder(template: str, **columns: Any) -> Encoder:
    return Encoder(
        tokenizer(),
        Columns(**{"kind": "messages", "names": ("messages",), **columns}),
        ChatWriter(tokenizer(), template),
    )


def trained_spans(template: str, row: dict[str, Any], **columns: Any) -> list[str]:
    """The text of each stretch of tokens of a row that are targets; a ConfigError is raised."""
    spans = []
    for tokens in encoder(template, **columns).encode([("row", row)]):
        spans += _stretches([token - TARGET if token >= TARGET else None for token in tokens])
    return spans


def trained_texts(task: CausalLM) -> list[str]:
    """The text of each stretch of tokens that the rows of a task predict."""
    rows = task.build_data().train
    texts = []
    for number in range(len(rows)):
        labels = rows[number]["labels"].tolist()
        texts += _stretches([None if label == IGNORED else label for label in labels])
    return texts


def _stretches(tokens: list[int | None]) -> list[str]:
    """The text of each stretch of tokens without a None."""
    decoder = tokenizer()
    texts = []
    for is_none, stretch in groupby(tokens, key=lambda token: token is None):
        if not is_none:
            texts.append(decoder.decode(list(stretch)))
    return texts


def template_file(folder: Path, text: str) -> str:
    (folder / "chat.jinja").write_text(text)
    return str(folder / "chat.jinja")
