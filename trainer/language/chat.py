"""Conversations as text, written by a chat template, with the spans that are trained on.

The whole conversation is rendered once, and that text is trained on. The spans are what the
template writes for the assistant's messages, without what it writes to make the assistant speak
(``add_generation_prompt``), which is given at generation. A template with {% generation %} marks
says itself which spans are trained on.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import ConfigError
from .messages import Chat, Form, Message, spoken_text, thoughts_of
from .problems import first_line, setting_error
from .rendering import NOBODY, Part, Renderer, Unclear, common_prefix_length
from .templates import ChatTemplate

# What templates are tried with: words and names that no template writes by itself.
WORDS = "forty two words"
QUESTION: Message = {"role": "user", "content": "?"}
CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "f_one", "arguments": {"x_one": "y_one"}},
}

REMEDY = (
    "put {% generation %} and {% endgeneration %} around what the assistant writes "
    "(task_settings.template)"
)
REWRITES_TURNS = (
    "template: it writes a turn of the assistant differently once another follows, and "
    "conversations are trained on as they are at their end; turns: each trains on each turn as it "
    "is written while it is the last"
)

Span = tuple[int, int]  # first character, and one behind the last
Parts = Mapping[int, Sequence[Part]]  # of the text, by the number of the message that wrote them


@dataclass(frozen=True, kw_only=True)
class TrainingText:
    """A text and the spans of it that are trained on.

    Args:
        spans: of characters; None: all of it.
    """

    text: str
    spans: list[Span] | None


class ChatWriter:
    """Writes conversations with a chat template.

    Args:
        tokenizer: that knows the special tokens of the template.
        template: of the run.
    """

    def __init__(self, tokenizer: Any, template: ChatTemplate) -> None:
        self.tokenizer = tokenizer
        self.template = template
        # Of turns that are trained on: those before the last message, those whose thoughts were
        # written or dropped.
        self.counts: Counter[str] = Counter()
        self._renderers: dict[str, Renderer] = {}
        self._forms: dict[tuple[str, bool], Form] = {}
        self._openings: dict[tuple[str, str, str], str] = {}

    # -- what people should know ------------------------------------------------------------------

    @property
    def notices(self) -> list[str]:
        """Return notices about the conversations that were written."""
        notices = []
        if self.counts["earlier turns"] and self._rewrites_turns():
            notices.append(REWRITES_TURNS)

        dropped, written = self.counts["thoughts dropped"], self.counts["thoughts written"]
        if dropped:
            turns = f"{dropped:,} of {dropped + written:,} turns"
            notices.append(
                f"template: it leaves out the thoughts of {turns} that have some, which are "
                "trained on without them"
            )
        return notices

    def _rewrites_turns(self) -> bool:
        """Return whether a turn is written differently once another one follows."""
        answer = {"role": "assistant", "content": WORDS, "reasoning_content": "a thought"}
        talk: list[Message] = [QUESTION, answer]
        return self._try_turn(talk, calls=False) != self._try_turn([*talk, *talk], calls=False)

    def try_answer(self) -> str:
        """Return what the template writes for an answer of ``WORDS``, or nothing."""
        answer = {"role": "assistant", "content": WORDS}
        return self._try_turn([QUESTION, answer], calls=False)

    def try_call(self) -> str:
        """Return what the template writes where the assistant makes the ``CALL``, or nothing."""
        call = {"role": "assistant", "tool_calls": [CALL]}
        return self._try_turn([QUESTION, call], calls=True)

    def _try_turn(self, talk: Sequence[Message], *, calls: bool) -> str:
        """Return what the template writes for the second message, or nothing if it refuses them."""
        renderer = self._renderer(self.template.for_tools(calls))
        try:
            messages = self._form(renderer, calls=calls).apply(talk)
            text, parts = renderer.parts(messages, {})
        except Exception:  # a template raises what it likes
            return ""
        return "".join(text[part.start : part.end] for part in parts if part.message == 1)

    # -- writing ----------------------------------------------------------------------------------

    def write(self, origin: str, chat: Chat) -> TrainingText:
        """Write a conversation.

        Args:
            origin: of the conversation, for messages.

        Raises:
            ConfigError: the template refuses it, leaves something out, or does not show whose text
                is whose.
        """
        renderer = self._renderer(self.template.for_tools(chat.settings.get("tools")))
        calls = any(message.get("tool_calls") for message in chat.messages)

        try:
            messages = self._form(renderer, calls=calls).apply(chat.messages)
            chat = replace(chat, messages=messages)
            if renderer.has_generation_marks:
                return self._write_by_marks(origin, renderer, chat)
            return self._write_by_parts(origin, renderer, chat)
        except ConfigError:
            raise
        except Unclear:
            rule = f"the template does not show whose text is whose: {REMEDY}"
            raise setting_error("template", origin, rule) from None
        except Exception as error:  # a template raises what it likes
            rule = f"the chat template refuses this conversation: {first_line(error)}"
            raise setting_error("template", origin, rule) from None

    def _write_by_marks(self, origin: str, renderer: Renderer, chat: Chat) -> TrainingText:
        """Write a conversation whose template marks with {% generation %} what is trained on."""
        text, marked = renderer.generated(chat.messages, chat.settings)
        roles = [message["role"] for message in chat.messages]
        answers = [number for number, role in enumerate(roles) if role == "assistant"]

        if all(chat.trained[number] for number in answers):
            spans = [(part.start, part.end) for part in marked if part.end > part.start]
        else:
            # Some answers are left out, so it must be known which mark is whose.
            if len(marked) != len(answers):
                rule = (
                    "some messages are not trained on, and the template does not write one "
                    "{% generation %} mark for each message"
                )
                raise setting_error("template", origin, rule)
            spans = []
            for number, part in zip(answers, marked, strict=True):
                if chat.trained[number]:
                    spans.append((part.start, part.end))

        for number, message in enumerate(chat.messages):
            words = spoken_text(message.get("content"))
            written = any(words in text[start:end] for start, end in spans)
            if chat.trained[number] and not written:
                raise _left_out(origin, number, message)

        self._check_written(origin, chat, text, {})
        return TrainingText(text=text, spans=spans)

    def _write_by_parts(self, origin: str, renderer: Renderer, chat: Chat) -> TrainingText:
        """Write a conversation whose spans follow from which message wrote which part."""
        text, parts = renderer.parts(chat.messages, chat.settings)
        parts_of: dict[int, list[Part]] = {}
        for part in parts:
            parts_of.setdefault(part.message, []).append(part)

        spans: list[Span] = []
        opening = ""
        for number, message in enumerate(chat.messages):
            if not chat.trained[number]:
                continue
            if number not in parts_of:
                if spoken_text(message.get("content")) in text:
                    raise Unclear
                raise _left_out(origin, number, message)

            # What makes the assistant speak is given at generation, and not trained on.
            first, *others = parts_of[number]
            opening = self._opening(renderer, chat, number)
            turn = text[first.start : first.end]
            spans.append((first.start + _opening_length(opening, turn, message), first.end))
            spans += [(part.start, part.end) for part in others]

        if chat.trained[-1]:
            # Behind its last message a template may write the end of the whole text, as Phi-3's.
            behind_last = (
                parts[-1].message == NOBODY and parts[-2].message == len(chat.messages) - 1
            )
            if behind_last and text[parts[-1].start :] != opening:
                begin, _ = spans[-1]
                spans[-1] = (begin, parts[-1].end)

        self._check_written(origin, chat, text, parts_of)
        self.counts["earlier turns"] += sum(chat.trained[:-1])
        return TrainingText(text=text, spans=[(start, end) for start, end in spans if end > start])

    def _opening(self, renderer: Renderer, chat: Chat, number: int) -> str:
        """Return what makes the assistant speak before a message: the same behind the same role."""
        role = chat.messages[number - 1]["role"] if number else ""
        settings = json.dumps(chat.settings, sort_keys=True, default=str)
        key = (renderer.text, role, settings)
        if key not in self._openings:
            question = self._form(renderer, calls=False).apply([QUESTION])
            before = chat.messages[:number] if role in ("user", "tool") else question
            try:
                opening = renderer.opening(before, chat.settings)
            except Exception:  # a template that refuses a part of a conversation
                opening = renderer.opening(question, chat.settings)
            self._openings[key] = opening

        return self._openings[key]

    # -- nothing is left out ----------------------------------------------------------------------

    def _check_written(self, origin: str, chat: Chat, text: str, parts_of: Parts) -> None:
        """Refuse a conversation of which the template left something out; count dropped thoughts.

        Args:
            parts_of: each message; empty where the template marks what is trained on.
        """
        for number, message in enumerate(chat.messages):
            if message["role"] == "tool":
                _check_tool_answer(origin, number, chat, text, parts_of)
                continue

            own = _text_of(parts_of[number], text) if number in parts_of else text
            # A template may write the system's words into another message.
            place = own if message["role"] == "assistant" else text
            if spoken_text(message.get("content")) not in place:
                raise _left_out(origin, number, message)

            for call in message.get("tool_calls") or ():
                if _name_of(call) not in own:
                    rule = "the template leaves its tool calls out"
                    raise _other_template(f"{origin} message {number + 1}", rule)

            thoughts = thoughts_of(message) if chat.trained[number] else ""
            if thoughts:
                self.counts["thoughts written" if thoughts in own else "thoughts dropped"] += 1

        for tool in chat.settings.get("tools") or ():
            if _name_of(tool) not in text:
                raise _other_template(origin, "the template leaves the row's tools out")

    # -- what the template takes ------------------------------------------------------------------

    def _renderer(self, text: str) -> Renderer:
        if text not in self._renderers:
            self._renderers[text] = Renderer(self.tokenizer, text)
        return self._renderers[text]

    def _form(self, renderer: Renderer, *, calls: bool) -> Form:
        """Return the form in which the template takes messages, found by trying it."""
        key = (renderer.text, calls)
        if key not in self._forms:
            if calls:
                form = _find_form_of_calls(renderer, self._form(renderer, calls=False))
            else:
                form = _find_form(renderer)
            self._forms[key] = form
        return self._forms[key]


def _find_form(renderer: Renderer) -> Form:
    """Return whether a template takes content as text, as a list of parts, or as both."""
    talk: list[Message] = [QUESTION, {"role": "assistant", "content": WORDS}]
    in_parts = Form(takes_text=False, takes_parts=True).apply(talk)
    takes_text = _writes(renderer, talk, WORDS)
    takes_parts = _writes(renderer, in_parts, WORDS)
    return Form(takes_text=takes_text or not takes_parts, takes_parts=takes_parts)


def _find_form_of_calls(renderer: Renderer, form: Form) -> Form:
    """Return the form in which a template writes calls of tools; else one that it does not refuse.

    Args:
        form: of messages without calls.
    """
    talk: list[Message] = [
        QUESTION,
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "name": "f_one", "tool_call_id": "abcdefghi", "content": "z"},
    ]
    candidates = []
    for as_text in (False, True):
        for nothing in (None, ""):
            candidates.append(replace(form, nothing=nothing, arguments_as_text=as_text))

    for candidate in candidates:
        if _writes(renderer, candidate.apply(talk), "f_one", "x_one", "y_one"):
            return candidate
    for candidate in candidates:
        if _writes(renderer, candidate.apply(talk)):
            return candidate
    return form


def _writes(renderer: Renderer, messages: list[Message], *words: str) -> bool:
    """Return whether a template accepts messages and writes all of some words."""
    try:
        text = renderer.render(messages, {})
    except Exception:  # a template raises what it likes
        return False
    return all(word in text for word in words)


def _text_of(parts: Sequence[Part], text: str) -> str:
    return "".join(text[part.start : part.end] for part in parts)


def _opening_length(opening: str, turn: str, message: Message) -> int:
    """Count the characters at the beginning of a turn that make the assistant speak.

    Where the opening holds more than the turn (the beginning of thoughts that the template left
    out), their common beginning counts, and it ends at the first word of the message.
    """
    if turn.startswith(opening):
        return len(opening)

    common = common_prefix_length(opening, turn)
    words = spoken_text(message.get("content"))
    if words:
        for begin in range(common, -1, -1):
            if turn.startswith(words, begin):
                return begin
    return common


def _check_tool_answer(origin: str, number: int, chat: Chat, text: str, parts_of: Parts) -> None:
    """Refuse a template that writes a tool's answer into a turn of the assistant.

    It would be trained on. The answer may be written in another form, such as JSON.
    """
    answer = spoken_text(chat.messages[number].get("content"))
    if not answer or not parts_of or number in parts_of:
        return

    for other, parts in parts_of.items():
        if other == NOBODY or not chat.trained[other]:
            continue
        if any(answer in text[part.start : part.end] for part in parts):
            rule = f"the template writes the answer of a tool into the assistant's turn: {REMEDY}"
            raise setting_error("template", f"{origin} message {number + 1}", rule)


def _name_of(tool: Any) -> str:
    """Return the name of a tool, or of a call of it."""
    inner = tool.get("function", tool) if isinstance(tool, dict) else {}
    return str(inner.get("name", "")) if isinstance(inner, dict) else ""


def _left_out(origin: str, number: int, message: Message) -> ConfigError:
    rule = f"the template does not write what the {message['role']} says"
    return _other_template(f"{origin} message {number + 1}", rule)


def _other_template(origin: str, rule: str) -> ConfigError:
    remedy = "give another one (task_settings.template)"
    return setting_error("template", origin, f"{rule}; {remedy}")
