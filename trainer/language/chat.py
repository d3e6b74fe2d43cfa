"""Conversations as tokens: the model's chat template writes them, and only what the assistant says is learnt."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .problems import first_line, setting_error

MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")
REMEDY = "put {% generation %} and {% endgeneration %} around what the assistant writes (task_settings.template)"


def read_template(tokenizer: Any, template: str | None) -> str:
    """Return the text of a chat template: of a Jinja file, else the tokenizer's own.

    Raises:
        ConfigError: there is none.
    """
    if template is not None:
        try:
            return Path(template).expanduser().read_text(encoding="utf-8")
        except OSError as error:
            raise setting_error("template", template, f"cannot be read: {error.strerror or error}") from None
    if not isinstance(tokenizer.chat_template, str):
        rule = "the tokenizer has no chat template; give a Jinja file"
        raise setting_error("template", None, rule)
    return str(tokenizer.chat_template)


def encode_chats(
    tokenizer: Any, template: str | None, chats: Sequence[tuple[str, Any]]
) -> list[tuple[list[int], Sequence[int]]]:
    """Return tokens of conversations, and which of them the assistant wrote.

    A template that marks the assistant's words is asked for them. Of another, a turn is what the text up to it has
    more than the text before it; held against each conversation, since some templates rewrite what came before.

    Raises:
        ConfigError: a conversation has another form, the template refuses it, or does not say what is whose.
    """
    assert template is not None, "conversations want a template"
    for origin, messages in chats:
        _check_messages(origin, messages)
    if not MARK.search(template):
        return _by_difference(tokenizer, template, chats)
    encoded = []
    for origin, messages in chats:
        try:
            coded = tokenizer.apply_chat_template(
                messages, chat_template=template, return_dict=True, return_assistant_tokens_mask=True
            )
        except Exception as error:  # a template raises what it likes
            raise _refused(origin, error) from None
        encoded.append((coded["input_ids"], coded["assistant_masks"]))
    return encoded


def _check_messages(origin: str, messages: Any) -> None:
    known = isinstance(messages, Sequence) and all(
        isinstance(message, Mapping) and "role" in message and "content" in message for message in messages
    )
    if not known or not messages:
        raise setting_error("messages_column", origin, "must hold a list of {role: ..., content: ...}")


def _by_difference(
    tokenizer: Any, template: str, chats: Sequence[tuple[str, Any]]
) -> list[tuple[list[int], Sequence[int]]]:
    texts, spans = [], []
    for origin, messages in chats:
        try:
            whole, turns = _turns(tokenizer, template, messages)
        except Exception as error:
            raise _refused(origin, error) from None
        end = 0
        for start_text, end_text in turns:
            if not (end_text.startswith(start_text) and whole.startswith(end_text) and end <= len(start_text)):
                rule = f"the template writes the turns before another one differently: {REMEDY}"
                raise setting_error("template", origin, rule)
            end = len(end_text)
        texts.append(whole)
        spans.append([(len(start), len(end)) for start, end in turns])
    coded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    encoded: list[tuple[list[int], Sequence[int]]] = []
    for (origin, _), ids, offsets, turns_of in zip(
        chats, coded["input_ids"], coded["offset_mapping"], spans, strict=True
    ):
        learnt = [0] * len(ids)
        for start, end in turns_of:
            for at, (first, last) in enumerate(offsets):
                if first < start < last or first < end < last:
                    rule = f"a token spans what the assistant says and what it does not: {REMEDY}"
                    raise setting_error("template", origin, rule)
                if start <= first < last <= end:
                    learnt[at] = 1
        encoded.append((ids, learnt))
    return encoded


def _turns(tokenizer: Any, template: str, messages: Sequence[Any]) -> tuple[str, list[tuple[str, str]]]:
    """Return a conversation as text, and the text before and after each turn of the assistant."""

    def text(upto: int | None, *, asks: bool = False) -> str:
        return str(
            tokenizer.apply_chat_template(
                messages[:upto], chat_template=template, tokenize=False, add_generation_prompt=asks
            )
        )

    turns = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    return text(None), [(text(at, asks=True), text(at + 1)) for at in turns]


def _refused(origin: str, error: BaseException) -> Exception:
    return setting_error("template", origin, f"the chat template refuses this conversation: {first_line(error)}")
