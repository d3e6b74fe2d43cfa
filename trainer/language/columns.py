"""The columns of a row that are trained on: named by settings, else found by their usual names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..text import did_you_mean
from .messages import Chat, read_chat
from .problems import setting_error
from .sources import Row

CHATS = ("messages", "conversations", "conversation")
INSTRUCTION = ("instruction", "output")  # and input, where the row has one
PAIR = ("prompt", "completion")
FORMS = "messages or conversations, prompt and completion, instruction and output, input_ids"
MEDIA = ("images", "image", "videos", "video", "audios", "audio")


def take_column(row: Row, origin: str, column: str, key: str) -> Any:
    """Return a column of a row; empty text where it holds nothing.

    The text column of plain text is all of it.

    Args:
        origin: of the row, for messages.
        key: of the setting that names the column.

    Raises:
        ConfigError: there is no such column.
    """
    if isinstance(row, str):
        if key == "text_column":
            return row
        rule = f"{origin} is plain text, without columns; give JSON lines"
        raise setting_error(key, column, rule)

    if column not in row:
        rule = f"no such column in {origin}; {did_you_mean(column, row)}"
        if key == "text_column":
            rule += f"; found without a key are {FORMS}"
        raise setting_error(key, column, rule)
    return "" if row[column] is None else row[column]


def take_text(row: Row, origin: str, column: str, key: str) -> str:
    """Return a column of a row as ``take_column``; ConfigError where it is not text."""
    text = take_column(row, origin, column, key)
    if not isinstance(text, str):
        rule = f"must hold text, not a {type(text).__name__}, in {origin}"
        raise setting_error(key, column, rule)
    return text


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of a row to train on: a text, a conversation, a prompt and its answer, or tokens.

    Args:
        text: with plain text, where no other column is given.
        messages: with a conversation.
        prompt, completion: with a question and its answer, as text or as messages.
        instruction: a row is Alpaca's: ``instruction`` and ``input`` are what the user says,
            ``output`` the answer.
        ids: with tokens; beside them ``labels``, where the row has them.
        each_turn: a conversation is trained on turn by turn: each as the template writes it while
            it is the last one.
        settings: what each conversation's template gets, beside what its row says.
    """

    text: str = "text"
    messages: str | None = None
    prompt: str | None = None
    completion: str | None = None
    instruction: bool = False
    ids: str | None = None
    each_turn: bool = False
    settings: Mapping[str, Any] | None = None

    def found_in(self, row: Row | None) -> Columns:
        """Return the columns to take, found by their names in a row.

        Nothing is searched for where a column is named by a setting, or the row has the column of
        text.
        """
        named = self.messages is not None or self.prompt is not None
        if named or row is None or isinstance(row, str) or self.text in row:
            return self

        for name in CHATS:
            if name in row:
                return replace(self, messages=name)
        if all(name in row for name in PAIR):
            prompt, completion = PAIR
            return replace(self, prompt=prompt, completion=completion)
        if all(name in row for name in INSTRUCTION):
            return replace(self, instruction=True)
        if "input_ids" in row:
            return replace(self, ids="input_ids")
        return self

    def are_chats(self, row: Row | None) -> bool:
        """Return whether a row is a conversation, which a chat template writes."""
        if self.messages is not None or self.instruction:
            return True
        if self.prompt is None or not isinstance(row, Mapping):
            return False
        return isinstance(row.get(self.prompt), list | tuple)

    def __str__(self) -> str:
        if self.messages is not None:
            return f"conversations in the column {self.messages}"
        if self.prompt is not None:
            return f"prompts and completions in the columns {self.prompt} and {self.completion}"
        if self.instruction:
            return "conversations made of the columns instruction, input and output"
        if self.ids is not None:
            return f"tokens in the column {self.ids}, labels where there are any"
        return f"texts in the column {self.text}"

    def read_chats(self, row: Row, origin: str) -> list[Chat]:
        """Return the conversations of a row to train on: one, or one for each turn.

        Raises:
            ConfigError: the row has another form.
        """
        columns = row if isinstance(row, Mapping) else {}
        for name in MEDIA:
            if columns.get(name):
                raise setting_error("data", origin, f"has {name}; only text is supported")

        key, prompt, messages = self._messages_of(row, origin)
        chat = read_chat(
            origin,
            messages,
            key=key,
            prompt=prompt,
            tools=columns.get("tools"),
            settings=columns.get("chat_template_kwargs"),
            defaults=self.settings,
        )
        return _turns_of(chat) if self.each_turn else [chat]

    def _messages_of(self, row: Row, origin: str) -> tuple[str, Sequence[Any], Any]:
        """Return the setting that names the messages of a row, those before them, and these."""
        if self.instruction:
            return "data", (), _messages_of_instruction(row, origin)

        if self.messages is not None:
            key = "messages_column"
            messages = take_column(row, origin, self.messages, key)
            system = row.get("system") if isinstance(row, Mapping) else None
            if isinstance(system, str) and system:
                return key, [{"role": "system", "content": system}], messages
            return key, (), messages

        assert self.prompt is not None and self.completion is not None
        prompt = take_column(row, origin, self.prompt, "prompt_column")
        if not isinstance(prompt, list | tuple):
            raise setting_error("prompt_column", origin, "holds text, where others hold messages")
        messages = take_column(row, origin, self.completion, "completion_column")
        return "completion_column", prompt, messages


def _messages_of_instruction(row: Row, origin: str) -> list[dict[str, str]]:
    """Return Alpaca's columns as messages."""
    columns = row if isinstance(row, Mapping) else {}
    question = take_text(row, origin, "instruction", "data")
    if columns.get("input"):
        question += "\n\n" + take_text(row, origin, "input", "data")
    answer = take_text(row, origin, "output", "data")

    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    if columns.get("system"):
        system = take_text(row, origin, "system", "data")
        messages.insert(0, {"role": "system", "content": system})
    return messages


def _turns_of(chat: Chat) -> list[Chat]:
    """Return a conversation for each turn that is trained on, which is its last message."""
    turns = []
    for number, trained in enumerate(chat.trained):
        if trained:
            messages = chat.messages[: number + 1]
            turns.append(replace(chat, messages=messages, trained=[False] * number + [True]))
    return turns


def read_ids(row: Row, origin: str, column: str, vocabulary: int) -> tuple[list[int], list[int]]:
    """Return the tokens of a row that holds some, and which of them are targets.

    All are, or those whose label is not -100.

    Args:
        vocabulary: one more than the largest token.

    Raises:
        ConfigError: these are no tokens, or a label is another token than the one at its place.
    """
    ids = take_column(row, origin, column, "data")
    is_list = isinstance(ids, list | tuple)
    if not is_list or not all(isinstance(id, int) and 0 <= id < vocabulary for id in ids):
        rule = f"{column}: must hold tokens from 0 to {vocabulary - 1}"
        raise setting_error("data", origin, rule)

    labels = row.get("labels") if isinstance(row, Mapping) else None
    if labels is None:
        return list(ids), [1] * len(ids)

    matching = [label in (-100, id) for label, id in zip(labels, ids, strict=False)]
    if len(labels) != len(ids) or not all(matching):
        rule = (
            f"labels: must be those of {column}, a token or -100 at each place (the model shifts "
            "them by one itself)"
        )
        raise setting_error("data", origin, rule)
    return list(ids), [int(label != -100) for label in labels]
