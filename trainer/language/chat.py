"""Conversations as text, written by a chat template, with the spans that are trained on.

The whole conversation is rendered once, and that text is trained on. The spans are the text that
the template writes for the assistant's messages, without the text that makes the assistant speak
(``add_generation_prompt``), which is given at generation. A template with {% generation %} marks
says itself which spans are trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import groupby
from os.path import commonprefix
from typing import Any, NamedTuple

from ..errors import ConfigError
from ..private.transformers import with_reasoning_aliases
from .messages import FORMS, Chat, Form, Message, in_form, spoken_text, thoughts_of
from .problems import first_line, setting_error
from .rendering import NOBODY, Watch, compile_watched
from .templates import GENERATION

# Templates are tried with these: words and names that no template writes by itself.
WORDS = "forty two words"
QUESTION: Message = {"role": "user", "content": WORDS}
ANSWER: Message = {"role": "assistant", "content": WORDS}
FUNCTION = {"name": "f_one", "arguments": {"x_one": "y_one"}}
CALL: Message = {
    "role": "assistant",
    "tool_calls": [{"id": "abcdefghi", "type": "function", "function": FUNCTION}],
}
RESULT: Message = {"role": "tool", "name": "f_one", "tool_call_id": "abcdefghi", "content": "z"}


class Part(NamedTuple):
    """Characters of a rendered conversation, from ``start`` to ``end``.

    Args:
        message: by number, which wrote them. ``NOBODY``: the template itself.
    """

    message: int
    start: int
    end: int


# A text, and the spans of its characters that are trained on. None: all of it.
TrainingText = tuple[str, Sequence[tuple[int, int]] | None]


class ChatWriter:
    """Writes conversations with a chat template.

    Args:
        tokenizer: that knows the special tokens of the template.
        text: of the template.

    Attributes:
        without_thoughts: how many of the assistant's turns the template wrote without their
            thoughts, as many do with all turns but the last.
    """

    def __init__(self, tokenizer: Any, text: str) -> None:
        self.tokenizer = tokenizer
        self.text = text
        self.has_marks = GENERATION.search(text) is not None
        self.watched = compile_watched(text)
        self.without_thoughts = 0
        self._form = cache(self._find_form)

    def write(self, origin: str, chat: Chat) -> TrainingText:
        """Write a conversation.

        Args:
            origin: of the conversation, for messages of errors.

        Raises:
            ConfigError: the template refuses it, leaves something out, or does not show whose text
                is whose.
        """
        try:
            text, parts = self._parts(chat.messages, chat.settings)
            if not self.has_marks:
                parts = self._spoken(chat, text, parts)
        except Exception as error:  # a template raises what it likes
            rule = f"the template refuses this conversation: {first_line(error)}"
            raise setting_error("template", origin, rule) from None

        spans = [part for part in parts if chat.trained[part.message]]
        trained = [""] * len(chat.messages)
        for number, start, end in spans:
            trained[number] += text[start:end]
        for number, message in enumerate(chat.messages):
            said = spoken_text(message)
            words = [said, *map(_name_of, message.get("tool_calls") or ())]
            written = trained[number] if chat.trained[number] else text
            is_right = all(word in written for word in words)
            if message["role"] == "tool":  # if it has a part, its answer may be JSON there
                has_part = self.has_marks or any(of == number for of, _, _ in parts)
                is_right = has_part or not said or not any(said in words for words in trained)
            if not is_right:
                rule = (
                    f"the template leaves out words of the {message['role']}, or does not show "
                    "that they are its own; give another template, or put "
                    "{% generation %} around them"
                )
                raise setting_error("template", f"{origin} message {number + 1}", rule)
            self.without_thoughts += chat.trained[number] and thoughts_of(message) not in written

        if not all(_name_of(tool) in text for tool in chat.settings.get("tools", ())):
            rule = "the template leaves the row's tools out; give another template"
            raise setting_error("template", origin, rule)
        return text, [(start, end) for _, start, end in spans]

    def turn_ends(self) -> list[int]:
        """Return the tokens that end a turn of the assistant: an answer, then a call of a tool.

        That is the last token that the template writes behind the turn (``<|im_end|>``), if the
        tokenizer has such a token.
        """
        found = []
        for turn, word in ((ANSWER, WORDS), (CALL, "y_one")):
            chat = Chat(messages=[QUESTION, turn], trained=[False, True], settings={})
            with suppress(ConfigError):
                _, _, behind = self.write("", chat)[0].rpartition(word)
                tokens = self.tokenizer(behind, add_special_tokens=False)["input_ids"]
                known = self.tokenizer.added_tokens_decoder
                found += [token for token in tokens if token in known][-1:]
        return list(dict.fromkeys(found))

    def _parts(
        self,
        given: Sequence[Message],
        settings: Mapping[str, Any],
        *,
        prompt: bool = False,
        form: Form | None = None,
    ) -> tuple[str, list[Part]]:
        """Return a conversation as text, and the parts that messages wrote, in order.

        A template with {% generation %} marks has the parts inside of them.

        Args:
            given: messages.
            settings: what the template gets beside the messages, such as ``tools``.
            prompt: end with the text that makes the assistant speak.
            form: of the messages. None: the form that the template takes.
        """
        form = form or self._form(any(message.get("tool_calls") for message in given))
        messages = with_reasoning_aliases(in_form(form, given))
        watch = Watch(messages)
        pieces: list[str] = []
        marks: list[tuple[int, int]] = []
        writers: list[int] = []  # of each character
        variables = {**self.tokenizer.special_tokens_map, "tools": None, "documents": None}
        variables |= {"messages": messages, "add_generation_prompt": prompt, **settings}
        with self.watched.environment.activate_tracker(pieces, marks):
            for piece in self.watched.generate(watch_=watch, **variables):
                pieces.append(piece)
                writers += [watch.writers[-1]] * len(piece)

        parts: list[Part] = []
        if self.has_marks:
            for start, end in marks:
                # The end of the whole text (Phi-3's) may be marked: it is the last message's.
                if end > start:
                    parts.append(Part(writers[start] % len(messages), start, end))
        else:
            for writer, stretch in groupby(writers):
                start = parts[-1].end if parts else 0
                parts.append(Part(writer, start, start + len(list(stretch))))
        return "".join(pieces), parts

    def _spoken(self, chat: Chat, text: str, parts: list[Part]) -> list[Part]:
        """Return the parts of messages without the text that makes the assistant speak.

        Behind its last message a template may write the end of the whole text, as Phi-3's.
        """
        spoken: list[Part] = []
        openings: dict[bool, str] = {}
        opening = ""
        seen: set[int] = set()
        for number, start, end in parts:
            if number == NOBODY:
                if spoken and end == len(text) and text[start:] != opening:
                    spoken.append(Part(parts[-2].message, start, end))
                continue

            if chat.trained[number] and number not in seen:
                is_answered = number > 0 and chat.messages[number - 1]["role"] == "tool"
                if is_answered not in openings:
                    before = chat.messages[:number] if is_answered else [QUESTION]
                    openings[is_answered] = self._opening(before, chat.settings)
                opening = openings[is_answered]
                begin = start + len(commonprefix([opening, text[start:end]]))  # noqa: RUF071
                words = spoken_text(chat.messages[number])
                if begin - start < len(opening) and words:
                    # The opening begins thoughts that the template left out here.
                    found = text.rfind(words, start, begin + len(words))
                    begin = found if found >= 0 else begin
                start = begin
            seen.add(number)
            if start < end:
                spoken.append(Part(number, start, end))
        return spoken

    def _opening(self, before: Sequence[Message], settings: Mapping[str, Any]) -> str:
        """Return the text that makes the assistant speak behind some messages."""
        text, _ = self._parts(before, settings)
        prompted, parts = self._parts(before, settings, prompt=True)
        if prompted.startswith(text) and prompted != text:
            return prompted[len(text) :]

        # Without the prompt the template writes another end of the text (Phi-3's), or it always
        # writes the prompt (DeepSeek's behind tools).
        tail = prompted[parts[-1].start :] if parts[-1].message == NOBODY else ""
        is_end = prompted == text and tail.lstrip().startswith(self.tokenizer.eos_token or tail)
        return "" if is_end else tail

    def _find_form(self, calls: bool) -> Form:
        """Return the form in which the template writes messages, found by trying the forms.

        Args:
            calls: some messages have calls of tools.
        """
        talk = [QUESTION, CALL, RESULT] if calls else [QUESTION, ANSWER]
        words = (WORDS, "f_one", "x_one", "y_one") if calls else (WORDS,)
        for form in FORMS:
            with suppress(Exception):  # a template raises what it likes
                text, _ = self._parts(talk, {}, form=form)
                if all(word in text for word in words):
                    return form
        return FORMS[0]


def _name_of(tool: Any) -> str:
    """Return the name of a tool, or of a call of a tool."""
    return str(tool.get("function", tool).get("name", ""))
