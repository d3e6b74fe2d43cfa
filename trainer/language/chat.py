"""Conversations as text, written by a chat template, with the spans that are trained on.

The whole conversation is rendered once, and that text is trained on. The spans are the text that
the template writes for the assistant's messages, without the text that makes the assistant speak
(``add_generation_prompt``), which is given at generation. In a template with {% generation %} marks
the spans are the marked text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from os.path import commonprefix
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..private.transformers import with_reasoning_aliases
from .messages import Chat, Message, in_form, thoughts_and_words
from .problems import setting_error, setting_errors
from .rendering import NOBODY, Watch, compile_watched

# Messages to try templates with. No template writes these words and names without being asked.
WORDS = "forty two words"
QUESTION = Message(role="user", content=WORDS)
ANSWER = Message(role="assistant", content=WORDS)
CALL = Message(
    role="assistant",
    content="",
    tool_calls=[
        {
            "id": "abcdefghi",
            "type": "function",
            "function": {"name": "f_one", "arguments": {"x_one": "y_one"}},
        }
    ],
)
RESULT = Message(role="tool", name="f_one", tool_call_id="abcdefghi", content="z")
ANSWER.is_learnt = CALL.is_learnt = True


class TextWriter:
    """Writes the words of a prompt and its answer one behind the other, without a template."""

    text = ""
    without_thoughts = 0

    def write(self, origin: str, chat: Chat) -> tuple[str, Sequence[Sequence[int]] | None]:
        """Return the text, with the span of the answer if there is a prompt."""
        *before, answer = (message["content"] for message in chat.messages)
        prompt = "".join(before)
        text = prompt + answer
        return text, [(len(prompt), len(text))] if before else None


class ChatWriter:
    """Writes conversations with a chat template.

    ``without_thoughts`` counts the turns that were written without the assistant's thoughts. Many
    templates keep the thoughts of the last turn only.
    """

    def __init__(self, tokenizer: Any, text: str) -> None:
        self.tokenizer = tokenizer
        self.text = text
        self.has_marks = "endgeneration" in text
        self.watched = compile_watched(text)
        self.without_thoughts = 0

    def write(self, origin: str, chat: Chat) -> tuple[str, Sequence[Sequence[int]]]:
        """Write a conversation as ``turns`` does, with the spans that are trained on."""
        text, parts = self.turns(origin, chat)
        return text, [place for number, *place in parts if chat.messages[number].is_learnt]

    def turns(self, origin: str, chat: Chat) -> tuple[str, list[tuple[int, int, int]]]:
        """Write a conversation, and return the parts that messages wrote, in order.

        A part is the number of the message, the first character, and the character behind the last.

        Raises ``ConfigError`` if the template refuses the conversation, leaves out words, or does
        not show who says which words.
        """
        with setting_errors("template", origin, "the template refuses this conversation"):
            text, writers = self._write(chat.messages, chat.settings)
            if not self.has_marks:
                self._leave_openings(chat, text, writers)

        edges = np.flatnonzero(np.diff(writers, prepend=-2, append=-2)).tolist()
        parts = [
            (int(writers[start]), start, end)
            for start, end in pairwise(edges)
            if writers[start] != NOBODY
        ]
        own = [""] * len(chat.messages)
        for number, start, end in parts:
            own[number] += text[start:end]
        learnt = [own[number] for number, message in enumerate(chat.messages) if message.is_learnt]
        for number, message in enumerate(chat.messages):
            thoughts, said = thoughts_and_words(message)
            written = own[number] if message.is_learnt else text
            words = [said, *map(_name_of, message.get("tool_calls") or ())]
            is_right = all(word in written for word in words)
            if message["role"] == "tool":  # a part of the tool may hold the answer as JSON
                is_in_turn = said and any(said in words for words in learnt)
                is_right = bool(self.has_marks or own[number] or not is_in_turn)
            if not is_right:
                raise setting_error(
                    "template",
                    f"{origin} message {number + 1}",
                    f"the template leaves out words of the {message['role']}, or does not show "
                    "who says them; give another template, or put "
                    "{% generation %} around the assistant's words",
                )
            self.without_thoughts += int(message.is_learnt and thoughts not in written)

        if not all(_name_of(tool) in text for tool in chat.settings.get("tools", ())):
            raise setting_error(
                "template", origin, "the template leaves the row's tools out; give another template"
            )
        return text, parts

    def turn_ends(self) -> list[int]:
        """Return the last special token behind an answer of the assistant, and a call of a tool."""
        found = []
        special = self.tokenizer.added_tokens_decoder
        for turn, word in ((ANSWER, WORDS), (CALL, "y_one")):
            with suppress(ConfigError):
                text, _ = self.write("", Chat([QUESTION, turn], {}))
                behind = text.rpartition(word)[-1]
                tokens = self.tokenizer(behind, add_special_tokens=False)["input_ids"]
                found += [token for token in tokens if token in special][-1:]
        return found

    def _write(
        self,
        given: Sequence[Message],
        settings: Mapping[str, Any],
        *,
        prompt: bool = False,
        arguments_as_text: bool | None = None,
    ) -> tuple[str, Any]:
        """Return a text, and the number of the message that wrote each character.

        A ``prompt`` ends with the text that makes the assistant speak.
        """
        if arguments_as_text is None:
            arguments_as_text = self._takes_text
        messages = with_reasoning_aliases(in_form(given, arguments_as_text=arguments_as_text))
        watch = Watch(messages)
        pieces: list[str] = []
        marks: list[tuple[int, int]] = []
        numbers: list[int] = []  # of the message that wrote each piece
        variables = {
            **self.tokenizer.special_tokens_map,
            "tools": None,
            "documents": None,
            "messages": messages,
            "add_generation_prompt": prompt,
            **settings,
            "watch_": watch,
        }
        with self.watched.environment.activate_tracker(pieces, marks):
            for piece in self.watched.generate(variables):
                pieces.append(piece)
                numbers.append(watch.writers[-1])

        writers = np.repeat(numbers, [*map(len, pieces)])
        if self.has_marks:
            # NOBODY writes the end of the whole text (Phi-3). If marked, the last message has it.
            roles = np.array([*watch.roles, "assistant"])  # NOBODY is the last
            marked = np.where(roles[writers] == "assistant", NOBODY, writers)
            for start, end in marks:
                marked[start:end] = writers[start:end] % len(messages)
            writers = marked
        return "".join(pieces), writers

    def _leave_openings(self, chat: Chat, text: str, writers: Any) -> None:
        """Take the text that makes the assistant speak from the messages that wrote it, in place.

        The end of the whole text is the last message's.
        """
        openings: dict[bool, str] = {}
        opening = ""
        end = _end_of(writers)
        last = writers[end - 1]
        for number, message in enumerate(chat.messages):
            own = np.flatnonzero(writers == number)
            if not message.is_learnt or not len(own):
                continue

            is_answered = number > 0 and chat.messages[number - 1]["role"] == "tool"
            if is_answered not in openings:
                before = chat.messages[:number] if is_answered else [QUESTION]
                openings[is_answered] = self._opening(before, chat.settings)
            opening = openings[is_answered]
            start = own[0]
            begin = start + len(commonprefix([opening, text[start:]]))  # noqa: RUF071
            _, words = thoughts_and_words(message)
            if begin - start < len(opening) and words:
                # The opening begins thoughts that the template left out here.
                found = text.rfind(words, start, begin + len(words))
                begin = found if found >= 0 else begin
            writers[start:begin] = NOBODY
        if text[end:] != opening:
            writers[end:] = last

    def _opening(self, before: Sequence[Message], settings: Mapping[str, Any]) -> str:
        """Return the text that makes the assistant speak behind some messages."""
        text, _ = self._write(before, settings)
        prompted, writers = self._write(before, settings, prompt=True)
        if prompted.startswith(text) and prompted != text:
            return prompted[len(text) :]

        # Without the prompt the template writes another end of the text (Phi-3), or the template
        # always writes the prompt (DeepSeek behind the answers of tools).
        tail = prompted[_end_of(writers) :]
        is_end = prompted == text and tail.lstrip().startswith(self.tokenizer.eos_token or tail)
        return "" if is_end else tail

    @cached_property
    def _takes_text(self) -> bool:
        """Return whether the template takes the arguments of a call as text, found by trying."""
        for as_text in (False, True):
            with suppress(Exception):  # templates raise any error
                text, _ = self._write([QUESTION, CALL, RESULT], {}, arguments_as_text=as_text)
                if all(word in text for word in ("f_one", "x_one", "y_one")):
                    return as_text
        return False


def _end_of(writers: Any) -> int:
    """Return the end of the characters that messages wrote."""
    return int(np.max(np.flatnonzero(writers != NOBODY) + 1, initial=0))


def _name_of(tool: Any) -> str:
    """Return the name of a tool, or of a call of a tool."""
    return str(tool.get("function", tool).get("name", ""))
