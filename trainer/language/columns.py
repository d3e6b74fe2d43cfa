"""The columns of a row that are learnt from: named by settings, else found by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..text import did_you_mean
from .messages import read_chat
from .problems import setting_error
from .sources import Row

CHATS = ("messages", "conversations", "conversation")
INSTRUCTION = ("instruction", "output")  # and input, where the row has one
PAIR = ("prompt", "completion")
FORMS = "messages or conversations, prompt and completion, instruction and output, input_ids"
MEDIA = ("images", "image", "videos", "video", "audios", "audio")


def take_column(row: Row, origin: str, column: str, key: str) -> Any:
    """Return a column of a row, empty text where it holds nothing; the text column of plain text is
    all of it.

    Args:
        key: of the setting that names the column.

    Raises:
        ConfigError: there is no such column.
    """
    if isinstance(row, str):
        if key == "text_column":
            return row
        raise setting_error(
            key, column, f"{origin} is plain text, without columns; give JSON lines"
        )
    if column not in row:
        rule = f"no such column in {origin}; {did_you_mean(column, row)}"
        found = f"; found without a key are {FORMS}" if key == "text_column" else ""
        raise setting_error(key, column, rule + found)
    return "" if row[column] is None else row[column]


def take_text(row: Row, origin: str, column: str, key: str) -> str:
    """Return a column of a row; ``ConfigError`` where it has none, or holds no text there."""
    text = take_column(row, origin, column, key)
    if not isinstance(text, str):
        raise setting_error(
            key, column, f"must hold text, not a {type(text).__name__}, in {origin}"
        )
    return text


def take_texts(rows: Sequence[tuple[str, Row]], column: str, key: str) -> list[str]:
    """Return a column of rows; ``ConfigError`` where one of them has none, or holds no text there."""
    return [take_text(row, origin, column, key) for origin, row in rows]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of a row that are learnt from: a text; a conversation; a prompt and its
    completion; tokens.

    Args:
        instruction: a row is Alpaca's: ``instruction`` and ``input`` are what the user says,
            ``output`` the answer.
        ids: tokens, beside them ``labels``, where the row has them.
        each_turn: a conversation is learnt turn by turn: each as the template writes it while it is
            the last one.
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
        """Return the columns to take, by the names in a row where none is named and there is no
        column of text.
        """
        named = self.messages is not None or self.prompt is not None
        if named or row is None or isinstance(row, str) or self.text in row:
            return self
        chats = [name for name in CHATS if name in row]
        if chats:
            return replace(self, messages=chats[0])
        if all(name in row for name in PAIR):
            return replace(self, prompt=PAIR[0], completion=PAIR[1])
        if all(name in row for name in INSTRUCTION):
            return replace(self, instruction=True)
        if "input_ids" in row:
            return replace(self, ids="input_ids")
        return self

    def are_chats(self, row: Row | None) -> bool:
        """Say whether a row is a conversation, which a chat template writes."""
        if self.messages is not None or self.instruction:
            return True
        return (
            self.prompt is not None
            and isinstance(row, Mapping)
            and isinstance(row.get(self.prompt), list | tuple)
        )

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

    def read_chats(self, row: Row, origin: str) -> list[Any]:
        """Return the conversations to learn from that a row holds: one, or one for each turn.

        Raises:
            ConfigError: the row has another form.
        """
        more: dict[str, Any] = {"defaults": self.settings}
        if isinstance(row, Mapping):
            media = [name for name in MEDIA if row.get(name)]
            if media:
                raise setting_error("data", origin, f"has {media[0]}; only text is learnt here")
            more.update(tools=row.get("tools"), settings=row.get("chat_template_kwargs"))
        if self.instruction:
            asked = take_text(row, origin, "instruction", "data")
            if isinstance(row, Mapping) and row.get("input"):
                asked += "\n\n" + take_text(row, origin, "input", "data")
            answer = take_text(row, origin, "output", "data")
            talk = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
            if isinstance(row, Mapping) and row.get("system"):
                talk.insert(
                    0, {"role": "system", "content": take_text(row, origin, "system", "data")}
                )
            chat = read_chat(origin, talk, key="data", **more)
        elif self.messages is not None:
            talk = take_column(row, origin, self.messages, "messages_column")
            system = row.get("system") if isinstance(row, Mapping) else None
            before = (
                [{"role": "system", "content": system}]
                if isinstance(system, str) and system
                else []
            )
            chat = read_chat(origin, talk, key="messages_column", prompt=before, **more)
        else:
            assert self.prompt is not None and self.completion is not None
            before = take_column(row, origin, self.prompt, "prompt_column")
            if not isinstance(before, list | tuple):
                raise setting_error(
                    "prompt_column", origin, "holds text, where others hold messages"
                )
            talk = take_column(row, origin, self.completion, "completion_column")
            chat = read_chat(origin, talk, key="completion_column", prompt=before, **more)
        if not self.each_turn:
            return [chat]
        turns = [number for number, learnt in enumerate(chat.learnt) if learnt]
        return [
            replace(
                chat,
                messages=chat.messages[: turn + 1],
                learnt=[number == turn for number in range(turn + 1)],
            )
            for turn in turns
        ]


def read_ids(row: Row, origin: str, column: str, vocabulary: int) -> tuple[list[int], list[int]]:
    """Return the tokens of a row that holds some, and which of them are learnt: all, or those whose
    label is not -100.

    Args:
        vocabulary: one more than the largest token.

    Raises:
        ConfigError: these are no tokens, or a label is another token than the one at its place.
    """
    ids = take_column(row, origin, column, "data")
    if not isinstance(ids, list | tuple) or not all(
        isinstance(one, int) and 0 <= one < vocabulary for one in ids
    ):
        raise setting_error(
            "data", origin, f"{column}: must hold tokens from 0 to {vocabulary - 1}"
        )
    labels = row.get("labels") if isinstance(row, Mapping) else None
    if labels is None:
        return list(ids), [1] * len(ids)
    if len(labels) != len(ids) or any(
        label not in (-100, one) for label, one in zip(labels, ids, strict=False)
    ):
        rule = f"labels: must be those of {column}, a token or -100 at each place (the model looks one ahead itself)"
        raise setting_error("data", origin, rule)
    return list(ids), [int(label != -100) for label in labels]
