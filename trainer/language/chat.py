"""Conversations as text with the spans of it that are learnt: what the assistant says, as the chat
template writes it.

The whole conversation is rendered once, and that text is what is learnt from. In it a turn of the
assistant is what the template writes for its message, without what it writes to make the assistant
speak (``add_generation_prompt``): that is given at generation. A template with {% generation %}
marks says itself what is learnt.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import ConfigError
from .messages import Chat, Form, Message, spoken_text, thoughts_of
from .problems import first_line, setting_error
from .rendering import NOBODY, Part, Renderer, Unclear, length_alike
from .templates import ChatTemplate

WORDS = "forty two words"  # that no template writes by itself
CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "f_one", "arguments": {"x_one": "y_one"}},
}
QUESTION: Message = {"role": "user", "content": "?"}
REMEDY = "put {% generation %} and {% endgeneration %} around what the assistant writes (task_settings.template)"


@dataclass(frozen=True, kw_only=True)
class LearntText:
    """A text and what of it is learnt.

    Args:
        spans: of characters that are learnt; None: all.
        special: the tokenizer adds its special tokens, which a chat template writes itself.
    """

    text: str
    spans: list[tuple[int, int]] | None
    special: bool = False


class ChatWriter:
    """Writes conversations with a chat template.

    Args:
        counts: of learnt turns: those before the last message, those whose thoughts were written or
            left out.
    """

    def __init__(self, tokenizer: Any, template: ChatTemplate) -> None:
        self.tokenizer, self.template = tokenizer, template
        self.counts: Counter[str] = Counter()
        self._renderers: dict[str, Renderer] = {}
        self._forms: dict[tuple[str, bool], Form] = {}
        self._openings: dict[tuple[str, str, str], str] = {}

    @property
    def notices(self) -> list[str]:
        """Return what to know of the conversations that were written."""
        found = [
            "template: it writes a turn of the assistant differently once another follows, and conversations are "
            "learnt as they stand at their end; turns: each learns each turn as it is written while it is the last"
        ]
        found = found if self.counts["earlier turns"] and self._rewrites_turns() else []
        dropped, written = self.counts["thoughts dropped"], self.counts["thoughts written"]
        if dropped:
            of = f"{dropped:,} of {dropped + written:,}"
            found.append(
                f"template: it leaves out the thoughts of {of} turns that have some: they are learnt without"
            )
        return found

    def _rewrites_turns(self) -> bool:
        """Say whether a turn is written differently once another one follows."""
        talk: list[Message] = [
            QUESTION,
            {"role": "assistant", "content": WORDS, "reasoning_content": "a thought"},
        ]
        return self._turn(talk, calls=False) != self._turn([*talk, *talk], calls=False)

    def try_answer(self) -> str:
        """Return what the template writes for an answer of ``WORDS``, or nothing."""
        return self._turn([QUESTION, {"role": "assistant", "content": WORDS}], calls=False)

    def try_call(self) -> str:
        """Return what the template writes where the assistant makes the ``CALL``, or nothing."""
        return self._turn([QUESTION, {"role": "assistant", "tool_calls": [CALL]}], calls=True)

    def _turn(self, talk: Sequence[Message], *, calls: bool) -> str:
        """Return what the template writes for the second message, or nothing where it refuses the
        messages.
        """
        renderer = self._renderer(self.template.for_tools(calls))
        try:
            text, parts = renderer.parts(self._form(renderer, calls=calls).bring(talk), {})
        except Exception:  # a template raises what it likes
            return ""
        return "".join(text[part.start : part.end] for part in parts if part.message == 1)

    def write(self, origin: str, chat: Chat) -> LearntText:
        """Write a conversation.

        Raises:
            ConfigError: the template refuses it, leaves something out, or does not say whose text
                is whose.
        """
        renderer = self._renderer(self.template.for_tools(chat.settings.get("tools")))
        calls = any(message.get("tool_calls") for message in chat.messages)
        try:
            chat = replace(chat, messages=self._form(renderer, calls=calls).bring(chat.messages))
            if renderer.says_what_is_learnt:
                return self._as_marked(origin, renderer, chat)
            text, parts = renderer.parts(chat.messages, chat.settings)
            return self._as_found(origin, renderer, chat, text, parts)
        except ConfigError:
            raise
        except Unclear:
            rule = f"the template does not show whose text is whose: {REMEDY}"
            raise setting_error("template", origin, rule) from None
        except Exception as error:  # a template raises what it likes
            rule = f"the chat template refuses this conversation: {first_line(error)}"
            raise setting_error("template", origin, rule) from None

    # -- what is learnt
    # -----------------------------------------------------------------------------

    def _as_marked(self, origin: str, renderer: Renderer, chat: Chat) -> LearntText:
        text, marked = renderer.generated(chat.messages, chat.settings)
        said = [
            number for number, message in enumerate(chat.messages) if message["role"] == "assistant"
        ]
        spans = [(part.start, part.end) for part in marked if part.end > part.start]
        if not all(chat.learnt[number] for number in said):
            if len(marked) != len(said):
                rule = "some messages are not learnt, and the template's {% generation %} marks are not one a message"
                raise setting_error("template", origin, rule)
            spans = [
                (part.start, part.end)
                for number, part in zip(said, marked, strict=True)
                if chat.learnt[number]
            ]
        for number, message in enumerate(chat.messages):
            written = any(
                spoken_text(message.get("content")) in text[start:end] for start, end in spans
            )
            if chat.learnt[number] and not written:
                raise _left_out(origin, number, message)
        self._check_written(origin, chat, text, {})
        return LearntText(text=text, spans=spans)

    def _as_found(
        self, origin: str, renderer: Renderer, chat: Chat, text: str, parts: Sequence[Part]
    ) -> LearntText:
        of: dict[int, list[Part]] = {}
        for part in parts:
            of.setdefault(part.message, []).append(part)
        spans: list[tuple[int, int]] = []
        for number, message in enumerate(chat.messages):
            if not chat.learnt[number]:
                continue
            if number not in of and spoken_text(message.get("content")) in text:
                raise Unclear
            if number not in of:
                raise _left_out(origin, number, message)
            first, *more = of[number]
            opening = self._opening(renderer, chat, number)
            begin = first.start + _length_of_opening(
                opening, text[first.start : first.end], message
            )
            spans += [(begin, first.end), *((part.start, part.end) for part in more)]
        # Behind its last message a template may write the end of the whole text, as Phi-3's does.
        behind_last = parts[-1].message == NOBODY and parts[-2].message == len(chat.messages) - 1
        if chat.learnt[-1] and behind_last and text[parts[-1].start :] != opening:
            spans[-1] = (spans[-1][0], parts[-1].end)
        self._check_written(origin, chat, text, of)
        self.counts["earlier turns"] += sum(chat.learnt[:-1])
        return LearntText(text=text, spans=[(start, end) for start, end in spans if end > start])

    def _opening(self, renderer: Renderer, chat: Chat, number: int) -> str:
        """Return what makes the assistant speak before a message; the same for all behind the same
        role.
        """
        role = chat.messages[number - 1]["role"] if number else ""
        key = renderer.text, role, json.dumps(chat.settings, sort_keys=True, default=str)
        if key not in self._openings:
            asked = self._form(renderer, calls=False).bring([QUESTION])
            before = chat.messages[:number] if role in ("user", "tool") else asked
            try:
                opening = renderer.opening(before, chat.settings)
            except Exception:  # a template that wants more than a part of a conversation
                opening = renderer.opening(asked, chat.settings)
            self._openings[key] = opening
        return self._openings[key]

    # -- nothing is left out
    # ------------------------------------------------------------------------

    def _check_written(self, origin: str, chat: Chat, text: str, of: dict[int, list[Part]]) -> None:
        """Refuse a conversation of which the template left something out, but thoughts, which are
        counted.
        """
        for number, message in enumerate(chat.messages):
            own = (
                "".join(text[part.start : part.end] for part in of[number])
                if number in of
                else text
            )
            said = spoken_text(message.get("content"))
            if message["role"] == "tool":
                # Some write it as JSON, or into the turn of the assistant, whose words it is not.
                if (
                    of
                    and number not in of
                    and said
                    and any(said in text[p.start : p.end] for p in _learnt(chat, of))
                ):
                    rule = f"the template writes the answer of a tool into the assistant's turn: {REMEDY}"
                    raise setting_error("template", f"{origin} message {number + 1}", rule)
                continue
            calls = [_name_of(call) for call in message.get("tool_calls") or ()]
            # A template may write what the system says into another message.
            if said not in (own if message["role"] == "assistant" else text):
                raise _left_out(origin, number, message)
            if any(name not in own for name in calls):
                rule = "the template leaves its tool calls out; give one that writes them (task_settings.template)"
                raise setting_error("template", f"{origin} message {number + 1}", rule)
            thoughts = thoughts_of(message) if chat.learnt[number] else ""
            if thoughts:
                self.counts["thoughts written" if thoughts in own else "thoughts dropped"] += 1
        for tool in chat.settings.get("tools") or ():
            if _name_of(tool) not in text:
                rule = "the template leaves the row's tools out; give one that writes them (task_settings.template)"
                raise setting_error("template", origin, rule)

    # -- what a template takes
    # ----------------------------------------------------------------------

    def _renderer(self, text: str) -> Renderer:
        if text not in self._renderers:
            self._renderers[text] = Renderer(self.tokenizer, text)
        return self._renderers[text]

    def _form(self, renderer: Renderer, *, calls: bool) -> Form:
        """Find out in which form the template takes messages, by trying it."""
        key = renderer.text, calls
        if key not in self._forms:
            self._forms[key] = (
                _find_calls(renderer, self._form(renderer, calls=False))
                if calls
                else _find(renderer)
            )
        return self._forms[key]


def _find(renderer: Renderer) -> Form:
    talk: list[Message] = [QUESTION, {"role": "assistant", "content": WORDS}]
    in_parts = Form(takes_text=False, takes_parts=True).bring(talk)
    takes_text, takes_parts = (_writes(renderer, messages, WORDS) for messages in (talk, in_parts))
    return Form(takes_text=takes_text or not takes_parts, takes_parts=takes_parts)


def _find_calls(renderer: Renderer, form: Form) -> Form:
    talk: list[Message] = [
        QUESTION,
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "name": "f_one", "tool_call_id": "abcdefghi", "content": "z"},
    ]
    forms = [
        replace(form, nothing=nothing, arguments_as_text=as_text)
        for as_text in (False, True)
        for nothing in (None, "")
    ]
    written = [
        one for one in forms if _writes(renderer, one.bring(talk), "f_one", "x_one", "y_one")
    ]
    taken = [one for one in forms if _writes(renderer, one.bring(talk))]
    return [*written, *taken, form][0]


def _writes(renderer: Renderer, messages: list[Message], *words: str) -> bool:
    try:
        text = renderer.render(messages, {})
    except Exception:  # a template raises what it likes
        return False
    return all(word in text for word in words)


def _learnt(chat: Chat, of: dict[int, list[Part]]) -> list[Part]:
    return [
        part
        for number, parts in of.items()
        if number != NOBODY and chat.learnt[number]
        for part in parts
    ]


def _length_of_opening(opening: str, turn: str, message: Message) -> int:
    """Count the characters at the beginning of a turn that make the assistant speak.

    Where an opening says more than the turn (the beginning of thoughts that the template left out),
    what both begin with is no longer than up to the first word of the message.
    """
    if turn.startswith(opening):
        return len(opening)
    same = length_alike(opening, turn)
    said = spoken_text(message.get("content"))
    if said:
        for at in range(same, -1, -1):
            if turn.startswith(said, at):
                return at
    return same


def _name_of(tool: Any) -> str:
    """Return the name of a tool or of a call of it."""
    inner = tool.get("function", tool) if isinstance(tool, dict) else {}
    return str(inner.get("name", "")) if isinstance(inner, dict) else ""


def _left_out(origin: str, number: int, message: Message) -> ConfigError:
    rule = f"the template does not write what the {message['role']} says; give one that does (task_settings.template)"
    return setting_error("template", f"{origin} message {number + 1}", rule)
